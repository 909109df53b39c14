"""The images of a batch written by numpy, one after the other.

Owns `write_images`. Invariant: the bytes are those of the compiled form in `compiled_lines`. Each image is edited in
contiguous scratch memory, which stays in a core's cache: on a view of the batch numpy takes twice the time, and buffers
that it allocates each time. Fails with SlotError where an augmentation does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    read = _reader(samples)
    for first in range(0, len(samples), _BLOCK_ROWS):
        rows = _Rows(first, images[first : first + _BLOCK_ROWS], read)
        numbers = _numbers(augmentation, context, first, len(rows.images))
        if augmentation is None or type(augmentation) is GainOffset:  # cannot fail, so in any order
            _write_sorted(rows, _widths(samples, first, len(rows.images)), numbers, pad_value)
        else:
            _write_in_order(rows, numbers, _editor(augmentation), pad_value)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a batch from `first` on: where they are written, [N, C, H, Wp], and what reads the image of a row."""

    first: int
    images: _Image
    read: Callable[[int], _Image]


def _write_sorted(rows: _Rows, widths: NDArray[np.int64], drawn: tuple[_Image, ...], pad_value: float) -> None:
    """From the narrowest to the widest: so the columns behind each hold padding already, in one padded scratch image.

    drawn: gain and offset of each row, or nothing.
    """
    count, lines, padded = len(rows.images), rows.images.shape[1] * rows.images.shape[2], rows.images.shape[3]
    targets = rows.images.reshape(count, lines, padded)  # [B, C, H, Wp] -> [B, C·H, Wp]
    wide = scratch("padded image", (lines, padded))
    wide.fill(pad_value)
    order = np.argsort(widths, kind="stable")
    sources = (rows.read(rows.first + row) for row in map(int, order))
    if not drawn:
        for row, width, source in zip(order, map(int, widths[order]), sources, strict=True):
            wide[:, :width] = source.reshape(lines, width)
            targets[row] = wide
        return
    room, multiply, add = scratch("augmentation", (lines * padded,)), np.multiply, np.add
    gains, offsets = (numbers[order] for numbers in drawn)
    for row, width, source, gain, offset in zip(order, map(int, widths[order]), sources, gains, offsets, strict=True):
        edited = room[: lines * width].reshape(lines, width)
        multiply(source.reshape(lines, width), gain, edited)
        add(edited, offset, edited)
        wide[:, :width] = edited
        targets[row] = wide


def _write_in_order(rows: _Rows, numbers: tuple[Any, ...], edit: _Edit, pad_value: float) -> None:
    """From the first row to the last, so that the error of an augmentation is always that of the first row with one."""
    room = scratch("augmentation", (rows.images[0].size,))
    drawn = zip(*numbers, strict=True) if numbers else repeat(())
    for row, (target, own) in enumerate(zip(rows.images, drawn, strict=False), rows.first):
        target.fill(pad_value)  # all of it: less time than the columns at the right alone
        source = rows.read(row)
        try:
            edited = edit(source, room[: source.size].reshape(source.shape), own)  # room -> [C, H, W_i]
        except Exception as error:
            raise SlotError(row, error) from error
        target[:, :, : source.shape[2]] = edited


def _widths(samples: Sequence[ImageSample], first: int, count: int) -> NDArray[np.int64]:
    if isinstance(samples, RaggedImages):
        return samples.widths[first : first + count]
    return np.array([sample.image.shape[2] for sample in samples[first : first + count]], np.int64)


def _reader(samples: Sequence[ImageSample]) -> Callable[[int], _Image]:
    """Reads the image of a row, [C, H, W_i]."""
    if not isinstance(samples, RaggedImages):
        return lambda row: samples[row].image
    channels, height, values, starts, widths = (
        samples.channels,
        samples.height,
        samples.values,
        samples.starts,
        samples.widths,
    )

    def read(row: int) -> _Image:
        start, width = int(starts[row]), int(widths[row])
        return values[start : start + channels * height * width].reshape(channels, height, width)

    return read


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
