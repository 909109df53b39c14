"""Memory that is used again: pooled batches in this process, scratch arrays of each thread (R64, R66).

Owns `BufferPool` and `scratch`. Invariant: a pooled buffer is given out again only after the last array over it has
died, so a batch never changes under its holder's hands; after warm-up neither allocates.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from loader_service.contract.checks import MAX_N, checked_int
from loader_service.contract.layout import ALIGNMENT, Layout

__all__ = ["BufferPool", "aligned_empty", "kept", "scratch", "size_class"]

_SMALLEST = 4096
_local = threading.local()


def size_class(nbytes: int) -> int:
    """Round `nbytes` up to one of eight sizes in each power of two, at least 4096. Raises ArgumentError below 0.

    >>> size_class(1), size_class(5000), size_class(9 << 20)
    (4096, 5120, 9437184)
    """
    nbytes = checked_int("nbytes", nbytes, 0)
    if nbytes <= _SMALLEST:
        return _SMALLEST
    unit = 1 << max(nbytes.bit_length() - 4, 0)
    return -(-nbytes // unit) * unit


def aligned_empty(nbytes: int) -> NDArray[np.uint8]:
    """Take fresh memory, uint8 [nbytes], that begins at a multiple of 64. Raises ArgumentError below 0."""
    nbytes = checked_int("nbytes", nbytes, 0, MAX_N - 1 - ALIGNMENT)
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + nbytes]


class _Loan:
    """One buffer on loan: numpy keeps it as the base of every array over the buffer, so it dies with the last."""

    __slots__ = ("__array_interface__", "_memory", "_pool")

    def __init__(self, pool: BufferPool, memory: NDArray[np.uint8]) -> None:
        self._pool, self._memory = pool, memory
        self.__array_interface__: dict[str, Any] = memory.__array_interface__

    def __del__(self) -> None:
        self._pool._give_back(self._memory)


class BufferPool:
    """Buffers for batches, used again after the last array over them has died (R64). Thread-safe.

    Args:
        keep: how many idle buffers of one size are kept, at least 1.

    Raises:
        ArgumentError: `keep` is none.
    """

    def __init__(self, keep: int = 4) -> None:
        self._keep = checked_int("keep", keep, 1)
        self._idle: defaultdict[int, list[NDArray[np.uint8]]] = defaultdict(list)

    def allocate(self, layout: Layout) -> NDArray[np.uint8]:
        """Give writeable memory for `layout`: uint8 [>= nbytes], 64-byte aligned, any content; it returns by itself."""
        size = size_class(layout.nbytes)
        try:
            memory = self._idle[size].pop()
        except IndexError:
            memory = aligned_empty(size)
        return np.asarray(_Loan(self, memory))

    def _give_back(self, memory: NDArray[np.uint8]) -> None:
        idle = self._idle[len(memory)]
        if len(idle) < self._keep:
            idle.append(memory)


def scratch(use: str, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Give a C-contiguous array of this thread, with any content; the next call for the same use gives the same memory.

    Args:
        use: names what it is for.
        shape: sizes of at least 0.
        dtype: of numbers.

    Raises:
        ArgumentError: an argument is none of these.
    """
    arrays: dict[str, NDArray[np.uint8]] = _local.__dict__.setdefault("arrays", {})
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    memory = arrays.get(use)
    if memory is None or len(memory) < nbytes:
        memory = arrays[use] = aligned_empty(size_class(nbytes))
    return memory[:nbytes].view(dtype).reshape(shape)


_PLACES = 8


def kept(
    use: str, tag: Hashable, shape: tuple[int, ...], dtype: DTypeLike, fill: Callable[[NDArray[Any]], None]
) -> NDArray[Any]:
    """Give an array of this thread as `fill(array)` wrote it for `tag`, which is called where another stands there now.

    There is one array for each of eight groups of tags, all in one scratch array. `shape` and `dtype` are the same for
    every tag of a use; what is given is read, and only until the next call.
    """
    place = hash(tag) % _PLACES
    array: NDArray[Any] = scratch(use, (_PLACES, *shape), dtype)[place]
    tags = _local.__dict__.setdefault("tags", {})
    if tags.get((use, place)) != tag:
        tags.pop((use, place), None)
        fill(array)
        tags[use, place] = tag
    return array
