"""The images of a batch written by numpy, one after the other.

Owns `write_images`. Invariant: the bytes are those of the compiled form in `compiled_lines`. Each image is edited in
contiguous scratch memory, which stays in a core's cache: on a view of the batch numpy takes twice the time, and buffers
that it allocates each time. Fails with SlotError where an augmentation does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.augment import Augmentation, Compose, GainOffset
from loader_service.contract.buffers import scratch
from loader_service.contract.collate.collator import BatchContext, SlotError
from loader_service.contract.ragged import RaggedImages
from loader_service.contract.rng import STREAM_AUGMENTATION, RngArray, SampleRng, derive_slots
from loader_service.contract.sample import ImageSample

__all__ = ["write_images"]

_Image = NDArray[np.float32]
_Edit = Callable[[_Image, _Image, tuple[Any, ...]], _Image]
"""`edit(source, room, numbers)`: the edited image, in `room`, [C, H, W] contiguous; or `source` itself."""

_BLOCK_ROWS = 128
"""Rows whose numbers are drawn together: none of the arrays that this takes is of 4 KiB."""


def write_images(
    samples: Sequence[ImageSample], context: BatchContext, images: _Image, augmentation: Any, pad_value: float
) -> None:
    """Write all images of a batch.

    Args:
        samples: B samples that were checked.
        context: Where the batch stands.
        images: float32 [B, C, H, Wp], any content.
        augmentation: As of ImageBatchCollator.
        pad_value: Stands in the columns behind an image's width.

    Raises:
        SlotError: If the augmentation raises, for the first row where it does.
    """
    for first in range(0, len(samples), _BLOCK_ROWS):
        rows = images[first : first + _BLOCK_ROWS]
        numbers = _numbers(augmentation, context, first, len(rows))
        if augmentation is None or type(augmentation) is GainOffset:  # cannot fail, so in any order
            part = samples if len(rows) == len(samples) else samples[first : first + len(rows)]
            _write_sorted(part, rows, numbers, pad_value)
        else:
            _write_in_order(samples, first, rows, numbers, _editor(augmentation), pad_value)


def _write_sorted(samples: Sequence[ImageSample], images: _Image, drawn: tuple[_Image, ...], pad_value: float) -> None:
    """From the narrowest to the widest: so the columns behind each hold padding already, in one padded scratch image.

    drawn: gain and offset of each row, or nothing.
    """
    lines, padded = images.shape[1] * images.shape[2], images.shape[3]
    targets = images.reshape(len(images), lines, padded)  # [B, C, H, Wp] -> [B, C·H, Wp]
    wide = scratch("padded image", (lines, padded))
    wide.fill(pad_value)
    widths = _widths(samples)
    order = np.argsort(widths, kind="stable")
    rows = zip(order, map(int, widths[order]), _flat(samples, order, lines), strict=True)
    if not drawn:
        for row, width, source in rows:
            wide[:, :width] = source.reshape(lines, width)
            targets[row] = wide
        return
    room, multiply, add = scratch("augmentation", (lines * padded,)), np.multiply, np.add
    gains, offsets = (numbers[order] for numbers in drawn)
    for (row, width, source), gain, offset in zip(rows, gains, offsets, strict=True):
        edited = room[: source.size]
        multiply(source, gain, edited)
        add(edited, offset, edited)
        wide[:, :width] = edited.reshape(lines, width)
        targets[row] = wide


def _write_in_order(
    samples: Sequence[ImageSample],
    first: int,
    images: _Image,
    numbers: tuple[Any, ...],
    edit: _Edit,
    pad_value: float,
) -> None:
    """From the first row to the last, so that the error of an augmentation is always that of the first row with one."""
    room = scratch("augmentation", (images[0].size,))
    drawn = zip(*numbers, strict=True) if numbers else repeat(())
    for row, (target, own) in enumerate(zip(images, drawn, strict=False), first):
        target.fill(pad_value)  # all of it: less time than the columns at the right alone
        source = samples[row].image
        try:
            edited = edit(source, room[: source.size].reshape(source.shape), own)  # room -> [C, H, W_i]
        except Exception as error:
            raise SlotError(row, error) from error
        target[:, :, : source.shape[2]] = edited


def _widths(samples: Sequence[ImageSample]) -> NDArray[np.int64]:
    if isinstance(samples, RaggedImages):
        return samples.widths
    return np.array([sample.image.shape[2] for sample in samples], np.int64)


def _flat(samples: Sequence[ImageSample], order: NDArray[np.intp], lines: int) -> Iterator[_Image]:
    """The images in this order, each flat."""
    if not isinstance(samples, RaggedImages):
        return (samples[row].image.reshape(-1) for row in order)
    values, spans = samples.values, zip(map(int, samples.starts[order]), map(int, samples.widths[order]), strict=True)
    return (values[start : start + lines * width] for start, width in spans)


def _numbers(augmentation: Any, context: BatchContext, first: int, count: int) -> tuple[Any, ...]:
    """Draw the numbers that the edits of rows [first, first + count) take, for all at once; or give their keys."""
    if augmentation is None or getattr(augmentation, "draws", None) == 0:
        return ()
    slots = np.arange(context.first_slot + first, context.first_slot + first + count, dtype=np.uint64)
    keys = derive_slots(context.seed, context.epoch, context.step_in_epoch, slots, STREAM_AUGMENTATION)
    return tuple(augmentation.draw(RngArray(keys))) if _draws(augmentation) else (keys,)


def _draws(augmentation: Any) -> bool:
    return getattr(augmentation, "draws", None) is not None and hasattr(augmentation, "apply")


def _editor(augmentation: Any) -> _Edit:
    if isinstance(augmentation, Augmentation | Compose) and _draws(augmentation):
        apply_from = augmentation.apply_from

        def edit_shipped(source: _Image, room: _Image, drawn: tuple[Any, ...]) -> _Image:
            apply_from(source, room, *drawn)
            return room

        return edit_shipped

    def edit(source: _Image, room: _Image, drawn: tuple[Any, ...]) -> _Image:
        room[...] = source
        draws = _draws(augmentation)
        result = augmentation.apply(room, *drawn) if draws else augmentation(room, SampleRng(int(drawn[0])))
        _check_result(augmentation, result, room)
        return room

    return edit


def _check_result(augmentation: Any, result: Any, image: _Image) -> None:
    if isinstance(result, np.ndarray) and result.shape != image.shape:
        raise ValueError(
            f"augmentation {augmentation!r} returned an array of shape {list(result.shape)} for an image of "
            f"{list(image.shape)}; it edits the image in place and cannot change its shape: use a transform"
        )
    if isinstance(result, np.ndarray) and result.size and not np.may_share_memory(result, image):
        raise ValueError(f"augmentation {augmentation!r} returned a new array; it must edit the image in place")
