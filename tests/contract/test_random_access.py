"""Any step of any run: as easily as the first, the same after a resume, and an error that waits for its step."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_service.contract.augment import Compose, Erase, GainOffset, Noise
from loader_service.contract.collate import ImageBatchCollator, StackCollator
from loader_service.contract.rng import SampleRng
from loader_service.contract.sample import ImageSample
from loader_service.contract.samplers import BucketedSampler, MixingSampler, Sampler, SequentialSampler, ShuffledSampler
from loader_service.contract.stream import Stream
from loader_service.data import SyntheticLines
from loader_service.errors import ArgumentError, BuildError, ConsumerClosedError
from loader_service.loader import Loader

LENGTHS = np.arange(26) * 7 % 26
SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "sequential": lambda: SequentialSampler(26, 4),
    "sequential, all": lambda: SequentialSampler(26, 4, drop_last=False),
    "shuffled": lambda: ShuffledSampler(26, 4, 9),
    "shuffled, all": lambda: ShuffledSampler(26, 4, 9, drop_last=False),
    "mixing": lambda: MixingSampler([6, 0, 20], [1, 1, 2], 4, 9),
    "bucketed": lambda: BucketedSampler(LENGTHS, 4, 3, 9),
    "bucketed, all": lambda: BucketedSampler(LENGTHS, 4, 3, 9, drop_last=False),
}
every_sampler = pytest.mark.parametrize("name", SAMPLERS)


def shift(sample: ImageSample, rng: SampleRng) -> ImageSample:
    """A transform that changes the shape: 0 to 3 columns more."""
    return ImageSample(np.pad(sample.image, ((0, 0), (0, 0), (rng.next_int(4), 0))), sample.target, sample.label)


def make_stream(name: str) -> Stream:
    augmentation = Compose(GainOffset(), Noise(), Erase())
    dataset = SyntheticLines(26, height=3, min_width=2, max_width=20)
    return Stream(dataset, SAMPLERS[name](), ImageBatchCollator(4, 0.5, augmentation), seed=9, transform=shift)


@every_sampler
def test_a_resume_at_every_cut_goes_on_as_the_uninterrupted_run(name: str) -> None:
    steps = 2 * make_stream(name).steps_per_epoch + 2
    whole = [batch.digest() for batch in Loader(make_stream(name), 0, steps)]
    assert len(set(whole)) == steps
    stream = make_stream(name)
    for cut in range(steps + 1):
        assert [batch.digest() for batch in Loader(stream, cut, steps)] == whole[cut:]


@every_sampler
def test_a_jump_forth_and_back_changes_nothing(name: str) -> None:
    loader, stream = Loader(make_stream(name)), make_stream(name)
    for step in (5, 0, 10**9, 5, 3, 10**9 + 1, 0):
        batch = loader.get(step)
        assert batch.digest() == stream.build(step).digest()
        assert loader.next_step == step + 1
    assert next(loader).step == 1


@every_sampler
@pytest.mark.parametrize("epoch", [10**6, 2**64 - 1])
def test_late_epochs_hold_what_early_ones_hold(name: str, epoch: int) -> None:
    sampler = SAMPLERS[name]()
    late = [sampler.indices(epoch, step) for step in range(sampler.steps_per_epoch)]
    early = [sampler.indices(0, step) for step in range(sampler.steps_per_epoch)]
    assert sorted(map(len, late)) == sorted(map(len, early))
    if name.endswith("all"):
        assert sorted(np.concatenate(late).tolist()) == list(range(26))
    assert 0 <= np.concatenate(late).min() <= np.concatenate(late).max() < 26
    if not name.startswith("sequential"):
        assert np.concatenate(late).tolist() != np.concatenate(early).tolist()


@given(st.integers(0, 2**63 - 1))
@settings(max_examples=40)
def test_any_step_is_its_place_in_its_epoch(step: int) -> None:
    stream = make_stream("shuffled, all")
    batch = stream.build(step)
    assert (batch.step, batch.epoch, batch.step_in_epoch) == (step, step // 7, step % 7)
    assert batch["indices"].tolist() == stream.sampler.indices(step // 7, step % 7).tolist()


def test_a_huge_shuffled_dataset_takes_no_memory() -> None:
    sampler = ShuffledSampler(10**12, 128, seed=0)
    sampler.indices(0, 0)
    tracemalloc.start()
    try:
        batches = [
            sampler.indices(epoch, step) for epoch in (0, 10**6) for step in (0, 10**9, sampler.steps_per_epoch - 1)
        ]
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert all(len(np.unique(batch)) == 128 and batch.min() >= 0 and batch.max() < 10**12 for batch in batches)
    assert len({batch.tobytes() for batch in batches}) == len(batches)


@dataclass(frozen=True)
class Numbers:
    """Sample i is i; reading one of `bad` raises."""

    bad: frozenset[int]

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int, /) -> int:
        if index in self.bad:
            raise OSError(f"sample {index} is gone")
        return index


def test_an_error_comes_at_its_step_and_the_loader_goes_no_further() -> None:
    stream = Stream(Numbers(frozenset({7})), SequentialSampler(12, 3), StackCollator(), seed=0)
    loader = Loader(stream)
    assert [next(loader)["data"].tolist() for _ in range(2)] == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(BuildError) as caught:
        next(loader)
    assert (caught.value.step, caught.value.slot, caught.value.index) == (2, 1, 7)
    assert caught.value.cause_type == "OSError"
    for go_on in (lambda: next(loader), lambda: loader.get(3), lambda: list(loader)):
        with pytest.raises(ConsumerClosedError, match="takes no more steps: it ended at step 2, whose build failed"):
            go_on()
    assert (loader.closed, loader.next_step) == (True, 2)


def test_a_loader_that_is_reopened_goes_on_elsewhere() -> None:
    loader = Loader(Stream(Numbers(frozenset({7})), SequentialSampler(12, 3), StackCollator(), seed=0))
    with pytest.raises(BuildError):
        loader.get(2)
    loader.reopen()
    assert loader.get(3)["data"].tolist() == [9, 10, 11]
    assert [next(loader).step for _ in range(2)] == [4, 5]
    with pytest.raises(BuildError) as caught:
        list(loader)
    assert caught.value.step == 6


def test_a_closed_loader_says_so() -> None:
    with Loader(make_stream("shuffled"), 2) as loader:
        batch = next(loader)
    assert batch.step == 2
    with pytest.raises(ConsumerClosedError, match="it was closed"):
        next(loader)
    assert repr(loader).endswith("it was closed)")


@pytest.mark.parametrize("stream", ["x", None, Stream, 5], ids=str)
def test_what_is_no_stream_is_refused(stream: Any) -> None:
    with pytest.raises(ArgumentError, match="it must be a loader_service"):
        Loader(stream)


@pytest.mark.parametrize(
    ("start", "stop", "steps"), [(0, 0, []), (3, 3, []), (2, 5, [2, 3, 4]), (10**9, 10**9 + 1, [10**9])]
)
def test_a_loader_ends_before_its_stop_step(start: int, stop: int, steps: list[int]) -> None:
    with Loader(make_stream("shuffled"), start, stop) as loader:
        assert [batch.step for batch in loader] == steps
        assert list(loader) == []


@pytest.mark.parametrize(
    ("start", "stop", "told"),
    [
        (-1, None, "start_step is -1; global steps count from 0"),
        (3, 2, "stop_step is 2 and start_step 3"),
        (0, -1, "stop_step is -1"),
        (2**63, None, r"below 2\^63"),
        ("3", None, "start_step is '3'; it must be an integer"),
    ],
)
def test_a_loader_that_cannot_start_is_refused(start: Any, stop: int | None, told: str) -> None:
    with pytest.raises(ArgumentError, match=told):
        Loader(make_stream("shuffled"), start, stop)


@pytest.mark.parametrize("step", [1.5, "3", None])
def test_a_step_that_is_no_integer_is_refused(step: Any) -> None:
    stream = make_stream("shuffled")
    for ask in (stream.build, stream.layout, stream.explain, stream.position):
        with pytest.raises(ArgumentError, match=f"step is {step!r}; it must be an integer"):
            ask(step)
