"""Samplers that give every index once an epoch, in order or in a keyed order (R27, R28).

Owns `SequentialSampler` and `ShuffledSampler`. Invariant: no table of an epoch is built.

    position p = step·B + i;  sequential: index p;  shuffled: index permute(p, n, derive(seed, e, 0, 0, 101))
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.checks import MAX_BATCH_SIZE, MAX_N, checked_bool, checked_int, set_fields
from loader_service.contract.permutation import permute_range
from loader_service.contract.rng import STREAM_EPOCH_ORDER, derive
from loader_service.contract.samplers.sampler import count_steps

__all__ = ["SequentialSampler", "ShuffledSampler"]


@dataclass(frozen=True)
class SequentialSampler:
    """The samples in their order (R27): position p of every epoch is index p.

    Args:
        n: samples of the dataset, in [1, 2^63].
        batch_size: B, in [1, 2^31 - 1].
        drop_last: leave out a last batch that would be short.

    Raises:
        ArgumentError: an argument outside its range, or an epoch without a step.

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
        """S, the number of steps of an epoch, at least 1 (R24)."""
        return count_steps(self.n, self.batch_size, self.drop_last)

    def indices(self, epoch: int, step: int) -> NDArray[np.int64]:
        """Give the dataset indices of the batch, int64 [B]. Raises ArgumentError for another epoch or step."""
        return _fresh(self, epoch, step)

    def write_indices(self, epoch: int, step: int, out: NDArray[np.int64]) -> int:
        """Write the batch's indices to the front of `out`, int64 [at least min(B, n)]. Returns how many."""
        checked_int("epoch", epoch, 0, 2**64 - 1)
        first, count = _span(self, step)
        positions = out[:count]
        positions.fill(1)
        np.add.accumulate(positions, out=positions)
        positions += np.int64(first - 1)
        return count


@dataclass(frozen=True)
class ShuffledSampler:
    """Every sample once an epoch in a keyed order: position p is index permute(p, n, derive(seed, e, 0, 0, 101)) (R28).

    Args:
        n: samples of the dataset, in [1, 2^63].
        batch_size: B, in [1, 2^31 - 1].
        seed: an integer, taken modulo 2^64.
        drop_last: leave out a last batch that would be short.

    Raises:
        ArgumentError: an argument outside its range, or an epoch without a step.

    >>> ShuffledSampler(10, 4, seed=0).steps_per_epoch
    2
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
        """S, the number of steps of an epoch, at least 1 (R24)."""
        return count_steps(self.n, self.batch_size, self.drop_last)

    def indices(self, epoch: int, step: int) -> NDArray[np.int64]:
        """Give the dataset indices of the batch, int64 [B]. Raises ArgumentError for another epoch or step."""
        return _fresh(self, epoch, step)

    def write_indices(self, epoch: int, step: int, out: NDArray[np.int64]) -> int:
        """Write the batch's indices to the front of `out`, int64 [at least min(B, n)]. Returns how many."""
        epoch = checked_int("epoch", epoch, 0, 2**64 - 1)
        first, count = _span(self, step)
        permute_range(first, out[:count], self.n, derive(self.seed, epoch, 0, 0, STREAM_EPOCH_ORDER))
        return count


def _checked(sampler: SequentialSampler | ShuffledSampler) -> dict[str, int]:
    """The fields that both have. Raises ArgumentError."""
    return {
        "n": checked_int("n", sampler.n, 0, MAX_N),
        "batch_size": checked_int("batch_size", sampler.batch_size, 1, MAX_BATCH_SIZE),
        "drop_last": checked_bool("drop_last", sampler.drop_last),
    }


def _span(sampler: SequentialSampler | ShuffledSampler, step: int) -> tuple[int, int]:
    """The first position of the batch in the epoch's order, and the number of positions, cut at n."""
    first = checked_int("step in epoch", step, 0, sampler.steps_per_epoch - 1) * sampler.batch_size
    return first, min(sampler.batch_size, sampler.n - first)


def _fresh(sampler: SequentialSampler | ShuffledSampler, epoch: int, step: int) -> NDArray[np.int64]:
    """The indices in an array of their own."""
    out = np.empty(min(sampler.batch_size, sampler.n), np.int64)
    return out[: sampler.write_indices(epoch, step, out)]
