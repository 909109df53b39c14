"""Collators: samples -> layout -> bytes in given memory (section 4).

Owns the Collator protocol and `ImageBatchCollator`. Invariant: `plan` reads no random number and writes nothing;
`write` fills every byte of every tensor, so nothing of an earlier batch in the same memory shows through.

    padded width Wp = max W_i rounded up to a multiple of width_multiple
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from loader_service.core.layout import Layout, align
from loader_service.core.rng import STREAM_AUGMENTATION, SampleRng, derive_slots
from loader_service.core.sample import ImageSample
from loader_service.errors import ArgumentError

__all__ = ["Augmentation", "BatchContext", "Collator", "ImageBatchCollator", "SlotError"]

Augmentation = Callable[[NDArray[np.float32], SampleRng], Any]
"""Edits a float32 [C, H, W] array in place; what it returns is ignored."""

Sample_contra = TypeVar("Sample_contra", contravariant=True)
_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True, slots=True)
class BatchContext:
    """Where a batch stands: all that a collator may depend on besides the samples.

    indices: the dataset indices, int64 [B].
    """

    seed: int
    epoch: int
    step_in_epoch: int
    indices: NDArray[np.int64]


class SlotError(Exception):
    """What a collator raises for one sample: `slot` is its position in the batch, `cause` what is wrong."""

    def __init__(self, slot: int, cause: Exception) -> None:
        super().__init__(f"slot {slot}: {cause}")
        self.slot, self.cause = slot, cause


class Collator(Protocol[Sample_contra]):
    """Plans a layout for a batch of samples, then writes them into views of that layout."""

    def plan(self, samples: Sequence[Sample_contra]) -> Layout: ...
    def write(
        self, samples: Sequence[Sample_contra], context: BatchContext, tensors: Mapping[str, NDArray[Any]]
    ) -> None: ...


@dataclass(frozen=True)
class ImageBatchCollator:
    """Pads line images to one width; targets are concatenated as CTC wants them.

    Tensors: images float32 [B, C, H, Wp], widths int32 [B], targets int32 [sum L_i], target_lengths int32 [B],
    labels int32 [B], indices int32 [B]. The augmentation gets each image as a contiguous [C, H, W_i] array and
    the random numbers of `derive(seed, epoch, step_in_epoch, slot, 1)`; it cannot change the width.
    """

    width_multiple: int = 1
    pad_value: float = 0.0
    augmentation: Augmentation | None = None

    def __post_init__(self) -> None:
        if self.width_multiple < 1:
            raise ArgumentError(f"width_multiple is {self.width_multiple}; it must be at least 1")

    def plan(self, samples: Sequence[ImageSample]) -> Layout:
        """The layout of `samples` (B >= 1). Raises SlotError where a sample does not fit the others."""
        for slot, sample in enumerate(samples):
            _check_sample(slot, sample, samples[0])
        count = len(samples)
        channels, height, _ = samples[0].image.shape
        width = align(max(sample.image.shape[2] for sample in samples), self.width_multiple)
        return Layout.plan(
            [
                ("images", np.float32, (count, channels, height, width)),
                ("widths", np.int32, (count,)),
                ("targets", np.int32, (sum(len(sample.target) for sample in samples),)),
                ("target_lengths", np.int32, (count,)),
                ("labels", np.int32, (count,)),
                ("indices", np.int32, (count,)),
            ]
        )

    def write(self, samples: Sequence[ImageSample], context: BatchContext, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Fill `tensors` (views of the planned layout, any old content)."""
        tensors["widths"][:] = [sample.image.shape[2] for sample in samples]
        tensors["target_lengths"][:] = [len(sample.target) for sample in samples]
        np.concatenate([sample.target for sample in samples], out=tensors["targets"], casting="same_kind")
        tensors["labels"][:] = [_as_int32(slot, "label", s.label) for slot, s in enumerate(samples)]
        tensors["indices"][:] = [_as_int32(slot, "dataset index", i) for slot, i in enumerate(context.indices)]
        if self.augmentation is None:
            _write_images(samples, tensors["images"], np.float32(self.pad_value))
        else:
            self._write_augmented(samples, context, tensors["images"], self.augmentation)

    def _write_augmented(
        self,
        samples: Sequence[ImageSample],
        context: BatchContext,
        images: NDArray[np.float32],
        augmentation: Augmentation,
    ) -> None:
        slots = np.arange(len(samples), dtype=np.uint64)
        keys = derive_slots(context.seed, context.epoch, context.step_in_epoch, slots, STREAM_AUGMENTATION)
        scratch = np.empty(max(sample.image.size for sample in samples), np.float32)
        pad_value = np.float32(self.pad_value)
        for slot, (sample, key) in enumerate(zip(samples, keys.tolist(), strict=True)):
            image = scratch[: sample.image.size].reshape(sample.image.shape)  # [C, H, W_i], contiguous
            image[...] = sample.image
            try:
                augmentation(image, SampleRng(key))
            except Exception as error:
                raise SlotError(slot, error) from error
            _write_image(image, images[slot], pad_value)


def _write_images(samples: Sequence[ImageSample], images: NDArray[np.float32], pad_value: np.float32) -> None:
    for slot, sample in enumerate(samples):
        _write_image(sample.image, images[slot], pad_value)


def _write_image(image: NDArray[np.float32], row: NDArray[np.float32], pad_value: np.float32) -> None:
    """image [C, H, W_i] to the left of row [C, H, Wp], the pad value to its right."""
    width = image.shape[2]
    row[:, :, :width] = image
    row[:, :, width:] = pad_value


def _as_int32(slot: int, what: str, value: Any) -> int:
    try:
        value = index(value)
    except TypeError as error:
        raise SlotError(slot, TypeError(f"{what} is {value!r}; it must be an integer")) from error
    if not _INT32.min <= value <= _INT32.max:
        problem = f"{what} {value} does not fit the int32 tensor of the batch"
        raise SlotError(slot, ValueError(problem))
    return int(value)


def _check_sample(slot: int, sample: ImageSample, first: ImageSample) -> None:
    problem = _problem(sample, first)
    if problem:
        raise SlotError(slot, ValueError(problem))


def _problem(sample: ImageSample, first: ImageSample) -> str:
    """What keeps `sample` out of a batch with `first`, or an empty text."""
    image, target = getattr(sample, "image", None), getattr(sample, "target", None)
    if not isinstance(image, np.ndarray) or not isinstance(target, np.ndarray):
        return f"the sample is {type(sample).__name__}; it must be an ImageSample of arrays"
    if image.dtype != np.float32 or image.ndim != 3:
        return f"the image is {image.dtype}{list(image.shape)}; it must be float32 [C, H, W]"
    if image.shape[:2] != first.image.shape[:2]:
        return (
            f"the image has [C, H] = {list(image.shape[:2])} and slot 0 has {list(first.image.shape[:2])}; "
            "all samples of a batch must agree"
        )
    if target.dtype != np.int32 or target.ndim != 1:
        return f"the target is {target.dtype}{list(target.shape)}; it must be int32 [L]"
    return ""
