"""Which samples of a container stand in which batch.

Owns `shuffle_indices` and `Pipeline`. Invariant: any batch of any epoch is found without a table. Epochs count from
1, as in the container's text; epoch e of the data-loading contract is epoch e + 1 here.

    position p of an epoch holds permute(p, n, derive(seed, epoch, 0, 0, 105))
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.checks import checked_int, set_fields
from loader_service.contract.permutation import permute
from loader_service.contract.rng import derive

__all__ = ["Pipeline", "shuffle_indices"]

_STREAM_SHUFFLE = 105


def shuffle_indices(n: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """A permutation of 0..n-1, int64 [n]: the same on every machine, another one in every epoch >= 1.

    Raises ArgumentError.
    """
    n, epoch = checked_int("n", n, 0, 2**63 - 1), checked_int("epoch", epoch, 1, 2**63)
    return _shuffled(np.arange(n, dtype=np.int64), n, seed, epoch)


def _shuffled(positions: NDArray[np.int64], n: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return permute(positions, n, derive(seed, epoch, 0, 0, _STREAM_SHUFFLE))


@dataclass(frozen=True, slots=True)
class Pipeline:
    """`stream … |> shuffle(seed) |> batch(B) |> take(n)` over the indices of `count` samples.

    shuffle: a seed, None for the order of the file; batch: B >= 1, an incomplete last group is dropped; take: the first
    n batches of each epoch, None for all. Raises ArgumentError.

    >>> [batch.tolist() for batch in Pipeline(7, batch=3).epoch(1)]
    [[0, 1, 2], [3, 4, 5]]
    """

    count: int
    shuffle: int | None = None
    batch: int = 1
    take: int | None = None

    def __post_init__(self) -> None:
        set_fields(self, count=checked_int("count", self.count, 0, 2**63 - 1))
        set_fields(self, batch=checked_int("batch", self.batch, 1, 2**31 - 1))
        if self.shuffle is not None:
            set_fields(self, shuffle=checked_int("shuffle", self.shuffle, -(2**63), 2**64 - 1))
        if self.take is not None:
            set_fields(self, take=checked_int("take", self.take, 0, 2**63))

    @property
    def batches_per_epoch(self) -> int:
        """How many batches an epoch has; may be none."""
        whole = self.count // self.batch
        return whole if self.take is None else min(whole, self.take)

    def indices(self, epoch: int, batch: int) -> NDArray[np.int64]:
        """The sample indices of one batch, int64 [B]; epoch >= 1, 0 <= batch < batches_per_epoch."""
        epoch = checked_int("epoch", epoch, 1, 2**63)
        batch = checked_int("batch", batch, 0, self.batches_per_epoch - 1)
        positions = np.arange(self.batch, dtype=np.int64) + np.int64(batch * self.batch)
        return positions if self.shuffle is None else _shuffled(positions, self.count, self.shuffle, epoch)

    def epoch(self, epoch: int) -> Iterator[NDArray[np.int64]]:
        """The batches of one epoch >= 1, in order."""
        return (self.indices(epoch, batch) for batch in range(self.batches_per_epoch))
