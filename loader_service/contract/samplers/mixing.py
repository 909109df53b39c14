"""Draws from several sources by shares, with replacement (R29 to R33).

Owns `MixingSampler`. Invariant: slot j of step s depends on (seed, epoch, s, j) alone. The shares hold in expectation:
over N draws a source with share p has the binomial deviation sqrt(N·p·(1-p)).

    u = next_double; source = the first whose cumulative share exceeds u; index = start[source] + next_int(size)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.checks import (
    MAX_BATCH_SIZE,
    MAX_N,
    checked_float,
    checked_indices,
    checked_int,
    checked_sequence,
)
from loader_service.contract.rng import STREAM_MIXING, RngArray, derive_slots
from loader_service.errors import ArgumentError

__all__ = ["MixingSampler"]


def _checked_size(name: str, value: Any) -> int:
    return checked_int(name, value, 0, MAX_N)


def _checked_share(name: str, value: Any) -> float:
    return checked_float(name, value, 0.0)


def _cumulative(shares: tuple[float, ...], drawable: Sequence[int]) -> NDArray[np.float64]:
    """Sums of the normalised shares in source order, in float64, one addition at a time: float64 [drawable]."""
    total = 0.0
    for source in drawable:
        total += shares[source]
    if not math.isfinite(total):
        raise ArgumentError(f"the shares add up to {total}; give smaller ones, only their ratios count")
    sums, reached = [], 0.0
    for source in drawable:
        reached += shares[source] / total
        sums.append(reached)
    return np.array(sums, np.float64)


class MixingSampler:
    """Draws from several sources (R29 to R33): for every slot a source by share, then an index of it, with replacement.

    Args:
        sizes: samples of each source, which lie one behind the other in the dataset (`data.ConcatDataset`).
        shares: one for each source, finite, at least 0, of any sum; a source of share or size 0 is never drawn.
        batch_size: B, in [1, 2^31 - 1].
        seed: an integer, taken modulo 2^64.
        steps_per_epoch: at least 1; None: floor(sum of sizes / batch_size), at least 1.

    Raises:
        ArgumentError: an argument outside its range, or no source that can be drawn.

    >>> MixingSampler([10, 20], [1, 3], batch_size=4, seed=0).steps_per_epoch
    7
    """

    def __init__(
        self,
        sizes: Sequence[int],
        shares: Sequence[float],
        batch_size: int,
        seed: int,
        steps_per_epoch: int | None = None,
    ) -> None:
        self.sizes = checked_sequence("sizes", sizes, _checked_size)
        self.shares = checked_sequence("shares", shares, _checked_share)
        if len(self.sizes) != len(self.shares):
            raise ArgumentError(
                f"there are {len(self.sizes)} sizes and {len(self.shares)} shares; give one share for each source"
            )
        self.batch_size = checked_int("batch_size", batch_size, 1, MAX_BATCH_SIZE)
        self.seed = checked_int("seed", seed)
        self.n = checked_int("the sum of the sizes", sum(self.sizes), 0, MAX_N)
        given = max(self.n // self.batch_size, 1) if steps_per_epoch is None else steps_per_epoch
        self.steps_per_epoch = checked_int("steps_per_epoch", given, 1, MAX_N)
        drawable = [i for i, size in enumerate(self.sizes) if size and self.shares[i] > 0]
        if not drawable:
            raise ArgumentError("no source can be drawn: every one has share 0 or size 0; give one of them both")
        self._sums = _cumulative(self.shares, drawable)
        self._starts = np.cumsum([0, *self.sizes[:-1]], dtype=np.uint64)
        self._drawable_starts = self._starts[drawable]
        self._drawable_sizes = np.array([self.sizes[source] for source in drawable], np.uint64)

    def __repr__(self) -> str:
        return f"MixingSampler({self.sizes}, {self.shares}, {self.batch_size}, {self.seed}, {self.steps_per_epoch})"

    def indices(self, epoch: int, step: int) -> NDArray[np.int64]:
        """Give the dataset indices of the batch, int64 [B]. Raises ArgumentError for another epoch or step."""
        epoch = checked_int("epoch", epoch, 0, 2**64 - 1)
        step = checked_int("step in epoch", step, 0, self.steps_per_epoch - 1)
        slots = np.arange(self.batch_size, dtype=np.uint64)
        rng = RngArray(derive_slots(self.seed, epoch, step, slots, STREAM_MIXING))
        drawn = np.searchsorted(self._sums, rng.next_double(), side="right")
        drawn = np.minimum(drawn, len(self._sums) - 1)  # rounding may leave the last sum below u: the fallback
        return (self._drawable_starts[drawn] + rng.next_int(self._drawable_sizes[drawn])).astype(np.int64)

    def sources(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The source that each dataset index belongs to, int64 [B]."""
        ends = np.cumsum(self.sizes, dtype=np.uint64)
        return np.searchsorted(ends, checked_indices("indices", indices, self.n).astype(np.uint64), side="right")
