"""Once warm, building allocates nothing of 4 KiB or more, however many rows a batch has."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from loader_service.augment import GainOffset
from loader_service.contract.collate import ImageBatchCollator
from loader_service.contract.fused import CompiledMode, set_compiled
from loader_service.contract.ragged import RaggedImages
from loader_service.contract.samplers import ShuffledSampler
from loader_service.contract.stream import Stream
from loader_service.data import SyntheticLines
from loader_service.loader import Loader

PAGE = 4096


class ReadBefore(SyntheticLines):
    """Gives the same rows for every batch, so that what is measured is the builder's alone."""

    __slots__ = ()
    rows: RaggedImages

    def __getitem__(self, index: int, /) -> object:  # type: ignore[override]  # never asked
        raise AssertionError(index)

    def read_rows(self, indices: NDArray[np.int64]) -> RaggedImages:
        return type(self).rows


@pytest.fixture(autouse=True)
def _traced() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    tracemalloc.stop()
    gc.enable()


def growth(batch_size: int) -> int:
    """The most bytes in use at once while a batch is built, over what was in use before."""
    lines = ReadBefore(2 * batch_size, height=2)
    ReadBefore.rows = SyntheticLines(2 * batch_size, height=2).read_rows(np.arange(batch_size))
    stream = Stream(
        lines,
        ShuffledSampler(2 * batch_size, batch_size, 0),
        ImageBatchCollator(4, augmentation=GainOffset()),
        seed=0,
        version="rows that were read before",
    )
    loader = Loader(stream)
    for step in range(6):
        loader.get(step).release()
    tracemalloc.start()
    most = 0
    for step in range(6, 12):
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        loader.get(step).release()
        most = max(most, tracemalloc.get_traced_memory()[1] - before)
    tracemalloc.stop()
    return most


@pytest.mark.parametrize("mode", ["off", "on"])
def test_what_is_allocated_does_not_grow_with_the_rows(mode: CompiledMode) -> None:
    set_compiled(mode)
    block = growth(256)  # the most rows that numpy handles together, with arrays of at most 256 · 8 bytes
    assert block < 5 * PAGE
    for batch_size in (128, 1024, 2048):
        assert growth(batch_size) - block < PAGE, batch_size
