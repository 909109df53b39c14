"""The workload of the peers: the product's own images, and a numpy build that is right."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.peers import lines
from loader_service.data import SyntheticLines


@pytest.fixture(scope="module")
def data() -> lines.Lines:
    return lines.Lines.load()


def test_windows_of_the_plane_are_the_samples(data: lines.Lines) -> None:
    samples = SyntheticLines()
    assert len(data) == len(samples)
    for index in (0, 1, 77, 2047):
        image = samples[index].image
        first, width = int(data.first[index]), int(data.widths[index])
        assert image.shape == (1, lines.HEIGHT, width)
        assert np.array_equal(data.pixels[first : first + image.size], image.reshape(-1))
        assert np.array_equal(data.targets[index], samples[index].target)


def test_the_numpy_build_is_a_batch_of_the_workload(data: lines.Lines) -> None:
    slot = lines.ring()[0]
    indices = next(lines.epochs(len(data), 1))
    lines.NumpyBuild(data, 1)(indices, slot)
    assert slot.images.shape == (lines.BATCH, 1, lines.HEIGHT, data.padded_width(indices))
    assert slot.target_count == int(data.target_lengths[indices].sum())
    for row, index, width in zip(slot.images, indices.tolist(), slot.widths.tolist(), strict=True):
        image = data.views[index].reshape(lines.HEIGHT, width)
        assert not row[:, :, width:].any()
        gains = np.ptp(row[0, :, :width]) / np.ptp(image)
        assert 0.7 < gains < 1.3
        assert np.allclose(row[0, :, :width], image * gains + (row[0, 0, 0] - image[0, 0] * gains), atol=1e-4)


def test_an_epoch_holds_no_sample_twice(data: lines.Lines) -> None:
    source = lines.epochs(len(data), 3)
    epoch = np.concatenate([next(source) for _ in range(len(data) // lines.BATCH)])
    assert sorted(epoch.tolist()) == list(range(len(data)))
