"""Datasets as Python's own loops see them: iteration gives every sample and ends, backwards too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader_service import StackCollator, Stream
from loader_service.contract.rng import SampleRng, derive
from loader_service.data import ConcatDataset, SyntheticLines, TextLineImages
from loader_service.data.pskd import LmWindows, Pipeline, PipelineSampler, PskdDataset, Reader, write
from loader_service.errors import ArgumentError


def _datasets(directory: Path) -> Iterator[Any]:
    write(directory / "a.psk.d", "(idx[9][], ℝ[2])", [(index, [index, 0.5]) for index in range(6)])
    (directory / "lines.txt").write_text("one\ntwo\nthree")
    yield SyntheticLines(5)
    yield ConcatDataset([range(3), [], range(4)])
    yield TextLineImages([directory / "lines.txt"])
    yield LmWindows(np.arange(9), 2, 1, 9)
    yield Reader(directory / "a.psk.d")
    yield PskdDataset(directory / "a.psk.d")


@pytest.mark.parametrize("place", range(6))
def test_iteration_gives_every_sample_once_and_ends(tmp_path: Path, place: int) -> None:
    dataset = list(_datasets(tmp_path))[place]
    assert len(dataset) > 0
    expected = [repr(dataset[index]) for index in range(len(dataset))]
    for _ in range(2):
        assert [repr(sample) for sample in dataset] == expected
    assert [repr(sample) for sample in reversed(dataset)] == expected[::-1]


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("index", ["a", 1.5, None, True, slice(0, 2), -1, 99, 2**70])
def test_any_other_index_is_one_clear_error(tmp_path: Path, place: int, index: Any) -> None:
    dataset = list(_datasets(tmp_path))[place]
    with pytest.raises(ArgumentError, match="index is"):
        dataset[index]


def _draw(sample: dict[str, Any], rng: SampleRng) -> dict[str, Any]:
    return sample | {"drawn": np.int64(rng.next_int(sample["data"]))}


def test_a_transform_draws_as_many_as_a_wide_idx_says_and_not_by_its_dtype(tmp_path: Path) -> None:
    """A leaf of idx[4294967297] is read as uint64, whose arithmetic would wrap."""
    write(tmp_path / "wide.psk.d", "idx[4294967297][]", [6] * 8)
    sampler = PipelineSampler(Pipeline(8, batch=8))
    stream = Stream(PskdDataset(tmp_path / "wide.psk.d"), sampler, StackCollator(), transform=_draw, seed=1)
    drawn = stream.build(0)["drawn"].tolist()
    assert drawn == [SampleRng(derive(1, 0, 0, slot, 0)).next_int(6) for slot in range(8)]
    assert len(set(drawn)) > 1
