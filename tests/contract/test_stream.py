"""Streams: a pure function of the step, and errors that say which step, slot and sample."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from loader_service.contract.augment import GainOffset
from loader_service.contract.collate import BatchContext, ImageBatchCollator, SlotError, StackCollator
from loader_service.contract.layout import ALIGNMENT, Layout
from loader_service.contract.rng import SampleRng, derive
from loader_service.contract.sample import ImageSample
from loader_service.contract.samplers import SequentialSampler, ShuffledSampler
from loader_service.contract.stream import Stream
from loader_service.data import SyntheticLines
from loader_service.errors import ArgumentError, BuildError

BAD = 37
"""The dataset index that fails: step 4, slot 5 of a sequential stream of batches of 8."""

STREAM = Stream(
    SyntheticLines(count=50, height=4, min_width=4, max_width=16),
    ShuffledSampler(50, 7, seed=3),
    ImageBatchCollator(4, augmentation=GainOffset()),
    seed=3,
)


class PairError(Exception):
    """An exception whose constructor takes two arguments, so that pickle cannot make it again."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{reason} (code {code})")


class MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def plain_sample(shape: tuple[int, ...] = (1, 4, 6), dtype: Any = np.float32, label: int = 0) -> ImageSample:
    return ImageSample(np.ones(shape, dtype), np.array([1], np.int32), label)


@dataclass(frozen=True)
class Faulty:
    """64 plain samples; the one at BAD is what `make` gives or raises."""

    make: Callable[[], Any]

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int, /) -> Any:
        return self.make() if index == BAD else plain_sample()


def raise_pair() -> None:
    raise PairError(7, "no such sample")


def raise_mute() -> None:
    raise MuteError


def truncated_jpeg() -> ImageSample:
    file = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(file, "JPEG")
    picture = Image.open(io.BytesIO(file.getvalue()[:-500]))
    return ImageSample(np.asarray(picture, np.float32)[np.newaxis], np.array([1], np.int32))


def fail_on_zeros(sample: Any, rng: SampleRng) -> Any:
    """A transform of a sample, an augmentation of an image: raises where all pixels are zeros."""
    pixels = sample.image if isinstance(sample, ImageSample) else sample
    if not pixels.any():
        raise ZeroDivisionError("an empty image")
    return sample


def zeros() -> ImageSample:
    return ImageSample(np.zeros((1, 4, 6), np.float32), np.array([1], np.int32))


AUGMENTED = ImageBatchCollator(augmentation=fail_on_zeros)


def faulty_stream(make: Callable[[], Any], **parts: Any) -> Stream:
    collator = parts.pop("collator", ImageBatchCollator())
    return Stream(Faulty(make), SequentialSampler(64, 8), collator, seed=0, **parts)


FAULTS: list[tuple[Stream, str, str]] = [
    (faulty_stream(raise_pair), f"{__name__}.PairError", "no such sample (code 7)"),
    (faulty_stream(raise_mute), f"{__name__}.MuteError", "<exception str() failed>"),
    (faulty_stream(truncated_jpeg), "OSError", "truncated"),
    (faulty_stream(lambda: plain_sample((2, 4, 6))), "ValueError", "[C, H] = [2, 4] and the first has [1, 4]"),
    (faulty_stream(lambda: plain_sample((1, 5, 6))), "ValueError", "[C, H] = [1, 5] and the first has [1, 4]"),
    (faulty_stream(lambda: plain_sample(dtype=np.float64)), "ValueError", "must be float32"),
    (faulty_stream(lambda: plain_sample(label=2**40)), "ValueError", "does not fit the int32"),
    (faulty_stream(zeros, transform=fail_on_zeros), "ZeroDivisionError", "an empty image"),
    (faulty_stream(zeros, collator=AUGMENTED), "ZeroDivisionError", "an empty image"),
]
NAMES = [f"{kind}-{text}" for _, kind, text in FAULTS]


@pytest.mark.parametrize(("stream", "kind", "text"), FAULTS, ids=NAMES)
def test_a_failed_build_names_step_slot_dataset_index_and_cause(stream: Stream, kind: str, text: str) -> None:
    assert stream.build(3)["indices"].tolist() == list(range(24, 32))
    with pytest.raises(BuildError, match=r"step 4 could not be built at slot 5 \(dataset index 37\)") as caught:
        stream.build(4)
    error = caught.value
    assert (error.step, error.slot, error.index) == (4, 5, BAD)
    assert error.cause_type == kind
    assert text in error.cause_message
    assert kind in error.remote_traceback
    assert stream.build(5).step == 5


