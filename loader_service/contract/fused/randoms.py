"""SplitMix64 within kernels: keys, draws and the keyed permutation, in unsigned 64-bit arithmetic.

Owns the random numbers that kernels draw. A generator is a uint64 array of one element, its state. Invariant: the bits
are those of `SampleRng`, `derive` and `permute`, compiled and in Python.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from loader_service.contract.fused.compiler import kernel
from loader_service.contract.rng import GAMMA, MASK64, SampleRng
from loader_service.contract.rng import derive as derive_int

__all__ = [
    "derive_key",
    "next_double",
    "next_int",
    "next_normal",
    "next_single",
    "next_u64",
    "splitmix",
    "write_permutation",
]

State = Any
"""uint64 [1]."""

_GAMMA = np.uint64(GAMMA)
_MULTIPLIER_1, _MULTIPLIER_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SALT = np.uint64(0xD1B54A32D192ED03)
_30, _27, _31, _32, _40, _11 = (np.uint64(bits) for bits in (30, 27, 31, 32, 40, 11))
_LOW = np.uint64(2**32 - 1)
_SINGLE, _SIX = np.float32(2.0**-24), np.float32(6.0)
_DOUBLE = 2.0**-53
_0, _1, _64 = np.uint64(0), np.uint64(1), np.uint64(64)
_ROUND_SALT = np.uint64(0x632BE59BD9B4E019)


def _splitmix_int(state: Any) -> np.uint64:
    return np.uint64(SampleRng((int(state) - GAMMA) & MASK64).next_u64())


@kernel(in_python=_splitmix_int)
def splitmix(state: Any) -> Any:
    """The output for a state after its increment."""
    z = state
    z = (z ^ (z >> _30)) * _MULTIPLIER_1
    z = (z ^ (z >> _27)) * _MULTIPLIER_2
    return z ^ (z >> _31)


def _derive_key_int(seed: Any, epoch: Any, step: Any, slot: Any, stream: Any) -> np.uint64:
    return np.uint64(derive_int(int(seed), int(epoch), int(step), int(slot), int(stream)))


@kernel(in_python=_derive_key_int)
def derive_key(seed: Any, epoch: Any, step: Any, slot: Any, stream: Any) -> Any:
    """`derive` of uint64 arguments."""
    h = splitmix((seed ^ _SALT) + _GAMMA)
    h = splitmix(h + epoch + _GAMMA)
    h = splitmix(h + step + _GAMMA)
    h = splitmix(h + slot + _GAMMA)
    return splitmix(h + stream + _GAMMA)


def _next_u64_int(rng: State) -> np.uint64:
    one = SampleRng(int(rng[0]))
    drawn = np.uint64(one.next_u64())
    rng[0] = one.state
    return drawn


@kernel(in_python=_next_u64_int)
def next_u64(rng: State) -> Any:
    """uint64, uniform in [0, 2^64)."""
    state = rng[0] + _GAMMA
    rng[0] = state
    return splitmix(state)


@kernel()
def next_single(rng: State) -> Any:
    """float32, uniform in [0, 1): the upper 24 bits over 2^24."""
    return np.float32(next_u64(rng) >> _40) * _SINGLE


@kernel()
def next_double(rng: State) -> Any:
    """float64, uniform in [0, 1): the upper 53 bits over 2^53."""
    return np.float64(next_u64(rng) >> _11) * _DOUBLE


@kernel()
def next_normal(rng: State) -> Any:
    """float32, about standard normal: twelve singles summed left to right, then minus 6."""
    total = next_single(rng)
    for _ in range(11):
        total = total + next_single(rng)
    return total - _SIX


def _next_int_int(rng: State, n: Any) -> np.uint64:
    one = SampleRng(int(rng[0]))
    drawn = np.uint64(one.next_int(int(n)))
    rng[0] = one.state
    return drawn


@kernel()
def _multiply_high(u: Any, n: Any) -> Any:
    """The upper 64 bits of u · n, from halves of 32."""
    u0, u1, n0, n1 = u & _LOW, u >> _32, n & _LOW, n >> _32
    middle = u1 * n0 + ((u0 * n0) >> _32)
    carry = (u0 * n1 + (middle & _LOW)) >> _32
    return u1 * n1 + (middle >> _32) + carry


@kernel(in_python=_next_int_int)
def next_int(rng: State, n: Any) -> Any:
    """uint64, uniform in [0, n), unbiased; n: uint64, at least 1."""
    u = next_u64(rng)
    if u * n < n:
        threshold = (_0 - n) % n
        while u * n < threshold:
            u = next_u64(rng)
    return _multiply_high(u, n)


@kernel("void(uint64, uint64, uint64, int64[::1])")
def write_permutation(first: Any, n: Any, key: Any, out: Any) -> None:
    """out[i] = permute(first + i, n, key), for 2 <= n <= 2^63 and first + i < n."""
    bits = _0
    while bits < _64 and ((n - _1) >> bits) != _0:
        bits += _1
    half = (bits + _1) >> _1
    mask = (_1 << half) - _1
    position = first
    for i in range(out.size):
        x = position
        while True:
            left, right = x >> half, x & mask
            salt = _0
            for _ in range(4):
                left, right = right, left ^ (splitmix((right ^ key ^ salt) + _GAMMA) & mask)
                salt += _ROUND_SALT
            x = (left << half) | right
            if x < n:
                break
        out[i] = x
        position += _1
