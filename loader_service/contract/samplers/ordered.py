"""Samplers that give every index once an epoch, in order or in a keyed order (R27, R28).

Owns `SequentialSampler` and `ShuffledSampler`. Invariant: nothing is kept between calls, and no table is built.

    position p = step·B + i;  sequential: index p;  shuffled: index permute(p, n, derive(seed, e, 0, 0, 101))
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.checks import MAX_BATCH_SIZE, MAX_N, checked_bool, checked_int, set_fields
from loader_service.contract.permutation import permute
from loader_service.contract.rng import STREAM_EPOCH_ORDER, derive
from loader_service.contract.samplers.sampler import count_steps

__all__ = ["SequentialSampler", "ShuffledSampler"]


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
        set_fields(self, **_checked(self))
        count_steps(self.n, self.batch_size, self.drop_last)

    @property
    def steps_per_epoch(self) -> int:
        return count_steps(self.n, self.batch_size, self.drop_last)

    def indices(self, epoch: int, step: int) -> NDArray[np.int64]:
        """Dataset indices of the batch, int64 [B]."""
        checked_int("epoch", epoch, 0, 2**64 - 1)
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
        set_fields(self, **_checked(self), seed=checked_int("seed", self.seed))
        count_steps(self.n, self.batch_size, self.drop_last)

    @property
    def steps_per_epoch(self) -> int:
        return count_steps(self.n, self.batch_size, self.drop_last)

    def indices(self, epoch: int, step: int) -> NDArray[np.int64]:
        """Dataset indices of the batch, int64 [B]."""
        epoch = checked_int("epoch", epoch, 0, 2**64 - 1)
        return permute(_positions(self, step), self.n, derive(self.seed, epoch, 0, 0, STREAM_EPOCH_ORDER))


def _checked(sampler: SequentialSampler | ShuffledSampler) -> dict[str, int]:
    """The fields that both have. Raises ArgumentError."""
    return {
        "n": checked_int("n", sampler.n, 0, MAX_N),
        "batch_size": checked_int("batch_size", sampler.batch_size, 1, MAX_BATCH_SIZE),
        "drop_last": checked_bool("drop_last", sampler.drop_last),
    }


def _positions(sampler: SequentialSampler | ShuffledSampler, step: int) -> NDArray[np.int64]:
    """Positions [step·B, step·B + B) of the epoch's order, cut at n: int64 [B]."""
    first = checked_int("step in epoch", step, 0, sampler.steps_per_epoch - 1) * sampler.batch_size
    return np.arange(min(sampler.batch_size, sampler.n - first), dtype=np.int64) + np.int64(first)
