"""The protocol of samplers, and the checks that all samplers share.

Owns the `Sampler` protocol. A wrong argument is an ArgumentError that says what was got and what to change.

    steps_per_epoch S = floor(n / B) with drop-last (the default), else ceil(n / B) with a short last batch
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from loader_service.errors import ArgumentError

__all__ = ["Sampler", "count_steps"]


class Sampler(Protocol):
    """Protocol of a sampler. `n` bounds the indices: all lie in [0, n).

    One that draws from several sources may also have `sources(indices) -> NDArray[np.int64]`, the source of each index,
    which `Stream.explain` tells.
    """

    @property
    def n(self) -> int: ...
    @property
    def steps_per_epoch(self) -> int: ...
    def indices(self, epoch: int, step: int) -> NDArray[np.int64]:
        """The dataset indices of one batch, int64 [B]; epoch >= 0, 0 <= step < steps_per_epoch."""
        ...


def count_steps(n: int, batch_size: int, drop_last: bool) -> int:
    """S, at least 1. Raises ArgumentError where an epoch would have no step."""
    steps = n // batch_size if drop_last else -(-n // batch_size)
    if steps == 0 and n == 0:
        raise ArgumentError("n is 0: there is nothing to draw from; give the sampler at least one sample")
    if steps == 0:
        raise ArgumentError(
            f"n = {n} samples make no full batch of batch_size = {batch_size} and drop_last is set, so an "
            "epoch would have no steps; lower batch_size or pass drop_last=False"
        )
    return steps
