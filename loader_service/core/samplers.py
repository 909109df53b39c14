"""Samplers: which dataset indices stand in the batch at (epoch, step in epoch) (section 3).

Owns the pure functions (epoch, step) -> int64 indices [B]. Invariant: the answer depends on the constructor's
arguments and (epoch, step) alone, costs the same at any step, and keeps nothing between calls.

    steps_per_epoch S = floor(n / B) with drop-last (the default), else ceil(n / B) with a short last batch
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from loader_service.core.permutation import permute
from loader_service.core.rng import STREAM_EPOCH_ORDER, derive
from loader_service.errors import ArgumentError

__all__ = ["Sampler", "SequentialSampler", "ShuffledSampler"]

_MAX_N = 2**63


class Sampler(Protocol):
    """What a stream asks of a sampler. `n` bounds the indices: all lie in [0, n)."""

    @property
    def n(self) -> int: ...
    @property
    def steps_per_epoch(self) -> int: ...
    def indices(self, epoch: int, step: int) -> NDArray[np.int64]:
        """The dataset indices of one batch, int64 [B]; epoch >= 0, 0 <= step < steps_per_epoch."""
        ...


def _checked_int(name: str, value: int, low: int, high: int) -> int:
    try:
        value = index(value)
    except TypeError:
        raise ArgumentError(f"{name} is {value!r}; it must be an integer") from None
    if not low <= value <= high:
        raise ArgumentError(f"{name} is {value}; it must lie in [{low}, {high}]")
    return value


def _settle_int(sampler: SequentialSampler | ShuffledSampler, name: str, low: int, high: int) -> None:
    """Check an argument and keep it as an int: a numpy integer would overflow in 64-bit arithmetic."""
    object.__setattr__(sampler, name, _checked_int(name, getattr(sampler, name), low, high))


def _steps_per_epoch(n: int, batch_size: int, drop_last: bool) -> int:
    steps = n // batch_size if drop_last else -(-n // batch_size)
    if steps == 0 and n == 0:
        raise ArgumentError("n is 0: there is nothing to draw from; give the sampler at least one sample")
    if steps == 0:
        raise ArgumentError(
            f"n = {n} samples make no full batch of batch_size = {batch_size} and drop_last is set, so an "
            "epoch would have no steps; lower batch_size or pass drop_last=False"
        )
    return steps


def _positions(sampler: SequentialSampler | ShuffledSampler, step: int) -> NDArray[np.int64]:
    """Positions [step·B, step·B + B) of the epoch's order, cut at n: int64 [B]."""
    step = _checked_int("step in epoch", step, 0, sampler.steps_per_epoch - 1)
    first = step * sampler.batch_size
    return np.arange(first, min(first + sampler.batch_size, sampler.n), dtype=np.int64)


@dataclass(frozen=True)
class SequentialSampler:
    """Position p of every epoch is index p.

    n: dataset size, 1 to 2^63; batch_size B: at least 1. Raises ArgumentError where an epoch has no step.

    >>> SequentialSampler(10, 4).indices(epoch=0, step=1)
    array([4, 5, 6, 7])
    """

    n: int
    batch_size: int
    drop_last: bool = True

    def __post_init__(self) -> None:
        _settle_int(self, "n", 0, _MAX_N)
        _settle_int(self, "batch_size", 1, 2**31 - 1)
        _steps_per_epoch(self.n, self.batch_size, self.drop_last)

    @property
    def steps_per_epoch(self) -> int:
        return _steps_per_epoch(self.n, self.batch_size, self.drop_last)

    def indices(self, epoch: int, step: int) -> NDArray[np.int64]:
        """Dataset indices of the batch, int64 [B]."""
        _checked_int("epoch", epoch, 0, 2**64 - 1)
        return _positions(self, step)


@dataclass(frozen=True)
class ShuffledSampler:
    """Position p of epoch e is index permute(p, n, derive(seed, e, 0, 0, 101)): every index once an epoch.

    Arguments as SequentialSampler; seed: any int, taken modulo 2^64.
    """

    n: int
    batch_size: int
    seed: int
    drop_last: bool = True

    def __post_init__(self) -> None:
        _settle_int(self, "n", 0, _MAX_N)
        _settle_int(self, "batch_size", 1, 2**31 - 1)
        _settle_int(self, "seed", -(2**63), 2**64 - 1)
        _steps_per_epoch(self.n, self.batch_size, self.drop_last)

    @property
    def steps_per_epoch(self) -> int:
        return _steps_per_epoch(self.n, self.batch_size, self.drop_last)

    def indices(self, epoch: int, step: int) -> NDArray[np.int64]:
        """Dataset indices of the batch, int64 [B]."""
        epoch = _checked_int("epoch", epoch, 0, 2**64 - 1)
        key = derive(self.seed, epoch, 0, 0, STREAM_EPOCH_ORDER)
        return permute(_positions(self, step), self.n, key)
