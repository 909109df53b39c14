"""Line images made of noise, without files: the reference workload, for measurements and tests.

Owns `SyntheticLines`. Invariant: sample i depends on (seed, i, height, min_width, max_width) alone, neither on `count`
nor on what was read before. Samples are windows of two planes of noise that each process makes once, so reading one
costs next to nothing, and a measurement shows the loader. Fails at construction, or for an index outside.

    key_i = derive(seed, 0, 0, i, 2), from which width, window and label are drawn in this order
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loader_service.contract.augment import GainOffset
from loader_service.contract.checks import checked_bool, checked_index, checked_indices, checked_int, set_fields
from loader_service.contract.collate import ImageBatchCollator
from loader_service.contract.ragged import RaggedImages
from loader_service.contract.rng import RngArray, SampleRng, counter_block, derive, derive_slots
from loader_service.contract.sample import ImageSample
from loader_service.contract.samplers import ShuffledSampler
from loader_service.contract.stream import Stream
from loader_service.errors import ArgumentError

__all__ = ["SyntheticLines", "synthetic_lines"]

_STREAM_SAMPLE, _STREAM_PIXELS, _STREAM_TARGETS = 2, 3, 4
_PLANE_PIXELS = 2**22
"""16 MiB of pixels: more than the caches near a core hold, as with a real dataset."""
_PLANE_TARGETS = 2**16
_MOST_IN_TABLE = 2**16
_COLUMNS_PER_TARGET = 16
_CLASSES, _LABELS = 95, 10
_MAX_COUNT, _MAX_HEIGHT, _MAX_WIDTH = 2**31, 4096, 2**20


@dataclass(frozen=True, slots=True)
class SyntheticLines:
    """A dataset of noise images with targets.

    Sample i is an `ImageSample`: image float32 [1, height, W_i] in [0, 1) with W_i uniform in [min_width, max_width];
    target int32 [W_i // 16] of classes 1 to 95; label 0 to 9. The arrays are read-only. Safe to read in several
    threads. Two of equal arguments are equal.

    Attributes:
        count: Number of samples, 1 to 2^31.
        height: Pixels, 1 to 4096.
        min_width, max_width: Pixels, 1 to 2^20, and height · max_width <= 2^22.
        seed: Any integer; it counts modulo 2^64.

    Raises:
        ArgumentError: If an argument lies outside its range.

    >>> SyntheticLines(count=10, min_width=80, max_width=80)[3].image.shape
    (1, 32, 80)
    """

    count: int = 2048
    height: int = 32
    min_width: int = 64
    max_width: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        set_fields(
            self,
            count=checked_int("count", self.count, 1, _MAX_COUNT),
            height=checked_int("height", self.height, 1, _MAX_HEIGHT),
            min_width=checked_int("min_width", self.min_width, 1, _MAX_WIDTH),
            max_width=checked_int("max_width", self.max_width, 1, _MAX_WIDTH),
            seed=checked_int("seed", self.seed),
        )
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
        """Read the sample at 0 <= index < count. Raises ArgumentError."""
        return _sample(self, checked_index(index, self.count))

    def __iter__(self) -> Iterator[ImageSample]:
        return (self[index] for index in range(self.count))

    def read_rows(self, indices: NDArray[np.int64]) -> RaggedImages:
        """Read many samples at once, as views of the planes.

        Args:
            indices: Integers [N] in [0, count).

        Raises:
            ArgumentError: If an index lies outside.
        """
        places = checked_indices("indices", indices, self.count)
        if self.count <= _MOST_IN_TABLE:
            found = [np.take(column, places) for column in _table(self)]
        else:
            found = list(_rows(self, places))
        starts, widths, target_starts, target_lengths, labels = found
        pixels, targets = _pixels(self.seed), _targets(self.seed)
        return RaggedImages(pixels, starts, widths, 1, self.height, targets, target_starts, target_lengths, labels)

    def widths(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Tell the widths of samples without making their images.

        Args:
            indices: Integers [N] in [0, count).

        Returns:
            Widths in pixels, int64 [N].

        Raises:
            ArgumentError: If an index lies outside.
        """
        slots = checked_indices("indices", indices, self.count).astype(np.uint64)  # [N]
        rng = RngArray(derive_slots(self.seed, 0, 0, slots, _STREAM_SAMPLE))
        return self.min_width + rng.next_int(self.max_width - self.min_width + 1).astype(np.int64)


@lru_cache(maxsize=2**14)
def _sample(lines: SyntheticLines, index: int) -> ImageSample:
    """Make a sample; it is kept for the next epoch: views of the planes, about half a kilobyte each."""
    rng = SampleRng(derive(lines.seed, 0, 0, index, _STREAM_SAMPLE))
    width = lines.min_width + rng.next_int(lines.max_width - lines.min_width + 1)
    size, length = lines.height * width, width // _COLUMNS_PER_TARGET
    first = rng.next_int(_PLANE_PIXELS - size + 1)
    image = _pixels(lines.seed)[first : first + size].reshape(1, lines.height, width)  # [size] -> [1, height, W]
    first = rng.next_int(_PLANE_TARGETS - length + 1)
    target = _targets(lines.seed)[first : first + length]
    return ImageSample(image, target, rng.next_int(_LABELS))


def _rows(lines: SyntheticLines, indices: NDArray[np.int64]) -> tuple[NDArray[Any], ...]:
    """Starts, widths, target starts and target lengths, int64 [N], and labels, int32 [N], of samples."""
    rng = RngArray(derive_slots(lines.seed, 0, 0, indices.astype(np.uint64), _STREAM_SAMPLE))
    widths = lines.min_width + rng.next_int(lines.max_width - lines.min_width + 1).astype(np.int64)
    lengths = widths // _COLUMNS_PER_TARGET
    starts = rng.next_int(_PLANE_PIXELS - lines.height * widths + 1).astype(np.int64)
    target_starts = rng.next_int(_PLANE_TARGETS - lengths + 1).astype(np.int64)
    return starts, widths, target_starts, lengths, rng.next_int(_LABELS).astype(np.int32)


@lru_cache(maxsize=2)
def _table(lines: SyntheticLines) -> tuple[NDArray[Any], ...]:
    """`_rows` of all samples, 36 bytes each: kept for datasets of up to _MOST_IN_TABLE."""
    return _rows(lines, np.arange(lines.count))


def _noise(seed: int, stream: int, size: int) -> NDArray[np.uint64]:
    """The first `size` outputs of one SampleRng, computed at once: uint64 [size]."""
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
    """Make the stream of the reference workload: shuffled noise lines in batches of images.

    Args:
        seed: Of the dataset, the sampler and the augmentation.
        batch_size: Images in a batch, at most `count`.
        count: Samples in the dataset.
        augment: Change gain and offset of each image at random.
        width_multiple: The padded width of a batch is a multiple of so many pixels.

    Raises:
        ArgumentError: If an argument lies outside its range.

    >>> synthetic_lines().build(step=0)["images"].shape
    (128, 1, 32, 256)
    """
    augmentation = GainOffset() if checked_bool("augment", augment) else None
    dataset = SyntheticLines(count, seed=seed)
    sampler = ShuffledSampler(dataset.count, batch_size, dataset.seed)
    return Stream(dataset, sampler, ImageBatchCollator(width_multiple, augmentation=augmentation), seed=dataset.seed)
