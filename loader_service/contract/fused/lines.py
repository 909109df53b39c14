"""Kernels that write a batch of line images straight into its slot.

Owns `write_images`, `edit_images` and `write_targets`. Invariant: every element of the written rows is written, in one
pass over memory; images are read out of one block, at `starts`, where the caller has checked that they lie.

    images[b, c, h, :W_b] = edited(values[starts[b]:]);  images[b, c, h, W_b:] = pad
"""

from __future__ import annotations

from typing import Any

import numpy as np

from loader_service.contract.fused.compiler import kernel
from loader_service.contract.fused.edits import EDIT, GAIN_OFFSET, PROGRAM_WORDS, run_program
from loader_service.contract.fused.randoms import derive_key, next_normal, next_single
from loader_service.contract.fused.stores import copy_four, publish, put_four, scale_four
from loader_service.contract.rng import STREAM_AUGMENTATION

__all__ = ["edit_images", "write_images", "write_states", "write_targets"]

_STREAM = np.uint64(STREAM_AUGMENTATION)
_0, _1, _2, _FOUR = np.uintp(0), np.uintp(1), np.uintp(2), np.uintp(4)
_ONE = np.float32(1.0)


@kernel()
def _value(value: Any, scales: bool, gain: Any, offset: Any) -> Any:
    return value * gain + offset if scales else value


@kernel()
def _write_lines(source: Any, width: Any, scales: bool, gain: Any, offset: Any, pad: Any, image: Any) -> None:
    """Rows of `width` values, one behind the other, into [rows, padded width], by ordinary stores."""
    first, padded = np.uintp(0), np.uintp(image.shape[1])  # unsigned: no test for negative indices, so it vectorises
    for y in range(image.shape[0]):
        line = image[y]
        for x in range(width):
            line[x] = _value(source[first + x], scales, gain, offset)
        for x in range(width, padded):
            line[x] = pad
        first += width


@kernel()
def _stream_lines(source: Any, width: Any, scales: bool, gain: Any, offset: Any, pad: Any, image: Any) -> None:
    """The same by stores that pass the caches: the padded width is a multiple of four, the address one of 16."""
    flat, padded, at = image.reshape(-1), np.uintp(image.shape[1]), np.uintp(0)
    first, rest = np.uintp(0), width % _FOUR
    whole = width - rest
    for _ in range(image.shape[0]):
        for x in range(_0, whole, _FOUR):
            if scales:
                scale_four(source, first + x, gain, offset, flat, at + x)
            else:
                copy_four(source, first + x, flat, at + x)
        if rest:
            last = first + whole
            a = _value(source[last], scales, gain, offset)
            b = _value(source[last + _1], scales, gain, offset) if rest > _1 else pad
            c = _value(source[last + _2], scales, gain, offset) if rest > _2 else pad
            put_four(a, b, c, pad, flat, at + whole)
        for x in range(width + (_FOUR - rest) % _FOUR, padded, _FOUR):
            put_four(pad, pad, pad, pad, flat, at + x)
        first += width
        at += padded


@kernel()
def _write_image(source: Any, width: Any, scales: bool, gain: Any, offset: Any, pad: Any, image: Any) -> None:
    if image.shape[1] % 4 == 0 and image.ctypes.data % 16 == 0:
        _stream_lines(source, width, scales, gain, offset, pad, image)
    else:
        _write_lines(source, width, scales, gain, offset, pad, image)


@kernel(
    "void(Array(float32, 1, 'C', True), Array(int64, 1, 'C', True), Array(int64, 1, 'C', True), uint64[::1], "
    "Array(float64, 1, 'C', True), float32, float32[::1], float32[:,:,:,::1])"
)
def write_images(
    values: Any, starts: Any, widths: Any, states: Any, program: Any, pad: Any, scratch: Any, images: Any
) -> None:
    """Write all images of a batch, edited by `program`.

    Args:
        values: float32 [V], the block that the images stand in, each contiguous.
        starts: int64 [B], of each image's first value; widths: int64 [B].
        states: uint64 [B], the generators of the rows: they are left where the program's draws end.
        program: float64, see `edits`.
        pad: float32, what the columns behind the width hold.
        scratch: float32, at least [C · H · widest].
        images: float32 [B, C, H, Wp], any content.
    """
    count, channels, height, padded = images.shape
    lines = channels * height
    for row in range(count):
        width = np.uintp(widths[row])
        source, image = values[starts[row] :], images[row].reshape(lines, padded)  # [C, H, Wp] -> [C·H, Wp]
        rng = states[row : row + 1]
        if program.size == 0:
            _write_image(source, width, False, _ONE, _ONE, pad, image)
        elif program.size == PROGRAM_WORDS and program[0] == GAIN_OFFSET:
            gain = np.float32(program[1]) + np.float32(program[2]) * next_single(rng)
            offset = next_normal(rng) * np.float32(program[3])
            _write_image(source, width, True, gain, offset, pad, image)
        else:
            size = lines * widths[row]
            for i in range(np.uintp(size)):
                scratch[i] = source[i]
            run_program(scratch[:size].reshape(channels, height, widths[row]), rng, program)
            _write_image(scratch, width, False, _ONE, _ONE, pad, image)
    publish()


@kernel(
    f"void(FunctionType({EDIT}), Array(float64, 1, 'C', True), Array(int64, 1, 'C', True), uint64[::1], float32[::1], "
    "float32[:,:,:,::1])"
)
def edit_images(edit: Any, options: Any, widths: Any, states: Any, scratch: Any, images: Any) -> None:
    """Run `edit(image, rng, options)` on each image of a batch, which stands at the left of its rows; see above."""
    channels, height = images.shape[1:3]
    for row in range(images.shape[0]):
        width = widths[row]
        image = scratch[: channels * height * width].reshape(channels, height, width)
        image[:] = images[row, :, :, :width]
        edit(image, states[row : row + 1], options)
        images[row, :, :, :width] = image


@kernel("void(uint64, uint64, uint64, uint64, uint64[::1])")
def write_states(seed: Any, epoch: Any, step: Any, first_slot: Any, states: Any) -> None:
    """The generators of the slots from `first_slot` on: their keys, uint64 [B]."""
    slot = first_slot
    for row in range(states.size):
        states[row] = derive_key(seed, epoch, step, slot, _STREAM)
        slot += np.uint64(1)


@kernel("void(Array(int32, 1, 'C', True), Array(int64, 1, 'C', True), Array(int64, 1, 'C', True), int32[::1])")
def write_targets(values: Any, starts: Any, lengths: Any, targets: Any) -> None:
    """The targets of all rows, one behind the other: int32 [sum of lengths]."""
    at = np.uintp(0)
    for row in range(starts.size):
        first, length = np.uintp(starts[row]), np.uintp(lengths[row])
        for i in range(length):
            targets[at + i] = values[first + i]
        at += length
