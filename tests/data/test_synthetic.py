"""Synthetic lines: a function of seed and index, within the stated ranges, and nothing to wait for."""

from __future__ import annotations

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_service.contract.collate import ImageBatchCollator
from loader_service.contract.rng import SampleRng, derive
from loader_service.contract.sample import ImageSample
from loader_service.contract.samplers import ShuffledSampler
from loader_service.data import SyntheticLines, synthetic_lines
from loader_service.errors import ArgumentError


def same(one: ImageSample, other: ImageSample) -> bool:
    equal = np.array_equal(one.image, other.image) and np.array_equal(one.target, other.target)
    return equal and one.label == other.label


@given(st.integers(0, 2047))
def test_samples_lie_within_the_stated_ranges(index: int) -> None:
    image, target, label = SyntheticLines()[index]
    assert image.dtype == np.float32
    assert image.shape[:2] == (1, 32)
    assert 64 <= image.shape[2] <= 256
    assert 0 <= image.min() <= image.max() < 1
    assert target.dtype == np.int32
    assert len(target) == image.shape[2] // 16
    assert 1 <= target.min() <= target.max() <= 95
    assert 0 <= label < 10


def test_widths_are_spread_over_their_whole_range() -> None:
    widths = [SyntheticLines()[index].image.shape[2] for index in range(2048)]
    assert (min(widths), max(widths)) == (64, 256)
    assert abs(np.mean(widths) - 160) < 4 * 55.7 / np.sqrt(2048)


def test_pixels_are_the_contracts_singles_and_no_two_images_are_alike() -> None:
    rng = SampleRng(derive(0, 0, 0, 0, 3))
    whole = SyntheticLines(count=1, height=4096, min_width=1024, max_width=1024)[0]  # all of the plane
    assert whole.image.reshape(-1)[:1000].tolist() == [float(rng.next_single()) for _ in range(1000)]
    firsts = {SyntheticLines()[index].image[0, 0, :8].tobytes() for index in range(500)}
    assert len(firsts) == 500


@given(st.integers(0, 99), st.integers(-(2**63), 2**64 - 1))
@settings(max_examples=5)
def test_a_sample_depends_on_seed_and_index_alone(index: int, seed: int) -> None:
    sample = SyntheticLines(count=100, seed=seed)[index]
    assert same(SyntheticLines(count=2**31, seed=seed)[index], sample)
    assert not same(SyntheticLines(count=100, seed=seed ^ 1)[index], sample)


def test_two_processes_give_the_same_bytes() -> None:
    program = "from loader_service.data import synthetic_lines as f; print(f(5, 16, 64).build(9).digest())"
    command = [sys.executable, "-W", "error", "-c", program]
    elsewhere = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert elsewhere == synthetic_lines(5, 16, 64).build(9).digest()


def test_threads_read_the_same_samples() -> None:
    lines = SyntheticLines(count=300, seed=11)
    with ThreadPoolExecutor(4) as pool:
        rounds = list(pool.map(lambda _: [lines[index] for index in range(300)], range(4)))
    assert all(same(sample, lines[index]) for samples in rounds for index, sample in enumerate(samples))


def test_arrays_are_read_only() -> None:
    sample = SyntheticLines()[0]
    for array in (sample.image, sample.target):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_a_dataset_pickles_as_its_arguments() -> None:
    lines = SyntheticLines(count=3, seed=4)
    lines[0]
    data = pickle.dumps(lines)
    assert len(data) < 1000
    assert pickle.loads(data) == lines
    assert same(pickle.loads(data)[2], lines[2])


def test_numpy_integers_are_taken_as_ints() -> None:
    count: Any = np.int64(5)
    index: Any = np.uint8(3)
    assert SyntheticLines(count) == SyntheticLines(5)
    assert same(SyntheticLines(count)[index], SyntheticLines(5)[3])


@pytest.mark.parametrize("index", [-1, 10, 2**63])
def test_an_index_outside_the_dataset_is_refused(index: int) -> None:
    with pytest.raises(ArgumentError, match=rf"index is {index}; .* lie in \[0, 10\)"):
        SyntheticLines(count=10)[index]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"count": 0}, "count is 0"),
        ({"count": 2**31 + 1}, "count is 2147483649"),
        ({"height": 0}, "height is 0"),
        ({"min_width": 0}, "min_width is 0"),
        ({"max_width": -1}, "max_width is -1"),
        ({"min_width": 257}, "min_width is 257 and max_width 256"),
        ({"height": 4096, "max_width": 4096}, "height · max_width is 16777216 pixels"),
        ({"count": 2.5}, "count is 2.5; it must be an integer"),
        ({"seed": "x"}, "seed is 'x'; it must be an integer"),
    ],
    ids=str,
)
def test_arguments_outside_their_range_are_refused(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        SyntheticLines(**arguments)


def test_the_factory_gives_the_reference_workload() -> None:
    stream = synthetic_lines()
    assert stream.steps_per_epoch == 16
    assert stream.sampler == ShuffledSampler(2048, 128, seed=0)
    assert isinstance(stream.collator, ImageBatchCollator)
    batch = stream.build(0)
    assert batch["images"].shape[:3] == (128, 1, 32)
    assert batch["images"].shape[3] % 4 == 0
    assert batch["images"].min() < 0


def test_the_factory_takes_seed_size_and_augmentation() -> None:
    plain = synthetic_lines(seed=3, batch_size=5, count=10, augment=False, width_multiple=64).build(1)
    assert plain["images"].shape[0] == 5
    assert plain["images"].shape[3] % 64 == 0
    assert plain["images"].min() == 0
    assert plain.digest() != synthetic_lines(seed=4, batch_size=5, count=10, augment=False).build(1).digest()


def test_an_empty_target_comes_with_an_image_narrower_than_a_character() -> None:
    sample = SyntheticLines(count=1, min_width=1, max_width=15)[0]
    assert sample.target.shape == (0,)
