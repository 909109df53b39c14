"""What a stream asks of a sampler, and the checks that all samplers share.

Owns the `Sampler` protocol. A wrong argument is an ArgumentError that says what was got and what to change.

    steps_per_epoch S = floor(n / B) with drop-last (the default), else ceil(n / B) with a short last batch
"""

from __future__ import annotations

from operator import index
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loader_service.errors import ArgumentError

__all__ = ["MAX_BATCH_SIZE", "MAX_N", "Sampler", "checked_indices", "checked_int", "count_steps", "settle_int"]

MAX_N = 2**63
MAX_BATCH_SIZE = 2**31 - 1


class Sampler(Protocol):
    """What a stream asks of a sampler. `n` bounds the indices: all lie in [0, n).

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


def checked_int(name: str, value: Any, low: int, high: int) -> int:
    """`value` as an int in [low, high]. Raises ArgumentError."""
    try:
        value = index(value)
    except TypeError:
        raise ArgumentError(f"{name} is {value!r}; it must be an integer") from None
    if not low <= value <= high:
        raise ArgumentError(f"{name} is {value}; it must lie in [{low}, {high}]")
    return int(value)


def checked_indices(indices: ArrayLike, n: int, what: str) -> NDArray[np.int64]:
    """`indices` as int64 [N], each in [0, n), the number of `what`. Raises ArgumentError."""
    given = np.asarray(indices).reshape(-1)  # [N]
    if given.size and given.dtype.kind not in "iu":
        raise ArgumentError(f"indices are {given.dtype}; they must be integers below 2^64")
    if given.size and not 0 <= int(given.min()) <= int(given.max()) < n:
        raise ArgumentError(f"indices lie in [{given.min()}, {given.max()}]; those of the {what} in [0, {n})")
    return given.astype(np.int64)


def settle_int(sampler: object, name: str, low: int, high: int) -> None:
    """Check a frozen sampler's argument and keep it as an int: a numpy integer would overflow in arithmetic."""
    object.__setattr__(sampler, name, checked_int(name, getattr(sampler, name), low, high))


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
