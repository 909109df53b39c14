"""The contract's random numbers: SplitMix64 and the derivation of keys (R12 to R22).

Owns `mix`, `derive`, the generator of one sample and the one that advances many together. Invariant: scalar and array
forms give the same bits; everything is arithmetic modulo 2^64 and there is no global state.

    mix(x)    = finalise(x + 0x9E3779B97F4A7C15)
    derive(…) = h0 = mix(seed ^ 0xD1B54A32D192ED03), then h = mix(h + v) for epoch, step, slot, stream
    u · n as 128 bits, from halves of 32:  u·n = (u1·n1) 2^64 + (u1·n0 + u0·n1) 2^32 + u0·n0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.buffers import scratch
from loader_service.contract.checks import (
    checked_int,
    checked_integer_array,
    checked_integers,
    checked_sequence,
    shown,
)
from loader_service.errors import ArgumentError

__all__ = [
    "STREAM_AUGMENTATION",
    "STREAM_BATCH_ORDER",
    "STREAM_BUCKET_ORDER",
    "STREAM_EPOCH_ORDER",
    "STREAM_MIXING",
    "STREAM_TRANSFORM",
    "RngArray",
    "SampleRng",
    "counter_block",
    "derive",
    "derive_slots",
    "mix",
    "mix_into",
]

MASK64 = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB
_SEED_SALT = 0xD1B54A32D192ED03

STREAM_TRANSFORM = 0
STREAM_AUGMENTATION = 1
STREAM_EPOCH_ORDER = 101
STREAM_MIXING = 102
STREAM_BUCKET_ORDER = 103
STREAM_BATCH_ORDER = 104

_SINGLE_SCALE = np.float32(2.0**-24)
_SIX = np.float32(6.0)
_GAMMA = np.uint64(GAMMA)
_LOW = np.uint64(2**32 - 1)
_HALF = np.uint64(32)
_NORMALS = 1024
_GAMMAS = np.array([turn * GAMMA & MASK64 for turn in range(1, 13)], np.uint64)


def _finalise(z: int) -> int:
    z = ((z ^ (z >> 30)) * _MULTIPLIER_1) & MASK64
    z = ((z ^ (z >> 27)) * _MULTIPLIER_2) & MASK64
    return z ^ (z >> 31)


def _finalise_array(z: NDArray[np.uint64], room: NDArray[np.uint64] | None = None) -> NDArray[np.uint64]:
    """Finalise `z`, uint64 of any shape, in place; `room` is an array of its size for steps between."""
    room = np.empty_like(z) if room is None else room
    z ^= np.right_shift(z, np.uint64(30), out=room)
    z *= np.uint64(_MULTIPLIER_1)
    z ^= np.right_shift(z, np.uint64(27), out=room)
    z *= np.uint64(_MULTIPLIER_2)
    z ^= np.right_shift(z, np.uint64(31), out=room)
    return z


@overload
def mix(x: int) -> int: ...
@overload
def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]: ...
def mix(x: int | NDArray[np.uint64]) -> int | NDArray[np.uint64]:
    """Mix `x` to 64 bits: the SplitMix64 output for the state `x` before its increment.

    Args:
        x: an integer, or an array of integers of any shape; taken modulo 2^64.

    Returns:
        An int in [0, 2^64), or uint64 of the same shape.

    Raises:
        ArgumentError: `x` is no integer.

    >>> mix(0)
    16294208416658607535
    """
    if isinstance(x, np.ndarray) and x.ndim:
        return _finalise_array(checked_integer_array("x", x).astype(np.uint64, copy=False) + _GAMMA)
    return _finalise((checked_int("x", x) + GAMMA) & MASK64)


def mix_into(x: NDArray[np.uint64], room: NDArray[np.uint64]) -> None:
    """`mix` in place, of uint64 of any shape; `room` is an array of its size for steps between. Nothing is checked."""
    x += _GAMMA
    _finalise_array(x, room)


def _mix(x: int) -> int:
    return _finalise((x + GAMMA) & MASK64)


def derive(seed: int, epoch: int, step: int, slot: int, stream: int) -> int:
    """Derive the 64-bit key of one slot.

    Args:
        seed: the run's; a negative one means its two's complement.
        epoch: counted from 0.
        step: the step in the epoch, never the global step.
        slot: the position in the global batch.
        stream: one of the `STREAM_…` numbers, or one of your own from 2 to 100.

    All are integers and are taken modulo 2^64.

    Returns:
        An int in [0, 2^64): the first state of a `SampleRng`, or the key of `permute`.

    Raises:
        ArgumentError: an argument is no integer.

    >>> derive(42, 0, 0, 0, 0)
    62862410312403118
    """
    if not type(seed) is type(epoch) is type(step) is type(slot) is type(stream) is int:
        seed, epoch, step = checked_int("seed", seed), checked_int("epoch", epoch), checked_int("step", step)
        slot, stream = checked_int("slot", slot), checked_int("stream", stream)
    h = _mix(_mix(_mix((seed & MASK64) ^ _SEED_SALT) + epoch) + step)
    return _mix(_mix(h + slot) + stream)


def derive_slots(
    seed: int, epoch: int, step: int, slots: NDArray[np.integer] | Sequence[int], stream: int
) -> NDArray[np.uint64]:
    """Derive the keys of many slots at once.

    Args:
        slots: integers [N]; the other arguments are those of `derive`.

    Returns:
        uint64 [N]: `derive(seed, epoch, step, slot, stream)` of each slot.

    Raises:
        ArgumentError: an argument is no integer.
    """
    seed, epoch, step = checked_int("seed", seed), checked_int("epoch", epoch), checked_int("step", step)
    h = _mix(_mix(_mix((seed & MASK64) ^ _SEED_SALT) + epoch) + step)
    keys = mix(_words("slots", slots) + np.uint64(h))
    return mix(keys + np.uint64(checked_int("stream", stream) & MASK64))


def _words(name: str, values: NDArray[np.integer] | Sequence[int]) -> NDArray[np.uint64]:
    """Integers modulo 2^64: uint64 [N]. Raises ArgumentError."""
    if isinstance(values, list | tuple | range):
        return np.array([number & MASK64 for number in checked_sequence(name, values, checked_int)], np.uint64)
    return checked_integers(name, values).astype(np.uint64, copy=False)


def counter_block(key: int, out: NDArray[np.uint64], room: NDArray[np.uint64] | None = None) -> NDArray[np.uint64]:
    """Fill `out` with the first outputs of `SampleRng(key)`.

    Args:
        key: an integer, taken modulo 2^64.
        out: uint64 [N], writeable.
        room: uint64 [N] for steps between; where it is given, nothing is allocated.

    Returns:
        `out`.

    Raises:
        ArgumentError: `key` is no integer, or an array is not uint64 [N].

    >>> counter_block(0, np.empty(2, np.uint64))
    array([16294208416658607535,  7960286522194355700], dtype=uint64)
    """
    room = _checked_words("room", room) if room is not None else np.empty_like(_checked_words("out", out))
    if room.size != _checked_words("out", out).size:
        raise ArgumentError(f"room has {room.size} numbers and out {out.size}; they must have as many")
    out[...] = _GAMMA
    np.add.accumulate(out, out=out)  # (i + 1) GAMMA, modulo 2^64
    out += np.uint64(checked_int("key", key) & MASK64)
    return _finalise_array(out, room)


def _checked_words(name: str, array: NDArray[np.uint64]) -> NDArray[np.uint64]:
    if not isinstance(array, np.ndarray) or array.dtype != np.uint64 or array.ndim != 1 or not array.flags.writeable:
        raise ArgumentError(f"{name} is {shown(array)}; it must be a writeable array of uint64, [N]")
    return array


class SampleRng:
    """A SplitMix64 generator: the random numbers of one sample.

    Args:
        key: its first state, an integer, taken modulo 2^64; such as `derive` gives.

    Raises:
        ArgumentError: `key` is no integer.

    >>> rng = SampleRng(derive(seed=42, epoch=0, step=0, slot=0, stream=0))
    >>> rng.next_int(6) in range(6)
    True
    """

    __slots__ = ("state",)

    def __init__(self, key: int) -> None:
        self.state = checked_int("key", key) & MASK64

    def __repr__(self) -> str:
        return f"SampleRng({self.state})"

    def next_u64(self) -> int:
        """Draw an int, uniform in [0, 2^64)."""
        self.state = (self.state + GAMMA) & MASK64
        return _finalise(self.state)

    def next_single(self) -> np.float32:
        """Draw a float32, uniform in [0, 1): the upper 24 bits over 2^24, exact."""
        return np.float32((self.next_u64() >> 40) * 2.0**-24)

    def next_double(self) -> float:
        """Draw a float64, uniform in [0, 1): the upper 53 bits over 2^53."""
        return (self.next_u64() >> 11) * 2.0**-53

    def next_int(self, n: int) -> int:
        """Draw an int, uniform in [0, n) and unbiased (multiply-shift with rejection).

        Args:
            n: an integer in [1, 2^64].

        Raises:
            ArgumentError: another `n`.
        """
        if type(n) is not int or not 1 <= n <= 2**64:  # the usual case costs no call
            n = checked_int("n", n, 1, 2**64)
        product = self.next_u64() * n
        low = product & MASK64
        if low < n:
            threshold = (2**64 - n) % n
            while low < threshold:
                product = self.next_u64() * n
                low = product & MASK64
        return product >> 64

    def next_normal(self) -> np.float32:
        """Draw a float32, about standard normal: twelve singles summed left to right in float32, then minus 6."""
        total = self.next_single()
        for _ in range(11):
            total = total + self.next_single()
        return total - _SIX


def _multiply(u: NDArray[np.uint64], n: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The upper and the lower 64 bits of u · n, element by element: two uint64 arrays."""
    u0, u1, n0, n1 = u & _LOW, u >> _HALF, n & _LOW, n >> _HALF
    middle = u1 * n0 + ((u0 * n0) >> _HALF)
    carry = (u0 * n1 + (middle & _LOW)) >> _HALF
    return u1 * n1 + (middle >> _HALF) + carry, u * n


