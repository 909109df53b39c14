"""Batches of samples of like length, in a shuffled order (R34 to R37).

Owns `BucketedSampler`. Invariant: an epoch's plan is a pure function of the arguments and the epoch; the plans of the
current and the previous epoch are kept, so that readers on both sides of an epoch's end build none twice. O(n log n).

    keyed order of all indices (103) -> the first S·B -> pools of B·pool_batches, each sorted by (length << 32) | index
    -> batches of B; batch t of the sorted order stands at step permute(t, S, derive(seed, e, 1, 0, 104))
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.checks import MAX_BATCH_SIZE, checked_bool, checked_int, checked_integers
from loader_service.contract.permutation import permute
from loader_service.contract.rng import STREAM_BATCH_ORDER, STREAM_BUCKET_ORDER, derive
from loader_service.contract.samplers.sampler import count_steps
from loader_service.errors import ArgumentError

__all__ = ["BucketedSampler"]

_KEPT_PLANS = 2
_INDEX_BITS = np.uint64(32)


def _checked_lengths(lengths: Sequence[int] | NDArray[np.integer]) -> NDArray[np.uint32]:
    given = checked_integers("lengths", lengths)
    if given.size >= 2**32:
        raise ArgumentError(f"there are {given.size} lengths; at most 2^32 - 1 can be bucketed")
    if given.size and not 0 <= int(given.min()) <= int(given.max()) < 2**32:
        raise ArgumentError(f"lengths lie in [{given.min()}, {given.max()}]; they must lie in [0, 2^32)")
    checked = given.astype(np.uint32)
    checked.flags.writeable = False
    return checked


class BucketedSampler:
    """Every index once an epoch (without a rest that makes no batch), batched with others of like length.

    Args:
        lengths: of every sample, integers [n] in [0, 2^32), n < 2^32.
        batch_size: B, in [1, 2^31 - 1].
        pool_batches: batches that are sorted together, at least 1.
        seed: an integer, taken modulo 2^64.
        drop_last: leave out a rest that makes no batch; without it the short batch may come at any step (R36).

    Raises:
        ArgumentError: an argument outside its range, or an epoch without a step.

    >>> BucketedSampler([9, 1, 5, 2], batch_size=2, pool_batches=2, seed=0).steps_per_epoch
    2
    """

    def __init__(
        self,
        lengths: Sequence[int] | NDArray[np.integer],
        batch_size: int,
        pool_batches: int,
        seed: int,
        drop_last: bool = True,
    ) -> None:
        self.lengths = _checked_lengths(lengths)
        self.n = len(self.lengths)
        self.batch_size = checked_int("batch_size", batch_size, 1, MAX_BATCH_SIZE)
        self.pool_batches = checked_int("pool_batches", pool_batches, 1, MAX_BATCH_SIZE)
        self.seed = checked_int("seed", seed)
        self.drop_last = checked_bool("drop_last", drop_last)
        self.steps_per_epoch = count_steps(self.n, self.batch_size, self.drop_last)
        self._plans: OrderedDict[int, tuple[NDArray[np.uint32], NDArray[np.int64]]] = OrderedDict()
        self._lock = Lock()

    def __repr__(self) -> str:
        arguments = (self.batch_size, self.pool_batches, self.seed, self.drop_last)
        return f"BucketedSampler({self.n} lengths, {', '.join(map(str, arguments))})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as its arguments: the plans are made again, and a lock cannot travel."""
        return type(self), (self.lengths, self.batch_size, self.pool_batches, self.seed, self.drop_last)

    def indices(self, epoch: int, step: int) -> NDArray[np.int64]:
        """Give the dataset indices of the batch, int64 [B]. Raises ArgumentError for another epoch or step."""
        epoch = checked_int("epoch", epoch, 0, 2**64 - 1)
        step = checked_int("step in epoch", step, 0, self.steps_per_epoch - 1)
        ordered, batch_at = self._plan(epoch)
        first = int(batch_at[step]) * self.batch_size
        return ordered[first : first + self.batch_size].astype(np.int64)

    def _plan(self, epoch: int) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """(indices in the sorted order, which batch of it stands at each step)."""
        with self._lock:
            if epoch not in self._plans:
                self._plans[epoch] = self._sorted_order(epoch), self._batch_order(epoch)
                if len(self._plans) > _KEPT_PLANS:
                    del self._plans[next(old for old in self._plans if old not in (epoch, epoch - 1))]
            self._plans.move_to_end(epoch)
            return self._plans[epoch]

    def _sorted_order(self, epoch: int) -> NDArray[np.uint32]:
        """The epoch's indices, each pool sorted: uint32 [S·B], or [n] where the rest is kept."""
        order = permute(np.arange(self.n, dtype=np.uint64), self.n, derive(self.seed, epoch, 0, 0, STREAM_BUCKET_ORDER))
        kept = order[: self.steps_per_epoch * self.batch_size]
        keys = (self.lengths[kept].astype(np.uint64) << _INDEX_BITS) | kept
        pool = min(self.batch_size * self.pool_batches, len(keys))  # more would be the same, and overflow a shape
        whole = len(keys) // pool * pool
        keys[:whole].reshape(-1, pool).sort(axis=1)  # [pools, B·pool_batches], in place
        keys[whole:].sort()
        return keys.astype(np.uint32)  # the lower half: the index

    def _batch_order(self, epoch: int) -> NDArray[np.int64]:
        """For each step the batch of the sorted order that stands there: int64 [S], a permutation's inverse."""
        batches = np.arange(self.steps_per_epoch, dtype=np.int64)
        batch_at = np.empty_like(batches)
        batch_at[permute(batches, len(batches), derive(self.seed, epoch, 1, 0, STREAM_BATCH_ORDER))] = batches
        return batch_at
