"""Streams whose size is what is varied: blocks of bytes of any size, and datasets of any length.

Owns `Blocks`, `Numbers` and their factories for `loader-service serve`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loader_service import SequentialSampler, ShuffledSampler, StackCollator, Stream

__all__ = ["Blocks", "Numbers", "blocks", "numbers"]

_ROWS = 16
_COUNT = 1024
_ROW_FLOATS = 1024


class Blocks:
    """Samples of `nbytes` bytes, float32 [nbytes / 4]: views of one plane, so that a read costs nothing."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._plane = np.arange(nbytes // 4 + _COUNT, dtype=np.float32)

    def __len__(self) -> int:
        return _COUNT

    def __getitem__(self, index: int) -> dict[str, NDArray[np.float32]]:
        return {"block": self._plane[index : index + self.nbytes // 4]}


class Numbers:
    """A dataset of `count` samples, float32 [1024], each filled with its index: as long as one likes, and no larger."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, NDArray[np.float32]]:
        return {"block": np.full(_ROW_FLOATS, index, np.float32)}


def blocks(batch_bytes: int) -> Stream:
    """Serve batches of 16 rows and about `batch_bytes` bytes, which is at least 64."""
    data = Blocks(batch_bytes // _ROWS)
    return Stream(data, SequentialSampler(len(data), _ROWS), StackCollator(), seed=0)


def numbers(count: int) -> Stream:
    """Serve shuffled batches of 16 rows out of `count` samples."""
    data = Numbers(count)
    return Stream(data, ShuffledSampler(count, _ROWS, seed=0), StackCollator(), seed=0)