def test_a_build_error_shows_where_the_dataset_raised() -> None:
    with pytest.raises(BuildError) as caught:
        faulty_stream(raise_pair).build(4)
    assert "in raise_pair" in caught.value.remote_traceback
    assert "in raise_pair" in caught.value.__notes__[0]


@pytest.mark.parametrize(("stream", "kind", "text"), FAULTS, ids=NAMES)
def test_a_build_error_survives_pickle(stream: Stream, kind: str, text: str) -> None:
    with pytest.raises(BuildError) as caught:
        stream.build(4)
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is BuildError
    assert (str(again), again.details()) == (str(caught.value), caught.value.details())
    assert again.__notes__ == caught.value.__notes__


@dataclass(frozen=True)
class BrokenSampler:
    n: int = 4
    steps_per_epoch: int = 2

    def indices(self, epoch: int, step: int) -> NDArray[np.int64]:
        raise LookupError("lost the order")


class BrokenCollator(ImageBatchCollator):
    def plan(self, samples: Sequence[ImageSample], context: BatchContext) -> Layout:
        return Layout.plan([("words", object, (len(samples),))])


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ({"sampler": BrokenSampler()}, "LookupError"),
        ({"collator": BrokenCollator()}, "loader_service.errors.ArgumentError"),
    ],
    ids=["sampler", "collator"],
)
def test_a_fault_of_the_whole_batch_names_the_step_alone(parts: dict[str, Any], kind: str) -> None:
    whole: dict[str, Any] = {"sampler": SequentialSampler(4, 2), "collator": ImageBatchCollator()} | parts
    with pytest.raises(BuildError, match="step 3 could not be built: ") as caught:
        Stream(Faulty(zeros), seed=0, **whole).build(3)
    assert (caught.value.slot, caught.value.index, caught.value.cause_type) == (None, None, kind)


def test_an_error_of_the_allocator_passes_through_unchanged() -> None:
    def refuse(layout: Layout) -> NDArray[np.uint8]:
        raise MemoryError(f"no {layout.nbytes} bytes")

    with pytest.raises(MemoryError, match=f"no {STREAM.layout(0).nbytes} bytes"):
        STREAM.build_into(0, refuse)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8))
@settings(max_examples=30)
def test_a_batch_does_not_depend_on_what_was_built_before(steps: list[int]) -> None:
    digests = [STREAM.build(step).digest() for step in steps]
    twin = pickle.loads(pickle.dumps(STREAM))
    assert [twin.build(step).digest() for step in reversed(steps)] == digests[::-1]


@given(st.integers(0, 10**12))
@settings(max_examples=30)
def test_any_step_has_its_place_in_an_epoch(step: int) -> None:
    batch = STREAM.build(step)
    assert (batch.epoch, batch.step_in_epoch) == divmod(step, STREAM.steps_per_epoch)
    assert batch["indices"].tolist() == STREAM.sampler.indices(batch.epoch, batch.step_in_epoch).tolist()


@given(st.integers(0, 60))
@settings(max_examples=30)
def test_used_memory_gives_the_bytes_of_fresh_memory(step: int) -> None:
    layout = STREAM.layout(step)
    memory = np.full(layout.nbytes + 999, 0xFF, np.uint8)
    asked: list[Layout] = []

    def give(layout: Layout) -> NDArray[np.uint8]:
        asked.append(layout)
        return memory

    batch = STREAM.build_into(step, give)
    assert asked == [layout]
    assert batch.digest() == STREAM.build(step).digest()
    assert all(np.shares_memory(array, memory) for array in batch.values() if array.size)


def test_tensors_of_a_fresh_batch_are_aligned() -> None:
    for step in range(10):
        assert all(array.ctypes.data % ALIGNMENT == 0 for array in STREAM.build(step).values())


def test_a_transform_gets_the_random_numbers_of_its_slot() -> None:
    seen: list[int] = []

    def watch(sample: ImageSample, rng: SampleRng) -> ImageSample:
        seen.append(rng.next_u64())
        return sample

    parts = Faulty(plain_sample), SequentialSampler(64, 8), ImageBatchCollator()
    Stream(*parts, seed=9, transform=watch).build(17)
    assert seen == [SampleRng(derive(9, 2, 1, slot, 0)).next_u64() for slot in range(8)]


def test_a_sampler_with_more_samples_than_the_dataset_is_refused() -> None:
    with pytest.raises(ArgumentError, match="n = 65 samples and the dataset has 64"):
        Stream(Faulty(zeros), SequentialSampler(65, 8), ImageBatchCollator(), seed=0)


