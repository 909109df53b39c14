"""The samples of a container that stand in each batch.

Owns `shuffle_indices` and `Pipeline`. Invariant: any batch of any epoch is found without a table. Epochs count from 1;
epoch e of a run is epoch e + 1 here (R101).

    position p of an epoch holds permute(p, n, derive(seed, epoch, 0, 0, 105))
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.checks import MAX_BATCH_SIZE, checked_int, set_fields
from loader_service.contract.permutation import permute
from loader_service.contract.rng import derive
from loader_service.errors import ArgumentError

__all__ = ["Pipeline", "shuffle_indices"]

_STREAM_SHUFFLE = 105
_MAX_EPOCH = 2**63


def shuffle_indices(n: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Permute 0..n-1: the same on every machine, another permutation in every epoch (R109).

    Args:
        n: Number of indices; all of them must fit into memory.
        seed: Any integer; it counts modulo 2^64.
        epoch: At least 1.

    Returns:
        The permutation, int64 [n].

    Raises:
        ArgumentError: If an argument lies outside its range.
    """
    n, seed = checked_int("n", n, 0, 2**63 - 1), checked_int("seed", seed)
    epoch = checked_int("epoch", epoch, 1, _MAX_EPOCH)
    try:
        positions = np.arange(n, dtype=np.int64)
    except (MemoryError, ValueError):
        raise ArgumentError(
            f"n is {n}, more indices than fit into memory; Pipeline.indices finds any batch of them without the others"
        ) from None
    return _shuffled(positions, n, seed, epoch)


def _shuffled(positions: NDArray[np.int64], n: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return permute(positions, n, derive(seed, epoch, 0, 0, _STREAM_SHUFFLE))


@dataclass(frozen=True, slots=True)
class Pipeline:
    """`stream … |> shuffle(seed) |> batch(B) |> take(n)` over the indices of a container's samples (R100 to R104).

    Attributes:
        count: Number of samples.
        shuffle: A seed in [-2^63, 2^64); None for the order of the file.
        batch: B, at least 1; an incomplete last group is dropped.
        take: The first n batches of each epoch; None for all.

    Raises:
        ArgumentError: If an argument lies outside its range.

    >>> [batch.tolist() for batch in Pipeline(7, batch=3).epoch(1)]
    [[0, 1, 2], [3, 4, 5]]
    """

    count: int
    shuffle: int | None = None
    batch: int = 1
    take: int | None = None

    def __post_init__(self) -> None:
        set_fields(
            self,
            count=checked_int("count", self.count, 0, 2**63 - 1),
            shuffle=None if self.shuffle is None else checked_int("shuffle", self.shuffle, -(2**63), 2**64 - 1),
            batch=checked_int("batch", self.batch, 1, MAX_BATCH_SIZE),
            take=None if self.take is None else checked_int("take", self.take, 0, 2**63),
        )

    @property
    def batches_per_epoch(self) -> int:
        """The number of batches in an epoch; may be 0."""
        whole = self.count // self.batch
        return whole if self.take is None else min(whole, self.take)

    def indices(self, epoch: int, batch: int) -> NDArray[np.int64]:
        """Find the samples of one batch.

        Args:
            epoch: At least 1.
            batch: 0 <= batch < batches_per_epoch.

        Returns:
            Sample indices, int64 [B].

        Raises:
            ArgumentError: If epoch or batch lies outside.
        """
        epoch = checked_int("epoch", epoch, 1, _MAX_EPOCH)
        batch = checked_int("batch", batch, 0, self.batches_per_epoch - 1)
        positions = np.arange(self.batch, dtype=np.int64) + np.int64(batch * self.batch)  # [B]
        return positions if self.shuffle is None else _shuffled(positions, self.count, self.shuffle, epoch)

    def epoch(self, epoch: int) -> Iterator[NDArray[np.int64]]:
        """List the batches of one epoch >= 1, in order. Raises ArgumentError."""
        epoch = checked_int("epoch", epoch, 1, _MAX_EPOCH)
        return (self.indices(epoch, batch) for batch in range(self.batches_per_epoch))