class RngArray:
    """Many generators at once: element i of every answer is what `SampleRng(keys[i])` gives at the same point.

    Args:
        keys: integers [N], taken modulo 2^64; they are copied.

    Raises:
        ArgumentError: `keys` are no integers of one dimension.

    >>> RngArray(np.array([0, 1], np.uint64)).next_u64()
    array([16294208416658607535, 10451216379200822465], dtype=uint64)
    """

    __slots__ = ("state",)

    def __init__(self, keys: NDArray[np.integer] | Sequence[int]) -> None:
        self.state = _words("keys", keys).copy()

    def __len__(self) -> int:
        return len(self.state)

    def __repr__(self) -> str:
        return f"RngArray(of {len(self)} generators)"

    def next_u64(self) -> NDArray[np.uint64]:
        """Draw uint64 [N], uniform in [0, 2^64)."""
        self.state += _GAMMA
        return _finalise_array(self.state.copy())

    def next_single(self) -> NDArray[np.float32]:
        """Draw float32 [N], uniform in [0, 1): the upper 24 bits over 2^24."""
        return (self.next_u64() >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)

    def next_double(self) -> NDArray[np.float64]:
        """Draw float64 [N], uniform in [0, 1): the upper 53 bits over 2^53."""
        return (self.next_u64() >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def next_int(self, n: int | NDArray[np.integer] | Sequence[int]) -> NDArray[np.uint64]:
        """Draw uint64 [N], uniform in [0, n) and unbiased; a generator whose draw is rejected draws again alone.

        Args:
            n: an integer in [1, 2^64], for all, or integers [N] in [1, 2^64), one for each.

        Raises:
            ArgumentError: another `n`.
        """
        bounds = self._bounds(n)
        if bounds is None:
            return self.next_u64()
        result, low = _multiply(self.next_u64(), bounds)
        again = np.flatnonzero(low < bounds)
        again = again[low[again] < _threshold(bounds[again])]
        while again.size:
            self.state[again] += _GAMMA
            result[again], low = _multiply(_finalise_array(self.state[again]), bounds[again])
            again = again[low < _threshold(bounds[again])]
        return result

    def _bounds(self, n: int | NDArray[np.integer] | Sequence[int]) -> NDArray[np.uint64] | None:
        """One bound for each generator, uint64 [N]; None for 2^64, below which every draw lies."""
        if not (isinstance(n, list | tuple) or (isinstance(n, np.ndarray) and n.ndim)):
            number = checked_int("n", n, 1, 2**64)
            return None if number == 2**64 else np.full(len(self), number, np.uint64)
        bounds = checked_integers("n", n)
        if bounds.shape != self.state.shape or (bounds.size and int(bounds.min()) < 1):
            raise ArgumentError(f"n is {shown(n)}; it must be {len(self)} integers in [1, 2^64), or one for all")
        return bounds.astype(np.uint64, copy=False)

    def next_normal(self) -> NDArray[np.float32]:
        """Draw float32 [N], about standard normal: twelve singles summed left to right in float32, then minus 6."""
        total = np.empty(len(self), np.float32)
        for first in range(0, len(self), _NORMALS):
            self._normals(self.state[first : first + _NORMALS], total[first : first + _NORMALS])
        return total

    @staticmethod
    def _normals(state: NDArray[np.uint64], total: NDArray[np.float32]) -> None:
        """The next normal of up to _NORMALS generators, twelve draws of each at once."""
        shape = (12, len(state))
        bits, room = scratch("normal bits", shape, np.uint64), scratch("normal room", shape, np.uint64)
        for row, gamma in zip(bits, _GAMMAS, strict=True):
            np.add(state, gamma, out=row)  # row by row: for one sum with two axes numpy would allocate buffers
        state += np.uint64(12 * GAMMA & MASK64)
        _finalise_array(bits, room)
        bits >>= np.uint64(40)
        singles = scratch("normal singles", shape, np.float32)
        np.copyto(singles, bits, casting="unsafe")  # 24 bits: exact
        singles *= _SINGLE_SCALE
        total[:] = singles[0]
        for row in singles[1:]:
            total += row
        total -= _SIX


def _threshold(bounds: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """(2^64 - n) mod n: a draw whose lower half lies below it would be one too many for its result."""
    return (~bounds + np.uint64(1)) % bounds
