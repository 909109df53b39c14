"""Line images of one height, padded to one width (R40 to R46).

Owns `ImageBatchCollator`. Invariant: the padded width is that of the batch, the augmentation of slot j gets the random
numbers of `derive(seed, epoch, step_in_epoch, j, 1)`, and it cannot change the width.

    padded width Wp = max W_i rounded up to a multiple of width_multiple
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import index
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.buffers import scratch
from loader_service.contract.checks import MAX_N, checked_callable, checked_float32, checked_int, set_fields
from loader_service.contract.collate.collator import BatchContext, Padding, SlotError
from loader_service.contract.collate.compiled_lines import one_block, segments, write_lines
from loader_service.contract.collate.numpy_lines import write_images
from loader_service.contract.fused import compiles
from loader_service.contract.fused.lines import write_targets
from loader_service.contract.layout import Layout, align, ragged
from loader_service.contract.ragged import RaggedImages
from loader_service.contract.rng import SampleRng
from loader_service.contract.sample import ImageSample

__all__ = ["ImageBatchCollator", "ImageEdit"]

ImageEdit = Callable[[NDArray[np.float32], SampleRng], Any]
"""Edits a contiguous float32 [C, H, W] array in place. One that also has `draw(rng)` and `apply(image, *drawn)`, as
those of `contract.augment`, is drawn for a whole batch at once: the same bits, faster."""

_INT32 = np.iinfo(np.int32)
_TARGET_ROWS = 256


@dataclass(frozen=True)
class ImageBatchCollator:
    """Pads line images to one width; targets are concatenated as CTC wants them (R40 to R46).

    Tensors: images float32 [B, C, H, Wp], widths int32 [B], targets int32 [sum L_i], target_lengths int32 [B],
    labels int32 [B], indices int32 [B]. Columns W_i..Wp hold pad_value.

    Args:
        width_multiple: Wp is a multiple of it; at least 1.
        pad_value: finite in float32.
        augmentation: called as `augmentation(image, rng)` to edit each image, float32 [C, H, W_i], in place; those of
            `loader_service.augment`, or one of your own.

    Raises:
        ArgumentError: an argument outside its range.
    """

    width_multiple: int = 1
    pad_value: float = 0.0
    augmentation: ImageEdit | None = None
    pads: ClassVar[Padding] = "widths"

    def __post_init__(self) -> None:
        multiple = checked_int("width_multiple", self.width_multiple, 1, MAX_N)
        set_fields(self, width_multiple=multiple, pad_value=checked_float32("pad_value", self.pad_value))
        if self.augmentation is not None:
            checked_callable("augmentation", self.augmentation, "image", "rng")

    def plan(self, samples: Sequence[ImageSample], context: BatchContext) -> Layout:
        """Plan the layout of `samples`. Raises SlotError where a sample does not fit the others."""
        if isinstance(samples, RaggedImages):
            channels, height = samples.channels, samples.height
            width, targets = (int(samples.widths.max()), int(samples.target_lengths.sum())) if len(samples) else (0, 0)
        else:
            channels, height = _agreed(samples, context)
            width = max((sample.image.shape[2] for sample in samples), default=0)
            targets = sum(len(sample.target) for sample in samples)
        width = align(max(width, context.least_width), self.width_multiple)
        return _layout(len(samples), channels, height, width, targets)

    def write(self, samples: Sequence[ImageSample], context: BatchContext, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Fill `tensors` (views of the planned layout, any old content). Raises SlotError."""
        tensors["indices"][:] = _as_int32("dataset index", context.indices)
        if not len(samples):
            return
        edits = segments(self.augmentation) if compiles() else None
        if isinstance(samples, RaggedImages):
            _write_ragged(samples, tensors)
        else:
            _write_listed(samples, tensors)
        if edits is None:
            write_images(samples, context, tensors["images"], self.augmentation, self.pad_value)
        else:
            block = samples if isinstance(samples, RaggedImages) else one_block(samples)
            write_lines(block.values, block.starts, block.widths, context, tensors["images"], edits, self.pad_value)


@lru_cache(maxsize=1024)
def _layout(count: int, channels: int, height: int, width: int, targets: int) -> Layout:
    return Layout.plan(
        [
            ("images", np.float32, (count, channels, height, width)),
            ("widths", np.int32, (count,)),
            ("targets", np.int32, (targets,), ragged("target_lengths")),
            ("target_lengths", np.int32, (count,)),
            ("labels", np.int32, (count,)),
            ("indices", np.int32, (count,)),
        ]
    )


