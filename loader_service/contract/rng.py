"""The contract's random numbers: SplitMix64 and the derivation of keys (section 2 of the data-loading text).

Owns `mix`, `derive` and the per-sample generator. Invariant: scalar and array forms give the same bits;
everything is arithmetic modulo 2^64 and there is no global state.

    mix(x)    = finalise(x + 0x9E3779B97F4A7C15)
    derive(…) = h0 = mix(seed ^ 0xD1B54A32D192ED03), then h = mix(h + v) for epoch, step, slot, stream
"""

from __future__ import annotations

from typing import overload

import numpy as np
from numpy.typing import NDArray

from loader_service.errors import ArgumentError

__all__ = [
    "STREAM_AUGMENTATION",
    "STREAM_BATCH_ORDER",
    "STREAM_BUCKET_ORDER",
    "STREAM_EPOCH_ORDER",
    "STREAM_MIXING",
    "STREAM_TRANSFORM",
    "SampleRng",
    "counter_block",
    "derive",
    "derive_slots",
    "finalise_array",
    "mix",
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


def _finalise(z: int) -> int:
    z = ((z ^ (z >> 30)) * _MULTIPLIER_1) & MASK64
    z = ((z ^ (z >> 27)) * _MULTIPLIER_2) & MASK64
    return z ^ (z >> 31)


def finalise_array(z: NDArray[np.uint64], room: NDArray[np.uint64] | None = None) -> NDArray[np.uint64]:
    """Consumes `z`: the caller hands over a fresh array. room: one of the same size, so that none is allocated."""
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
    """The SplitMix64 output for the state `x` before its increment.

    x: an int (taken modulo 2^64), or a uint64 array of any shape; gives the same kind.

    >>> mix(0)
    16294208416658607535
    """
    if isinstance(x, np.ndarray):
        return finalise_array(np.atleast_1d(x) + np.uint64(GAMMA)).reshape(x.shape)
    return _finalise((x + GAMMA) & MASK64)


def _derive_step(seed: int, epoch: int, step: int) -> int:
    h = mix((seed & MASK64) ^ _SEED_SALT)
    return mix(mix(h + epoch) + step)


def derive(seed: int, epoch: int, step: int, slot: int, stream: int) -> int:
    """The 64-bit key of one slot (`Derive`): `step` is the step in the epoch, never the global step.

    A negative seed means its two's complement; all arguments are taken modulo 2^64.

    >>> derive(42, 0, 0, 0, 0)
    62862410312403118
    """
    return mix(mix(_derive_step(seed, epoch, step) + slot) + stream)


def derive_slots(seed: int, epoch: int, step: int, slots: NDArray[np.uint64], stream: int) -> NDArray[np.uint64]:
    """`derive` for many slots at once: slots uint64 [N] -> keys uint64 [N]."""
    h = mix(np.asarray(slots, np.uint64) + np.uint64(_derive_step(seed, epoch, step)))
    return mix(h + np.uint64(stream & MASK64))


def counter_block(key: int, out: NDArray[np.uint64], room: NDArray[np.uint64] | None = None) -> NDArray[np.uint64]:
    """Fill `out`, uint64 [N], with the first N outputs of `SampleRng(key)`; nothing is allocated where `room` is given.

    >>> counter_block(0, np.empty(2, np.uint64))
    array([16294208416658607535,  7960286522194355700], dtype=uint64)
    """
    out[...] = np.uint64(GAMMA)
    np.add.accumulate(out, out=out)  # (i + 1) GAMMA, modulo 2^64
    out += np.uint64(key & MASK64)
    return finalise_array(out, room)


class SampleRng:
    """SplitMix64 with a key as its first state: the random numbers of one sample.

    >>> rng = SampleRng(derive(seed=42, epoch=0, step=0, slot=0, stream=0))
    >>> rng.next_int(6) in range(6)
    True
    """

    __slots__ = ("state",)

    def __init__(self, key: int) -> None:
        self.state = int(key) & MASK64

    def next_u64(self) -> int:
        """Uniform in [0, 2^64)."""
        self.state = (self.state + GAMMA) & MASK64
        return _finalise(self.state)

    def next_single(self) -> np.float32:
        """Uniform in [0, 1): the upper 24 bits over 2^24, exact in float32."""
        return np.float32((self.next_u64() >> 40) * 2.0**-24)

    def next_double(self) -> float:
        """Uniform in [0, 1): the upper 53 bits over 2^53."""
        return (self.next_u64() >> 11) * 2.0**-53

    def next_int(self, n: int) -> int:
        """Uniform in [0, n), unbiased (multiply-shift with rejection); 1 <= n <= 2^64.

        Raises ArgumentError for another n.
        """
        if not 1 <= n <= 2**64:
            raise ArgumentError(f"next_int got n = {n}; n must lie in [1, 2^64]")
        product = self.next_u64() * n
        low = product & MASK64
        if low < n:
            threshold = (2**64 - n) % n
            while low < threshold:
                product = self.next_u64() * n
                low = product & MASK64
        return product >> 64

    def next_normal(self) -> np.float32:
        """About standard normal: twelve singles summed left to right in float32, then minus 6."""
        total = self.next_single()
        for _ in range(11):
            total = total + self.next_single()
        return total - _SIX