def test_a_negative_step_is_refused() -> None:
    with pytest.raises(ArgumentError, match="step is -1"):
        STREAM.build(-1)


class Answering:
    """A sampler of 8 samples that gives whatever it is told."""

    n, steps_per_epoch, fingerprint = 8, 4, "answering"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def indices(self, epoch: int, step: int) -> Any:
        return self.answer


@pytest.mark.parametrize("answer", [[], [-1], [8], [0.5], [[0]], [2**64 - 1], None, ["a"]])
def test_a_sampler_that_answers_no_indices_is_an_error_of_its_step(answer: Any) -> None:
    stream = Stream(SyntheticLines(count=8), Answering(answer), ImageBatchCollator(), seed=0)
    with pytest.raises(BuildError, match="step 5 could not be built"):
        stream.build(5)


class TorchSampler:
    """A sampler of torch's: it gives its order by iteration."""

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Any:
        return iter(range(8))


class Iterable:
    def __iter__(self) -> Any:
        return iter(range(8))


class Strange:
    """A sampler that says its numbers in other types."""

    def __init__(self, n: Any = 8, steps: Any = 4) -> None:
        self.n, self.steps_per_epoch = n, steps

    def indices(self, epoch: int, step: int) -> Any:
        return np.arange(2, dtype=np.uint8) + np.uint8(2 * step)


def collate(samples: list[Any]) -> Any:
    return np.stack(samples)


NUMBERS: dict[str, Any] = {
    "dataset": list(range(8)),
    "sampler": SequentialSampler(8, 2),
    "collator": StackCollator(),
    "seed": 0,
}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"collator": collate}, "collator is <function collate .*which has no pads, plan, write; use StackCollator"),
    ({"collator": None}, "collator is None.*use StackCollator, PadCollator or ImageBatchCollator"),
    ({"collator": StackCollator}, "collator is <class .*use StackCollator"),
    ({"sampler": TorchSampler()}, "sampler is .*which has no n, steps_per_epoch, indices; use SequentialSampler"),
    ({"sampler": Strange(steps=2.0)}, r"the sampler's steps_per_epoch is 2\.0; it must be an integer"),
    ({"sampler": Strange(steps=0)}, "the sampler's steps_per_epoch is 0"),
    ({"sampler": Strange(n=True)}, "the sampler's n is True"),
    ({"dataset": Iterable()}, "dataset is .*which has no __len__, __getitem__; a dataset has"),
    ({"dataset": None}, "dataset is None"),
    ({"transform": lambda sample: sample}, r"transform takes \(sample\); it is called as transform\(sample, rng\)"),
    ({"transform": 5}, r"transform is 5; it must be a function, which is called as transform\(sample, rng\)"),
    ({"version": 3}, "version is 3; it must be a text"),
]


@pytest.mark.parametrize(("changes", "told"), WRONG, ids=[told[:30] for _, told in WRONG])
def test_a_part_that_no_stream_can_use_is_refused_at_once_with_what_to_use(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ArgumentError, match=told):
        Stream(**NUMBERS | changes)


def test_a_dataset_whose_length_fails_is_refused_with_the_reason() -> None:
    class Unsized(list[int]):
        def __len__(self) -> int:
            raise NotImplementedError("no length here")

    with pytest.raises(ArgumentError, match=r"len\(dataset\) raised NotImplementedError: no length here"):
        Stream(**NUMBERS | {"dataset": Unsized([1])})


def test_a_samplers_numbers_of_numpy_are_taken_as_the_equal_ints() -> None:
    stream = Stream(**NUMBERS | {"sampler": Strange(np.int64(8), np.array(4))})
    assert type(stream.steps_per_epoch) is int
    batch = stream.build(6)
    assert (batch["data"].tolist(), batch.epoch, batch.step_in_epoch) == ([4, 5], 1, 2)
    assert all(type(number) is int for number in (batch.step, batch.epoch, batch.step_in_epoch, batch.rows))


def test_a_row_of_numpys_names_slot_and_index_as_ints() -> None:
    class Refusing(StackCollator):
        def write(self, samples: Any, context: Any, tensors: Any) -> None:
            row: Any = np.argmax([0, 1])
            raise SlotError(row, ValueError("no"))

    with pytest.raises(BuildError) as caught:
        Stream(**NUMBERS | {"collator": Refusing()}).build(1)
    assert (caught.value.slot, caught.value.index) == (1, 3)
    assert type(caught.value.slot) is type(caught.value.index) is int
