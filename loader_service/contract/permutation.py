"""The keyed permutation of [0, n): any position of any epoch without a table (R26).

Owns `permute`. Invariant: for one (n, key) it is a bijection on [0, n). A four-round Feistel network is
bijective on 2^(2·half) values, half = ceil(ceil(log2 n) / 2); walking the cycle until the value is below n
restricts it to [0, n). That domain is less than 4n, so the walk takes under four turns on average.
"""

from __future__ import annotations

from typing import overload

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.checks import MAX_N, checked_int, checked_integer_array
from loader_service.contract.rng import MASK64, mix
from loader_service.errors import ArgumentError

__all__ = ["permute"]

_ROUND_SALT = 0x632BE59BD9B4E019
_BLOCK = 1 << 14


def _round_keys(key: int) -> list[int]:
    return [(key ^ (turn * _ROUND_SALT)) & MASK64 for turn in range(4)]


def _permute_int(position: int, n: int, key: int) -> int:
    half = ((n - 1).bit_length() + 1) // 2
    mask = (1 << half) - 1
    keys = _round_keys(key)
    x = position
    while True:
        left, right = x >> half, x & mask
        for round_key in keys:
            left, right = right, left ^ (mix(right ^ round_key) & mask)
        x = (left << half) | right
        if x < n:
            return x


def _permute_array(positions: NDArray[np.uint64], n: int, key: int) -> NDArray[np.uint64]:
    """In blocks that stay in the processor's cache: three times as fast on millions of positions."""
    out = positions.copy()
    for first in range(0, len(out), _BLOCK):
        _permute_block(out[first : first + _BLOCK], n, key)
    return out


def _permute_block(values: NDArray[np.uint64], n: int, key: int) -> None:
    """Permute up to _BLOCK `values` in place; what this takes is scratch memory of the thread."""
    half = ((n - 1).bit_length() + 1) // 2
    shift, mask = np.uint64(half), np.uint64((1 << half) - 1)
    keys = [np.uint64(round_key) for round_key in _round_keys(key)]
    x = _room("x", values.size)
    x[:] = values
    walking = _room("walking", values.size)  # [M]: where the value has not come below n yet
    walking[:] = _places(values.size)
    while x.size:
        _encrypt(x, shift, mask, keys)
        values[walking] = x
        outside = np.greater_equal(x, np.uint64(n), out=scratch("permutation outside", x.shape, np.bool_))
        left = int(np.count_nonzero(outside))
        x = np.compress(outside, x, out=_room(f"x {left % 2}", left) if left != x.size else x)
        walking = np.compress(outside, walking, out=_room(f"walking {left % 2}", left) if left != walking.size else walking)


@overload
def permute(position: int, n: int, key: int) -> int: ...
@overload
def permute(position: NDArray[np.uint64], n: int, key: int) -> NDArray[np.uint64]: ...
@overload
def permute(position: NDArray[np.signedinteger], n: int, key: int) -> NDArray[np.int64]: ...
def permute(
    position: int | NDArray[np.uint64] | NDArray[np.signedinteger], n: int, key: int
) -> int | NDArray[np.uint64] | NDArray[np.int64]:
    """Permute `position` of [0, n) under `key`.

    Args:
        position: an integer in [0, n), or an array of such integers, of any shape.
        n: an integer in [0, 2^63]; for n <= 1 the answer is 0.
        key: an integer, taken modulo 2^64.

    Returns:
        An int in [0, n), or an array of the same shape: int64 for signed positions, uint64 for unsigned ones.

    Raises:
        ArgumentError: an argument is no integer or lies outside its range.

    >>> sorted(permute(p, 5, key=7) for p in range(5))
    [0, 1, 2, 3, 4]
    """
    n, key = checked_int("n", n, 0, MAX_N), checked_int("key", key)
    if isinstance(position, np.ndarray) and position.ndim:
        return _checked_array(position, n, key)
    if n <= 1:
        checked_int("position", position)
        return 0
    return _permute_int(checked_int("position", position, 0, n - 1), n, key)


def _checked_array(
    position: NDArray[np.uint64] | NDArray[np.signedinteger], n: int, key: int
) -> NDArray[np.uint64] | NDArray[np.int64]:
    positions = checked_integer_array("position", position)
    signed = positions.dtype.kind == "i"
    if n <= 1:
        return np.zeros(positions.shape, np.int64) if signed else np.zeros(positions.shape, np.uint64)
    if positions.size and (int(positions.min()) < 0 or int(positions.max()) >= n):
        raise ArgumentError(f"position has values outside [0, {n}); pass positions modulo n")
    out = _permute_array(positions.astype(np.uint64).ravel(), n, key).reshape(positions.shape)  # [...]
    return out.astype(np.int64) if signed else out
