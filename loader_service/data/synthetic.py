"""Line images without files: the workload of section 7, for measurements and tests.

Owns `SyntheticLines`. Invariant: sample i depends on (seed, i, height, the widths) alone, never on `count` or
on what was read before. Samples are windows of two planes of noise that each process makes once, so reading one
costs next to nothing and what is measured is the loader. Fails at construction, or for an index outside.

    key_i = derive(seed, 0, 0, i, 2), from which width, window and label are drawn in this order
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from operator import index as as_index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.augment import GainOffset
from loader_service.contract.collate import ImageBatchCollator
from loader_service.contract.rng import RngArray, SampleRng, counter_block, derive, derive_slots
from loader_service.contract.sample import ImageSample
from loader_service.contract.samplers import ShuffledSampler
from loader_service.contract.stream import Stream
from loader_service.errors import ArgumentError

__all__ = ["SyntheticLines", "synthetic_lines"]

_STREAM_SAMPLE, _STREAM_PIXELS, _STREAM_TARGETS = 2, 3, 4
_PLANE_PIXELS = 2**22
"""16 MiB of pixels: more than the caches near a core, as a real dataset has."""
_PLANE_TARGETS = 2**16
_COLUMNS_PER_TARGET = 16
_CLASSES, _LABELS = 95, 10
_LIMITS = {"count": 2**31, "height": 4096, "min_width": 2**20, "max_width": 2**20}


@dataclass(frozen=True, slots=True)
class SyntheticLines:
    """A dataset of `count` noise images with targets. Thread-safe; two with equal arguments are equal.

    Sample i: image float32 [1, height, W_i] in [0, 1), W_i uniform in [min_width, max_width]; target int32
    [W_i // 16] of classes 1 to 95; label 0 to 9. The arrays are read-only. Raises ArgumentError.

    >>> SyntheticLines(count=10, min_width=80, max_width=80)[3].image.shape
    (1, 32, 80)
    """

    count: int = 2048
    height: int = 32
    min_width: int = 64
    max_width: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("count", "height", "min_width", "max_width", "seed"):
            object.__setattr__(self, name, _checked(name, getattr(self, name)))
        if self.min_width > self.max_width:
            raise ArgumentError(
                f"min_width is {self.min_width} and max_width {self.max_width}; it must not be above max_width"
            )
        largest = self.height * self.max_width
        if largest > _PLANE_PIXELS:
            raise ArgumentError(f"height · max_width is {largest} pixels; it must be at most {_PLANE_PIXELS}")

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int, /) -> ImageSample:
        """The sample at 0 <= index < count. Raises ArgumentError."""
        index = as_index(index)
        if not 0 <= index < self.count:
            raise ArgumentError(f"index is {index}; the dataset's indices lie in [0, {self.count})")
        return _sample(self, index)

    def widths(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The widths of the samples at `indices`, without making them: int64 [N]."""
        rng = RngArray(derive_slots(self.seed, 0, 0, indices.astype(np.uint64), _STREAM_SAMPLE))
        return self.min_width + rng.next_int(self.max_width - self.min_width + 1).astype(np.int64)


def _checked(name: str, value: Any) -> int:
    try:
        value = as_index(value)
    except TypeError:
        raise ArgumentError(f"{name} is {value!r}; it must be an integer") from None
    limit = _LIMITS.get(name)
    if limit is not None and not 1 <= value <= limit:
        raise ArgumentError(f"{name} is {value}; it must lie in [1, {limit}]")
    return int(value)


@lru_cache(maxsize=2**14)
def _sample(lines: SyntheticLines, index: int) -> ImageSample:
    """Kept for the next epoch: views of the planes, about half a kilobyte each."""
    rng = SampleRng(derive(lines.seed, 0, 0, index, _STREAM_SAMPLE))
    width = lines.min_width + rng.next_int(lines.max_width - lines.min_width + 1)
    size, length = lines.height * width, width // _COLUMNS_PER_TARGET
    first = rng.next_int(_PLANE_PIXELS - size + 1)
    image = _pixels(lines.seed)[first : first + size].reshape(1, lines.height, width)
    first = rng.next_int(_PLANE_TARGETS - length + 1)
    target = _targets(lines.seed)[first : first + length]
    return ImageSample(image, target, rng.next_int(_LABELS))


def _noise(seed: int, stream: int, size: int) -> NDArray[np.uint64]:
    """The first `size` outputs of one SampleRng, at once: uint64 [size]."""
    return counter_block(derive(seed, 0, 0, 0, stream), np.empty(size, np.uint64))


@lru_cache(maxsize=2)
def _pixels(seed: int) -> NDArray[np.float32]:
    """Uniform singles in [0, 1): float32 [_PLANE_PIXELS], read-only."""
    upper = _noise(seed, _STREAM_PIXELS, _PLANE_PIXELS) >> np.uint64(40)
    plane = upper.astype(np.float32) * np.float32(2.0**-24)
    plane.flags.writeable = False
    return plane


@lru_cache(maxsize=2)
def _targets(seed: int) -> NDArray[np.int32]:
    """Classes 1 to 95: int32 [_PLANE_TARGETS], read-only."""
    plane = (_noise(seed, _STREAM_TARGETS, _PLANE_TARGETS) % np.uint64(_CLASSES)).astype(np.int32) + np.int32(1)
    plane.flags.writeable = False
    return plane


def synthetic_lines(
    seed: int = 0, batch_size: int = 128, count: int = 2048, augment: bool = True, width_multiple: int = 4
) -> Stream:
    """The stream of section 7: shuffled noise lines, one cheap augmentation each. Raises ArgumentError.

    >>> synthetic_lines().build(step=0)["images"].shape
    (128, 1, 32, 256)
    """
    collator = ImageBatchCollator(width_multiple, augmentation=GainOffset() if augment else None)
    sampler = ShuffledSampler(count, batch_size, seed)
    return Stream(SyntheticLines(count, seed=seed), sampler, collator, seed=seed)
