"""Random numbers and the keyed permutation, one number at a time: rules R12 to R22 and R26.

Written from `docs/specification.md` alone. Integers are Python's, floats are kept to float32 by `single`.
"""

from __future__ import annotations

import struct

__all__ = ["Generator", "bits_of_single", "derive", "mix", "permute", "single", "single_from_bits"]

WORD = 2**64
GAMMA = 0x9E3779B97F4A7C15


def single(x: float) -> float:
    """`x` rounded to float32. A sum, difference, product or quotient of two float32 is so rounded once, correctly."""
    rounded: float = struct.unpack("<f", struct.pack("<f", x))[0]
    return rounded


def bits_of_single(x: float) -> int:
    """The bit pattern of a float32."""
    bits: int = struct.unpack("<I", struct.pack("<f", x))[0]
    return bits


def single_from_bits(bits: int) -> float:
    """The float32 of a bit pattern."""
    value: float = struct.unpack("<f", struct.pack("<I", bits))[0]
    return value


def finalise(z: int) -> int:
    """R13."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
    return z ^ (z >> 31)


def mix(x: int) -> int:
    """R15."""
    return finalise((x + GAMMA) % WORD)


def derive(seed: int, epoch: int, step: int, slot: int, stream: int) -> int:
    """R20; the seed counts modulo 2^64, R11."""
    h = mix(seed % WORD ^ 0xD1B54A32D192ED03)
    for value in (epoch, step, slot, stream):
        h = mix((h + value) % WORD)
    return h


class Generator:
    """R14 and R16 to R19."""

    def __init__(self, key: int) -> None:
        self.state = key

    def next_u64(self) -> int:
        self.state = (self.state + GAMMA) % WORD
        return finalise(self.state)

    def next_single(self) -> float:
        return (self.next_u64() >> 40) / 2**24

    def next_double(self) -> float:
        return (self.next_u64() >> 11) / 2**53

    def next_int(self, n: int) -> int:
        m = self.next_u64() * n
        if m % WORD < n:
            t = (WORD - n) % n
            while m % WORD < t:
                m = self.next_u64() * n
        return m >> 64

    def next_normal(self) -> float:
        total = self.next_single()
        for _ in range(11):
            total = single(total + self.next_single())
        return single(total - 6)


def permute(position: int, n: int, key: int) -> int:
    """R26."""
    if n <= 1:
        return 0
    bits = next(bits for bits in range(65) if 1 << bits >= n)
    half = (bits + 1) // 2
    mask = (1 << half) - 1
    x = position
    while True:
        left, right = x >> half, x & mask
        for turn in range(4):
            f = mix(right ^ key ^ (turn * 0x632BE59BD9B4E019 % WORD)) & mask
            left, right = right, left ^ f
        x = (left << half) | right
        if x < n:
            return x
