"""After warm-up the next batch allocates nothing of 4 KiB or more, beyond what the dataset allocates."""

from __future__ import annotations

import gc
import sys
import tracemalloc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loader_service.contract.augment import Blur, Compose, Erase, GainOffset, Noise, Shear
from loader_service.contract.collate import Collator, ImageBatchCollator, PadCollator, StackCollator
from loader_service.contract.rng import SampleRng
from loader_service.contract.samplers import BucketedSampler, MixingSampler, Sampler, ShuffledSampler
from loader_service.contract.stream import Stream
from loader_service.data import SyntheticLines, synthetic_lines
from loader_service.loader import Loader

LIMIT = 4096
SMALL = 20 * 1024
"""What the 128 slots' numbers, keys and views take together, none of them near a page."""
SIZES = np.arange(2048) % 50


@pytest.fixture(autouse=True)
def _traced() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    tracemalloc.stop()
    gc.enable()


def largest_growth(loader: Loader, steps: range) -> int:
    """The most bytes in use at once while any of `steps` was built, over what was in use before.

    Each is built three times and the least counts: what other threads of the process allocate meanwhile is not ours.
    """
    tracemalloc.start()
    return max(min(_growth(loader, step) for _ in range(3)) for step in steps)


def _growth(loader: Loader, step: int) -> int:
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    batch = loader.get(step)
    growth = tracemalloc.get_traced_memory()[1] - before
    batch.release()
    return growth


def large_blocks(loader: Loader, steps: range) -> list[tracemalloc.StatisticDiff]:
    """Find where blocks of `LIMIT` bytes or more were left in use by building `steps`."""
    tracemalloc.start(10)
    loader.get(steps.start)
    before = tracemalloc.take_snapshot()
    kept = [loader.get(step) for step in steps]
    after = tracemalloc.take_snapshot()
    del kept
    return [one for one in after.compare_to(before, "lineno") if one.size_diff >= LIMIT]


def gain(image: NDArray[np.float32], rng: SampleRng) -> None:
    """An augmentation of a user's own: on contiguous scratch, one image at a time."""
    image *= rng.next_single()


def warm(stream: Stream, **arguments: Any) -> Loader:
    """A loader that has built an epoch and more: samples are cached, all size classes and scratch buffers reached."""
    for index in range(len(stream.dataset)):
        stream.dataset[index]
    loader = Loader(stream, **arguments)
    for step in range(stream.steps_per_epoch + 1):
        loader.get(step).release()
    return loader


def lines(collator: Collator[Any], sampler: Sampler | None = None) -> Stream:
    return Stream(SyntheticLines(), sampler or ShuffledSampler(2048, 128, 0), collator, seed=0)


EVERYTHING = Compose(GainOffset(), Noise(), Blur(), Shear(), Erase())
STREAMS: dict[str, Stream] = {
    "line images": synthetic_lines(),
    "without augmentation": synthetic_lines(augment=False),
    "every augmentation": lines(ImageBatchCollator(4, augmentation=EVERYTHING)),
    "an augmentation of one's own": lines(ImageBatchCollator(4, augmentation=gain)),
    "mixing": lines(ImageBatchCollator(4), MixingSampler([48, 2000], [1, 3], 128, 0)),
    "bucketed": lines(ImageBatchCollator(4), BucketedSampler(SIZES, 128, 4, 0)),
}


@pytest.mark.parametrize("name", STREAMS)
def test_after_warm_up_building_a_batch_allocates_nothing_large(name: str) -> None:
    stream = STREAMS[name]
    assert stream.layout(0).nbytes > 4_000_000
    assert largest_growth(warm(stream), range(16, 20)) < SMALL


def test_no_block_of_a_page_or_more_is_left_by_the_reference_workload() -> None:
    loader = warm(STREAMS["line images"])
    held = [loader.get(step) for step in range(4)]  # as many as are kept below
    held.clear()
    assert large_blocks(loader, range(16, 18)) == []


def test_what_is_allocated_does_not_grow_with_the_images() -> None:
    growth = []
    for height in (8, 64):
        dataset = SyntheticLines(256, height, min_width=250, max_width=250)
        collator = ImageBatchCollator(4, augmentation=GainOffset())
        loader = warm(Stream(dataset, ShuffledSampler(256, 64, 0), collator, seed=0))
        growth.append(largest_growth(loader, range(4, 8)))
    assert abs(growth[1] - growth[0]) < 1024