def _write_ragged(samples: RaggedImages, tensors: Mapping[str, NDArray[Any]]) -> None:
    """All tensors but the images and indices, of samples in one block."""
    tensors["widths"][:] = samples.widths
    tensors["target_lengths"][:] = samples.target_lengths
    tensors["labels"][:] = samples.labels
    if compiles():
        write_targets(samples.targets, samples.target_starts, samples.target_lengths, tensors["targets"])
        return
    at = 0
    for first in range(0, len(samples), _TARGET_ROWS):
        starts = samples.target_starts[first : first + _TARGET_ROWS]
        at += _gather(samples.targets, starts, samples.target_lengths[first:], tensors["targets"][at:])


def _gather(
    values: NDArray[np.int32], starts: NDArray[np.int64], lengths: NDArray[np.int64], out: NDArray[np.int32]
) -> int:
    """Write values[start : start + length] of some rows, one behind the other. Returns how many elements these are."""
    there = np.flatnonzero(lengths[: len(starts)])
    starts, lengths = starts[there], lengths[there]
    ends = np.add.accumulate(lengths)
    total = int(ends[-1]) if len(ends) else 0
    if total:
        places = scratch("target places", (total,), np.int64)
        places.fill(1)
        places[0] = starts[0]
        places[ends[:-1]] = starts[1:] - starts[:-1] - lengths[:-1] + 1  # from the end of one row to the next begin
        np.add.accumulate(places, out=places)
        np.take(values, places, out=out[:total], mode="clip")  # all lie within; to look, numpy would copy `out`
    return total


def _write_listed(samples: Sequence[ImageSample], tensors: Mapping[str, NDArray[Any]]) -> None:
    """The same of a list of samples. Raises SlotError."""
    tensors["widths"][:] = [sample.image.shape[2] for sample in samples]
    tensors["target_lengths"][:] = [len(sample.target) for sample in samples]
    np.concatenate([sample.target for sample in samples], out=tensors["targets"], casting="same_kind")
    tensors["labels"][:] = _as_int32("label", [sample.label for sample in samples])


def _as_int32(what: str, values: Sequence[Any] | NDArray[np.int64]) -> Any:
    """`values` if all are integers that int32 can hold. Raises SlotError, which names the first that is not."""
    try:
        array = np.asarray(values)
    except ValueError:  # numbers beside sequences
        array = np.array(values, object)
    plain = array.dtype.kind in "iu" and array.ndim == 1
    if not plain or (array.size and not _INT32.min <= array.min() <= array.max() <= _INT32.max):
        for row, value in enumerate(values):
            _check_int32(row, what, value)
    return values


def _check_int32(row: int, what: str, value: Any) -> None:
    try:
        value = index(value)
    except TypeError as error:
        raise SlotError(row, TypeError(f"{what} is {value!r}; it must be an integer")) from error
    if not _INT32.min <= value <= _INT32.max:
        raise SlotError(row, ValueError(f"{what} {value} does not fit the int32 tensor of the batch"))


def _agreed(samples: Sequence[ImageSample], context: BatchContext) -> tuple[int, int]:
    """Channels and height that all samples have. Raises SlotError."""
    first = samples[0] if samples else context.example
    for row, sample in enumerate(samples):
        problem = _problem(sample, first)
        if problem:
            raise SlotError(row, ValueError(problem))
    channels, height, _ = first.image.shape
    return channels, height


def _problem(sample: ImageSample, first: ImageSample) -> str:
    """Say what keeps `sample` out of a batch with `first`; an empty text where nothing does."""
    image, target = getattr(sample, "image", None), getattr(sample, "target", None)
    if not isinstance(image, np.ndarray) or not isinstance(target, np.ndarray):
        return f"the sample is {type(sample).__name__}; it must be an ImageSample of arrays"
    if image.dtype != np.float32 or image.ndim != 3:
        return f"the image is {image.dtype}{list(image.shape)}; it must be float32 [C, H, W]"
    if image.shape[:2] != first.image.shape[:2]:
        return (
            f"the image has [C, H] = {list(image.shape[:2])} and the first has {list(first.image.shape[:2])}; "
            "all samples of a batch must agree"
        )
    if target.dtype != np.int32 or target.ndim != 1:
        return f"the target is {target.dtype}{list(target.shape)}; it must be int32 [L]"
    return ""
