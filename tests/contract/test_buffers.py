"""Pooled memory: it comes back when the last array over it dies, and never before; scratch stays with its thread."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from loader_service.contract.buffers import BufferPool, scratch, size_class
from loader_service.contract.layout import ALIGNMENT, Layout

LAYOUT = Layout.plan([("x", "float32", [1000, 3]), ("y", "int32", [7])])


def address(memory: NDArray[Any]) -> int:
    return int(memory.ctypes.data)


def idle(pool: BufferPool) -> int:
    return sum(len(buffers) for buffers in pool._idle.values())


@given(st.integers(0, 2**40))
def test_size_classes_cover_what_is_asked_and_waste_at_most_an_eighth(nbytes: int) -> None:
    size = size_class(nbytes)
    assert max(nbytes, 4096) <= size <= max(nbytes + nbytes // 8 + 1, 4096)
    assert size_class(size) == size


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 4095, 4096, 4097, 2**20 - 1, 2**20, 2**20 + 1])
def test_memory_is_aligned_writeable_and_large_enough(nbytes: int) -> None:
    memory = BufferPool().allocate(Layout.plan([("x", "uint8", [nbytes])]))
    assert memory.dtype == np.uint8
    assert memory.ndim == 1
    assert len(memory) >= nbytes
    assert address(memory) % ALIGNMENT == 0
    memory[...] = 1


KEEPS: list[Callable[[NDArray[Any]], Any]] = [
    lambda x: x,
    lambda x: x[10:20],
    lambda x: x[:, 1],
    lambda x: x[::2][1:].T,
    lambda x: x.reshape(-1).view(np.int32),
    lambda x: memoryview(x),  # type: ignore[arg-type]  # an array is a buffer
    lambda x: [x[0], x[1]],
    lambda x: np.asarray(x[5]),
]


@pytest.mark.parametrize("keep", KEEPS)
def test_memory_comes_back_only_when_the_last_view_of_it_has_died(keep: Callable[[NDArray[Any]], Any]) -> None:
    pool = BufferPool()
    tensors = LAYOUT.views(pool.allocate(LAYOUT))
    where = address(tensors["x"])
    tensors["x"][...] = 5
    kept = keep(tensors["x"])
    del tensors
    gc.collect()
    assert idle(pool) == 0
    other = pool.allocate(LAYOUT)
    other[...] = 0xFF
    assert address(other) != where
    assert np.asarray(kept).view(np.float32).max() == 5
    del kept
    assert idle(pool) == 1
    assert address(pool.allocate(LAYOUT)) == where


def test_memory_that_is_held_is_never_given_out_again() -> None:
    pool = BufferPool()
    held: dict[int, NDArray[np.uint8]] = {}
    rng = np.random.default_rng(0)
    for turn in range(500):
        memory = pool.allocate(LAYOUT)
        memory[: LAYOUT.nbytes] = turn % 251
        assert all(not np.shares_memory(memory, other) for other in held.values())
        held[turn] = memory
        for key in list(held):
            if rng.random() < 0.3:
                assert (held.pop(key)[: LAYOUT.nbytes] == key % 251).all()
        del memory


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_a_pool_keeps_no_more_than_its_limit_of_one_size(keep: int) -> None:
    pool = BufferPool(keep)
    held = [pool.allocate(LAYOUT) for _ in range(keep + 3)]
    assert len({address(memory) for memory in held}) == keep + 3
    held.clear()
    assert idle(pool) == keep


def test_other_sizes_have_buffers_of_their_own() -> None:
    pool = BufferPool()
    small, large = (Layout.plan([("x", "uint8", [nbytes])]) for nbytes in (100, 10**6))
    where = address(pool.allocate(small))
    assert len(pool.allocate(large)) >= 10**6
    assert address(pool.allocate(small)) == where
    assert idle(pool) == 2


def test_memory_may_outlive_its_pool() -> None:
    memory = BufferPool().allocate(LAYOUT)
    memory[...] = 3
    gc.collect()
    assert (memory == 3).all()


def test_threads_never_share_memory() -> None:
    pool, wrong = BufferPool(), []
    barrier = threading.Barrier(4)

    def work(mark: int) -> None:
        barrier.wait()
        for _ in range(300):
            memory = pool.allocate(LAYOUT)
            memory[...] = mark
            if not (memory == mark).all():
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert 1 <= idle(pool) <= 4


def test_scratch_of_one_use_is_the_same_memory_again() -> None:
    first = scratch("test one", (4, 5))
    assert first.dtype == np.float32
    assert first.flags.c_contiguous
    assert address(first) % ALIGNMENT == 0
    assert address(scratch("test one", (20,))) == address(first)
    assert address(scratch("test one", (5,), np.float64)) == address(first)
    assert not np.shares_memory(scratch("test two", (4, 5)), first)


def test_scratch_grows_and_does_not_shrink() -> None:
    scratch("test grow", (10,))
    large = scratch("test grow", (100_000,))
    assert large.shape == (100_000,)
    assert address(scratch("test grow", (10,))) == address(large)


@pytest.mark.parametrize("shape", [(), (0,), (1, 0, 5), (1, 1, 1)])
def test_scratch_may_be_empty_or_a_scalar(shape: tuple[int, ...]) -> None:
    assert scratch("test shape", shape).shape == shape


def test_each_thread_has_scratch_of_its_own() -> None:
    own, others = scratch("test threads", (9,)), []
    thread = threading.Thread(target=lambda: others.append(scratch("test threads", (9,))))
    thread.start()
    thread.join()
    assert not np.shares_memory(own, others[0])
