"""The protocol of samplers, and the number of steps of an epoch (R1, R23 to R25).

Owns `Sampler` and `count_steps`. Fails with ArgumentError where an epoch would have no step.

    steps_per_epoch S = floor(n / B) with drop-last (the default), else ceil(n / B) with a short last batch
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from loader_service.errors import ArgumentError

__all__ = ["Sampler", "count_steps"]


class Sampler(Protocol):
    """Protocol of a sampler: each step of each epoch is found without the steps before it.

    One that draws from several sources may also have `sources(indices) -> int64 [B]`, the source of each index, which
    `Stream.explain` tells. One with `write_indices(epoch, step, out) -> int`, which writes to the front of `out` and
    returns how many, is asked by it, so that nothing is allocated.
    """

    @property
    def n(self) -> int:
        """Bound of the indices, which lie in [0, n)."""
        ...

    @property
    def steps_per_epoch(self) -> int:
        """S, the number of steps of an epoch, at least 1."""
        ...

    def indices(self, epoch: int, step: int) -> NDArray[np.int64]:
        """Give the dataset indices of one batch.

        Args:
            epoch: at least 0.
            step: the step in the epoch, in [0, S).

        Returns:
            int64 [B], B >= 1.
        """
        ...


def count_steps(n: int, batch_size: int, drop_last: bool) -> int:
    """Count the steps S of an epoch, at least 1.

    Args:
        n: samples, at least 0.
        batch_size: B, at least 1.
        drop_last: leave out a last batch that would be short.

    Raises:
        ArgumentError: the epoch would have no step.
    """
    steps = n // batch_size if drop_last else -(-n // batch_size)
    if steps == 0 and n == 0:
        raise ArgumentError("n is 0: there is nothing to draw from; give the sampler at least one sample")
    if steps == 0:
        raise ArgumentError(
            f"n = {n} samples make no full batch of batch_size = {batch_size} and drop_last is set, so an "
            "epoch would have no steps; lower batch_size or pass drop_last=False"
        )
    return steps
