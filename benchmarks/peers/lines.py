"""The line images of the reference workload as flat arrays, and the best build of them that numpy alone gives.

Owns `Lines`, `Slot` and `NumpyBuild`. The pixels are those of `loader_service.data.SyntheticLines`, so that every peer
builds batches of the same images; the order is a fresh permutation an epoch. A batch: 128 images, float32
[128, 1, 32, W], W the largest width in it rounded up to a multiple of 4 (about 4 MiB), each with a gain and an offset
of its own, and its widths, targets, target lengths, labels and indices, int32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from loader_service.data import SyntheticLines

__all__ = [
    "BATCH",
    "DEPTH",
    "HEIGHT",
    "MAX_WIDTH",
    "SLOT_BYTES",
    "Lines",
    "NumpyBuild",
    "Slot",
    "epochs",
    "ring",
    "touch",
]

BATCH, HEIGHT, MAX_WIDTH, MAX_TARGETS = 128, 32, 256, 16
DEPTH = 8
"""Batches that each peer may prepare ahead."""
_IMAGE_FLOATS = BATCH * HEIGHT * MAX_WIDTH
_META_INTS = 4 * BATCH + BATCH * MAX_TARGETS
SLOT_BYTES = -(-4 * (_IMAGE_FLOATS + _META_INTS) // 4096) * 4096


@dataclass(frozen=True, slots=True)
class Lines:
    """All samples, as windows of one plane of pixels and one of targets.

    Attributes:
        pixels: float32; sample i stands at [first[i], first[i] + 32 * widths[i]).
        first: int64 [n].
        widths: int64 [n], in pixels.
        targets: int32 arrays, one a sample.
        target_lengths: int32 [n].
        labels: int32 [n].
        views: the images as flat arrays, for numpy calls one by one.
    """

    pixels: NDArray[np.float32]
    first: NDArray[np.int64]
    widths: NDArray[np.int64]
    targets: list[NDArray[np.int32]]
    target_lengths: NDArray[np.int32]
    labels: NDArray[np.int32]
    views: list[NDArray[np.float32]]

    @classmethod
    def load(cls) -> Lines:
        """Read all samples once."""
        samples = list(map(SyntheticLines().__getitem__, range(len(SyntheticLines()))))
        views = [sample.image.reshape(-1) for sample in samples]
        plane = views[0]
        while isinstance(plane.base, np.ndarray):
            plane = plane.base
        first = [(view.ctypes.data - plane.ctypes.data) // 4 for view in views]
        return cls(
            pixels=plane.reshape(-1),
            first=np.array(first, np.int64),
            widths=np.array([sample.image.shape[2] for sample in samples], np.int64),
            targets=[sample.target for sample in samples],
            target_lengths=np.array([len(sample.target) for sample in samples], np.int32),
            labels=np.array([sample.label for sample in samples], np.int32),
            views=views,
        )

    def __len__(self) -> int:
        return len(self.widths)

    def padded_width(self, indices: NDArray[np.int64]) -> int:
        """Width of a batch of these samples."""
        return int(self.widths[indices].max() + 3) // 4 * 4


def epochs(count: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield index batches without end, int64 [128]: a fresh permutation of `count` samples an epoch."""
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(count)
        yield from (order[at : at + BATCH] for at in range(0, count - BATCH + 1, BATCH))


def touch(images: NDArray[np.float32]) -> float:
    """Read one element in each 4,096 bytes: what a consumer does with a batch here."""
    return float(images.reshape(-1)[::1024].sum())


class Slot:
    """Memory of one batch: images first, then the small tensors.

    Args:
        memory: uint8 of at least `SLOT_BYTES`.
    """

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self.floats = memory[: 4 * _IMAGE_FLOATS].view(np.float32)
        ints = memory[4 * _IMAGE_FLOATS : 4 * (_IMAGE_FLOATS + _META_INTS)].view(np.int32)
        self.widths, self.target_lengths, self.labels, self.indices = ints[: 4 * BATCH].reshape(4, BATCH)
        self.targets = ints[4 * BATCH :]
        self.width = self.target_count = 0

    @property
    def images(self) -> NDArray[np.float32]:
        """The batch's images, float32 [128, 1, 32, width]."""
        return _images(self.floats, self.width)


def ring() -> list[Slot]:
    """Number of slots that a peer may prepare ahead."""
    memory = np.zeros(SLOT_BYTES * DEPTH, np.uint8)
    return [Slot(memory[SLOT_BYTES * place : SLOT_BYTES * (place + 1)]) for place in range(DEPTH)]


def _images(floats: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    return floats[: BATCH * HEIGHT * width].reshape(BATCH, 1, HEIGHT, width)


@cache
def _scratch(width: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """One image's memory, flat and as [1, 32, width]; all widths share it."""
    flat = _shared_scratch()[: HEIGHT * width]
    return flat, flat.reshape(1, HEIGHT, width)


@cache
def _shared_scratch() -> NDArray[np.float32]:
    return np.empty(HEIGHT * MAX_WIDTH, np.float32)


class NumpyBuild:
    """The fastest build that was found with numpy alone; what the tables call N.

    Each image is multiplied and added to in contiguous scratch that stays in the cache, and copied once into rows that
    were filled with the pad value; the small tensors and the random numbers are made for the whole batch. Slower were:
    arithmetic straight on the padded rows, arithmetic on the whole batch after the copy, and filling only the padding.
    """

    def __init__(self, lines: Lines, seed: int) -> None:
        self._lines, self._rng = lines, np.random.default_rng(seed)

    def __call__(self, indices: NDArray[np.int64], slot: Slot) -> Slot:
        """Build the batch of `indices` into `slot`; nothing of a batch's size is allocated."""
        self.small(indices, slot)
        lines, slot.width = self._lines, self._lines.padded_width(indices)
        self.images(indices, slot.images)
        targets = np.concatenate([lines.targets[index] for index in indices.tolist()])
        slot.target_count = len(targets)
        slot.targets[: len(targets)] = targets
        return slot

    def small(self, indices: NDArray[np.int64], slot: Slot) -> None:
        """Write widths, target lengths, labels and indices."""
        slot.widths[:] = self._lines.widths[indices]
        slot.target_lengths[:] = self._lines.target_lengths[indices]
        slot.labels[:] = self._lines.labels[indices]
        slot.indices[:] = indices

    def images(self, indices: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        """Write the augmented images, float32 [128, 1, 32, W], left in their rows."""
        gains = self._rng.random(BATCH, np.float32) * np.float32(0.5) + np.float32(0.75)
        offsets = self._rng.random(BATCH, np.float32) * np.float32(0.2) - np.float32(0.1)
        views, multiply, add = self._lines.views, np.multiply, np.add
        widths = self._lines.widths[indices].tolist()
        for index, width, row, gain, offset in zip(indices.tolist(), widths, out, gains, offsets, strict=True):
            flat, image = _scratch(width)
            multiply(views[index], gain, flat)
            add(flat, offset, flat)
            row.fill(0)
            row[:, :, :width] = image