def test_a_rank_that_reads_its_rows_allocates_nothing_large_either() -> None:
    assert largest_growth(warm(STREAMS["line images"], shard=(1, 4)), range(16, 32)) < SMALL


def test_other_collators_write_into_pooled_memory_too() -> None:
    rows = [np.full(300, i, np.float32) for i in range(256)]
    for collator in (StackCollator(), PadCollator()):
        stream = Stream(rows, ShuffledSampler(256, 64, 0), collator, seed=0)
        assert stream.layout(0).nbytes > 64 * 300 * 4
        assert largest_growth(warm(stream), range(8, 16)) < SMALL


def test_samples_live_no_longer_than_the_build_of_their_batch() -> None:
    born: list[weakref.ref[NDArray[np.int64]]] = []

    def remember(sample: int, rng: SampleRng) -> NDArray[np.int64]:
        array = np.full(3, sample)
        born.append(weakref.ref(array))
        return array

    loader = Loader(Stream(range(8), ShuffledSampler(8, 4, 0), StackCollator(), seed=0, transform=remember))
    batches = [loader.get(step) for step in range(3)]
    assert len(batches) * 4 == len(born)
    assert all(reference() is None for reference in born)


def test_batches_that_are_held_are_in_memory_of_their_own() -> None:
    stream = STREAMS["line images"]
    loader = warm(stream)
    held = [loader.get(step) for step in range(16, 24)]
    digests = [batch.digest() for batch in held]
    for step in range(24, 32):
        loader.get(step).release()
    assert [batch.digest() for batch in held] == digests == [stream.build(step).digest() for step in range(16, 24)]


def test_a_batch_in_used_memory_has_the_bytes_of_one_in_fresh_memory() -> None:
    sampler = replace(ShuffledSampler(2048, 100, 3), drop_last=False)
    stream = lines(ImageBatchCollator(4, augmentation=EVERYTHING), sampler)
    loader = Loader(stream)
    for step in (20, 0, 7, 41, 0):  # batches of 100 rows and of 48
        assert loader.get(step).digest() == stream.build(step).digest()


class Blocks:
    """A trace function that notes new blocks of a page or more, with the lines of this package that asked for them."""

    def __init__(self) -> None:
        self._known = {self._place(trace) for trace in self._large()}
        self._traced = tracemalloc.get_traced_memory()[0]
        self._looking = False
        self.found: dict[str, int] = {}

    @staticmethod
    def _large() -> list[tracemalloc.Trace]:
        return [trace for trace in tracemalloc.take_snapshot().traces if trace.size >= LIMIT]

    @staticmethod
    def _place(trace: tracemalloc.Trace) -> tuple[str, int]:
        return str(trace.traceback), trace.size

    def __call__(self, frame: Any, event: str, argument: Any) -> Any:
        if self._looking or "loader_service" not in frame.f_code.co_filename:
            return None
        self._looking = True
        if tracemalloc.get_traced_memory()[0] - self._traced >= LIMIT:
            for trace in self._large():
                of_dataset = any("/data/" in one.filename for one in trace.traceback)
                if self._place(trace) not in self._known and not of_dataset:
                    self.found[str(trace.traceback)] = trace.size
        self._traced = tracemalloc.get_traced_memory()[0]
        self._looking = False
        return self


@pytest.mark.parametrize("batch_size", [128, 1024, 2048])
def test_a_build_takes_no_block_of_a_page_or_more_beyond_its_dataset(batch_size: int) -> None:
    """The reference workload (R66), looked at line by line."""
    stream = synthetic_lines(batch_size=batch_size)
    loader = Loader(stream)
    tracemalloc.start(6)
    for step in range(2 * stream.steps_per_epoch + 4):
        loader.get(step).release()
    blocks, before = Blocks(), sys.gettrace()
    sys.settrace(blocks)
    try:
        loader.get(stream.steps_per_epoch + 1)
    finally:
        sys.settrace(before)
    assert blocks.found == {}
