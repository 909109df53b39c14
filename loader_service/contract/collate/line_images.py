"""Line images of one height, padded to one width (R40 to R46).

Owns `ImageBatchCollator`. Invariant: the padded width is that of the batch, the augmentation of slot j gets the random
numbers of `derive(seed, epoch, step_in_epoch, j, 1)`, and it cannot change the width.

    padded width Wp = max W_i rounded up to a multiple of width_multiple
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.buffers import scratch
from loader_service.contract.checks import MAX_N, checked_float32, checked_int, set_fields
from loader_service.contract.collate.collator import BatchContext, Padding, SlotError
from loader_service.contract.layout import Layout, align, ragged
from loader_service.contract.rng import STREAM_AUGMENTATION, RngArray, SampleRng, derive_slots
from loader_service.contract.sample import ImageSample

__all__ = ["ImageBatchCollator", "ImageEdit"]

ImageEdit = Callable[[NDArray[np.float32], SampleRng], Any]
"""Edits a contiguous float32 [C, H, W] array in place. One that also has `draw(rng)` and `apply(image, *drawn)`, as
those of `contract.augment`, is drawn for a whole batch at once: the same bits, faster."""

_Edit = Callable[[int, NDArray[np.float32]], Any]
"""`edit(row, image)`: in place; what it returns is only looked at."""

_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class ImageBatchCollator:
    """Pads line images to one width; targets are concatenated as CTC wants them.

    Tensors: images float32 [B, C, H, Wp], widths int32 [B], targets int32 [sum L_i], target_lengths int32 [B],
    labels int32 [B], indices int32 [B]. Columns W_i..Wp hold pad_value.
    """

    width_multiple: int = 1
    pad_value: float = 0.0
    augmentation: ImageEdit | None = None
    pads: ClassVar[Padding] = "widths"

    def __post_init__(self) -> None:
        multiple = checked_int("width_multiple", self.width_multiple, 1, MAX_N)
        set_fields(self, width_multiple=multiple, pad_value=checked_float32("pad_value", self.pad_value))

    def plan(self, samples: Sequence[ImageSample], context: BatchContext) -> Layout:
        """The layout of `samples`. Raises SlotError where a sample does not fit the others."""
        first = samples[0] if samples else context.example
        for row, sample in enumerate(samples):
            _check_sample(row, sample, first)
        channels, height, _ = first.image.shape
        width = max((sample.image.shape[2] for sample in samples), default=0)
        width = align(max(width, context.least_width), self.width_multiple)
        count = len(samples)
        return Layout.plan(
            [
                ("images", np.float32, (count, channels, height, width)),
                ("widths", np.int32, (count,)),
                ("targets", np.int32, (sum(len(sample.target) for sample in samples),), ragged("target_lengths")),
                ("target_lengths", np.int32, (count,)),
                ("labels", np.int32, (count,)),
                ("indices", np.int32, (count,)),
            ]
        )

    def write(self, samples: Sequence[ImageSample], context: BatchContext, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Fill `tensors` (views of the planned layout, any old content). Raises SlotError."""
        tensors["widths"][:] = [sample.image.shape[2] for sample in samples]
        tensors["target_lengths"][:] = [len(sample.target) for sample in samples]
        if samples:
            np.concatenate([sample.target for sample in samples], out=tensors["targets"], casting="same_kind")
        tensors["labels"][:] = _as_int32("label", [sample.label for sample in samples])
        tensors["indices"][:] = _as_int32("dataset index", context.indices)
        if samples:
            self._write_images(samples, context, tensors["images"])

    def _write_images(self, samples: Sequence[ImageSample], context: BatchContext, images: NDArray[np.float32]) -> None:
        edit = None if self.augmentation is None else _editor(self.augmentation, _keys(context))
        pad_value = np.float32(self.pad_value)
        room = scratch("augmentation", (images[0].size,))
        for row, (sample, target) in enumerate(zip(samples, images, strict=True)):
            width = sample.image.shape[2]
            image = target[:, :, :width]  # [C, H, W_i], a view of the batch
            target[:, :, width:] = pad_value
            if edit is None:
                image[...] = sample.image
                continue
            # Contiguous: on a view of the batch numpy takes twice the time, and buffers that it allocates each time.
            contiguous = room[: image.size].reshape(image.shape)  # -> [C, H, W_i]
            contiguous[...] = sample.image
            try:
                _check_result(self.augmentation, edit(row, contiguous), contiguous)
            except Exception as error:
                raise SlotError(row, error) from error
            image[...] = contiguous


def _keys(context: BatchContext) -> NDArray[np.uint64]:
    return derive_slots(context.seed, context.epoch, context.step_in_epoch, context.slots, STREAM_AUGMENTATION)


def _editor(augmentation: Any, keys: NDArray[np.uint64]) -> _Edit:
    """What edits the image of a row: drawn for all rows at once where the augmentation can."""
    if hasattr(augmentation, "draw") and hasattr(augmentation, "apply"):
        drawn = augmentation.draw(RngArray(keys))

        def edit(row: int, image: NDArray[np.float32]) -> Any:
            return augmentation.apply(image, *(values[row] for values in drawn))
    else:

        def edit(row: int, image: NDArray[np.float32]) -> Any:
            return augmentation(image, SampleRng(int(keys[row])))

    return edit


def _check_result(augmentation: Any, result: Any, image: NDArray[np.float32]) -> None:
    if isinstance(result, np.ndarray) and result.shape != image.shape:
        raise ValueError(
            f"augmentation {augmentation!r} returned an array of shape {list(result.shape)} for an image of "
            f"{list(image.shape)}; it edits the image in place and cannot change its shape: use a transform"
        )
    if isinstance(result, np.ndarray) and result.size and not np.may_share_memory(result, image):
        raise ValueError(f"augmentation {augmentation!r} returned a new array; it must edit the image in place")


def _as_int32(what: str, values: Sequence[Any] | NDArray[np.int64]) -> Any:
    """`values` if all are integers that int32 can hold. Raises SlotError, which names the first that is not."""
    try:
        array = np.asarray(values)
    except ValueError:  # numbers beside sequences
        array = np.array(values, object)
    in_range = array.dtype.kind in "iu" and array.ndim == 1 and np.all((array >= _INT32.min) & (array <= _INT32.max))
    if not in_range:
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


def _check_sample(row: int, sample: ImageSample, first: ImageSample) -> None:
    problem = _problem(sample, first)
    if problem:
        raise SlotError(row, ValueError(problem))


def _problem(sample: ImageSample, first: ImageSample) -> str:
    """What keeps `sample` out of a batch with `first`, or an empty text."""
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
