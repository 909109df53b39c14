"""Kernels that edit one image in place: the shipped augmentations, and programs of several.

Owns `EDIT`, the signature of all such kernels, and `run_program`. Invariant: each draws the numbers and rounds to
float32 as the augmentation in `contract.augment` does that it stands for, so the bits are equal.

    program: float64 [K · 4], for each augmentation in turn its number and up to three parameters
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from loader_service.contract.fused.compiler import kernel
from loader_service.contract.fused.randoms import next_normal, next_single, next_u64, splitmix
from loader_service.contract.rng import GAMMA

__all__ = [
    "BLUR",
    "BYTE_SUM_DEVIATION",
    "BYTE_SUM_MEAN",
    "EDIT",
    "ERASE",
    "GAIN_OFFSET",
    "NOISE",
    "PROGRAM_WORDS",
    "SHEAR",
    "run_program",
]

EDIT = "void(float32[:,:,::1], uint64[::1], Array(float64, 1, 'C', True))"
"""Of a kernel `edit(image, rng, options)`: image float32 [C, H, W], contiguous; rng uint64 [1]; options float64 [K]."""

GAIN_OFFSET, NOISE, BLUR, SHEAR, ERASE = range(5)
PROGRAM_WORDS = 4
BYTE_SUM_MEAN = np.float32(8 * 127.5)
BYTE_SUM_DEVIATION = math.sqrt(8 * (2**16 - 1) / 12)  # correctly rounded everywhere

_GAMMA = np.uint64(GAMMA)
_1, _8, _48 = np.uint64(1), np.uint64(8), np.uint64(48)
_EVEN_BYTES, _ADD_LANES = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0001000100010001)
_HALF, _ONE, _TWO = np.float32(0.5), np.float32(1.0), np.float32(2.0)


@kernel()
def _gain_offset(image: Any, gain: Any, offset: Any) -> None:
    flat = image.reshape(-1)
    for i in range(flat.size):
        flat[i] = flat[i] * gain + offset


@kernel()
def _noise(image: Any, key: Any, scale: Any) -> None:
    flat = image.reshape(-1)
    state = key
    for i in range(flat.size):
        state += _GAMMA
        bits = splitmix(state)
        bits = (bits & _EVEN_BYTES) + ((bits >> _8) & _EVEN_BYTES)  # four lanes of 16 bits
        total = np.float32((bits * _ADD_LANES) >> _48)  # their sum stands in the highest
        flat[i] = flat[i] + (total - BYTE_SUM_MEAN) * scale


@kernel()
def _blur(image: Any, strength: Any) -> None:
    side, middle = strength * _HALF, _ONE - strength
    channels, height, width = image.shape
    for row in range(channels * height if width else 0):
        line = image[row // height, row % height]
        left = line[0]
        for x in range(width - 1):
            here = line[x]
            line[x] = here * middle + (left + line[x + 1]) * side
            left = here
        here = line[width - 1]
        line[width - 1] = here * middle + (left + here) * side


@kernel()
def _shift(line: Any, shift: int, fill: Any) -> None:
    width = line.size
    if shift > 0:
        for x in range(width - 1, shift - 1, -1):
            line[x] = line[x - shift]
        line[: min(shift, width)] = fill
    elif shift < 0:
        for x in range(width + shift):
            line[x] = line[x - shift]
        line[max(width + shift, 0) :] = fill


@kernel()
def _shear(image: Any, slope: Any, fill: Any) -> None:
    channels, height, _ = image.shape
    for y in range(height):
        shift = int(np.rint(slope * np.float32(height / 2 - y)))
        for channel in range(channels):
            _shift(image[channel, y], shift, fill)


@kernel()
def _erase(image: Any, rng: Any, largest: float, fill: Any) -> None:
    channels, height, width = image.shape
    tall, wide, top, left = next_single(rng), next_single(rng), next_single(rng), next_single(rng)
    rows, columns = int(tall * np.float32(largest * height)), int(wide * np.float32(largest * width))
    y, x = int(top * np.float32(height - rows)), int(left * np.float32(width - columns))
    for channel in range(channels):
        for row in range(y, y + rows):
            image[channel, row, x : x + columns] = fill


@kernel(EDIT)
def run_program(image: Any, rng: Any, program: Any) -> None:
    """Edit `image` by each augmentation of `program` in turn."""
    for at in range(0, program.size, PROGRAM_WORDS):
        operation, a, b, c = int(program[at]), program[at + 1], program[at + 2], program[at + 3]
        if operation == GAIN_OFFSET:
            gain = np.float32(a) + np.float32(b) * next_single(rng)
            offset = next_normal(rng) * np.float32(c)
            _gain_offset(image, gain, offset)
        elif operation == NOISE:
            _noise(image, next_u64(rng), np.float32(a / BYTE_SUM_DEVIATION))
        elif operation == BLUR:
            _blur(image, np.float32(a) * next_single(rng))
        elif operation == SHEAR:
            _shear(image, np.float32(a) * (next_single(rng) * _TWO - _ONE), np.float32(b))
        elif operation == ERASE:
            _erase(image, rng, a, np.float32(b))
