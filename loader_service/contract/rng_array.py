"""Many generators at once: one SplitMix64 for each key, advanced together (section 2).

Owns `RngArray`. Invariant: element i of every answer is what `SampleRng(keys[i])` would give at the same point, to the
bit; a generator that has to draw again does so alone.

    u · n as 128 bits, from halves of 32:  u·n = (u1·n1) 2^64 + (u1·n0 + u0·n1) 2^32 + u0·n0
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.rng import GAMMA, finalise_array
from loader_service.errors import ArgumentError

__all__ = ["RngArray"]

_GAMMA = np.uint64(GAMMA)
_LOW = np.uint64(2**32 - 1)
_HALF = np.uint64(32)


def _multiply(u: NDArray[np.uint64], n: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The upper and the lower 64 bits of u · n, element by element: two uint64 arrays."""
    u0, u1, n0, n1 = u & _LOW, u >> _HALF, n & _LOW, n >> _HALF
    middle = u1 * n0 + ((u0 * n0) >> _HALF)
    carry = (u0 * n1 + (middle & _LOW)) >> _HALF
    return u1 * n1 + (middle >> _HALF) + carry, u * n


class RngArray:
    """Generators with the states `keys`, uint64 [N]; each method draws once from every one of them.

    >>> RngArray(np.array([0, 1], np.uint64)).next_u64()
    array([16294208416658607535, 10451216379200822465], dtype=uint64)
    """

    __slots__ = ("state",)

    def __init__(self, keys: NDArray[np.uint64]) -> None:
        self.state = np.array(keys, np.uint64)  # a copy: the caller's keys stay as they are

    def __len__(self) -> int:
        return len(self.state)

    def next_u64(self) -> NDArray[np.uint64]:
        """uint64 [N], uniform in [0, 2^64)."""
        self.state += _GAMMA
        return finalise_array(self.state.copy())

    def next_single(self) -> NDArray[np.float32]:
        """float32 [N], uniform in [0, 1): the upper 24 bits over 2^24."""
        return (self.next_u64() >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)

    def next_double(self) -> NDArray[np.float64]:
        """float64 [N], uniform in [0, 1): the upper 53 bits over 2^53."""
        return (self.next_u64() >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def next_int(self, n: int | NDArray[np.integer]) -> NDArray[np.uint64]:
        """uint64 [N], uniform in [0, n), unbiased. n: one bound, or an array of one for each, 1 <= n < 2^64.

        Raises ArgumentError for another n.
        """
        bounds = np.broadcast_to(_bounds(n), self.state.shape)
        result, low = _multiply(self.next_u64(), bounds)
        again = np.flatnonzero(low < bounds)
        again = again[low[again] < _threshold(bounds[again])]
        while again.size:
            self.state[again] += _GAMMA
            result[again], low = _multiply(finalise_array(self.state[again]), bounds[again])
            again = again[low < _threshold(bounds[again])]
        return result

    def next_normal(self) -> NDArray[np.float32]:
        """float32 [N], about standard normal: twelve singles summed left to right in float32, then minus 6."""
        total = self.next_single()
        for _ in range(11):
            total += self.next_single()
        return total - np.float32(6.0)


def _bounds(n: int | NDArray[np.integer]) -> NDArray[np.uint64]:
    given = np.asarray(n)
    if given.dtype.kind not in "iu" or (given.size and int(given.min()) < 1):
        raise ArgumentError(f"next_int got n = {n!r}; every n must be an integer in [1, 2^64)")
    return given.astype(np.uint64)


def _threshold(bounds: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """(2^64 - n) mod n: a draw whose lower half lies below it would be one too many for its result."""
    return (~bounds + np.uint64(1)) % bounds
