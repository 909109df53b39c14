"""The images of a batch written by compiled kernels.

Owns `segments` and `write_lines`. Invariant: the bytes are those of the numpy form in `line_images`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.augment import Blur, Compose, Erase, GainOffset, Noise, Shear
from loader_service.contract.buffers import scratch
from loader_service.contract.collate.collator import BatchContext
from loader_service.contract.fused.compiler import Kernel
from loader_service.contract.fused.edits import run_program
from loader_service.contract.fused.lines import edit_images, write_images, write_states
from loader_service.contract.fused.user_edits import CompiledEdit, check_bits
from loader_service.contract.ragged import RaggedImages
from loader_service.contract.rng import MASK64
from loader_service.contract.sample import ImageSample

__all__ = ["Segment", "one_block", "segments", "write_lines"]

Segment = tuple[Kernel, NDArray[np.float64]]
"""A kernel that edits an image, and its options."""


def segments(augmentation: Any) -> list[Segment] | None:
    """The kernels that do what `augmentation` does, in order, or None where it has no compiled form.

    Shipped augmentations that follow each other are one program.
    """
    found: list[Segment] = []
    program: list[float] = []
    for one in _flat(augmentation):
        if isinstance(one, CompiledEdit):
            check_bits(one)
            found += [*_programmed(program), (one.kernel, np.array(one.options, np.float64))]
            program = []
        elif type(one) in _SHIPPED:  # not a subclass, which may edit otherwise
            program += one.program
        else:
            return None
    return [*found, *_programmed(program)]


def _flat(augmentation: Any) -> list[Any]:
    if augmentation is None:
        return []
    if type(augmentation) is Compose:
        return [one for part in augmentation.augmentations for one in _flat(part)]
    return [augmentation]


def _programmed(program: list[float]) -> list[Segment]:
    return [(run_program, np.array(program, np.float64))] if program else []


def one_block(samples: Sequence[ImageSample]) -> RaggedImages:
    """Checked samples, each in memory of its own, copied into one block that the next call uses again."""
    images = [sample.image for sample in samples]
    sizes = np.array([image.size for image in images], np.int64)
    starts = np.cumsum(sizes) - sizes
    block = scratch("image block", (int(sizes.sum()),))
    np.concatenate([image.reshape(-1) for image in images], out=block)
    widths = np.array([image.shape[2] for image in images], np.int64)
    channels, height, _ = images[0].shape
    nothing, none = np.zeros(len(images), np.int64), np.zeros(len(images), np.int32)
    return RaggedImages(block, starts, widths, channels, height, none[:0], nothing, nothing, none)


_SHIPPED = {GainOffset, Noise, Blur, Shear, Erase}
_NOTHING = np.empty(0, np.float64)


def write_lines(
    values: NDArray[np.float32],
    starts: NDArray[np.int64],
    widths: NDArray[np.int64],
    context: BatchContext,
    images: NDArray[np.float32],
    edits: list[Segment],
    pad_value: float,
) -> None:
    """Write `images`, [B, C, H, Wp], out of the block `values`, each edited by `edits` in turn.

    The caller has checked that every image lies in the block.
    """
    count, channels, height, _ = images.shape
    states = scratch("generators", (count,), np.uint64)
    place = (context.seed & MASK64, context.epoch & MASK64, context.step_in_epoch & MASK64, context.first_slot & MASK64)
    write_states(*map(np.uint64, place), states)
    room = scratch("augmentation", (channels * height * images.shape[3],))
    rest = edits
    first = _NOTHING
    if edits and edits[0][0] is run_program:
        first, rest = edits[0][1], edits[1:]
    write_images(values, starts, widths, states, first, np.float32(pad_value), room, images)
    for kernel, options in rest:
        edit_images(kernel.compiled, options, widths, states, room, images)
