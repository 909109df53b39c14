"""Batches of images and what is done to pixels, one pixel at a time: rules R40 to R46 and R51 to R59.

Written from `docs/specification.md` alone. An image is image[channel][row][column], of floats that float32 can hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

from tests.vectors.reference_random import Generator, derive, single

__all__ = ["AUGMENTATIONS", "ImageSample", "Place", "collate", "compose", "grey", "planes", "rgb"]

Image = list[list[list[float]]]
Augment = Callable[[Image, Generator], Image]


@dataclass
class ImageSample:
    """R40."""

    image: Image
    target: list[int]
    label: int


def planes(flat: Sequence[float], channels: int, height: int, width: int) -> Image:
    """A row-major sequence as an image."""
    rows = iter(flat)
    return [[[next(rows) for _ in range(width)] for _ in range(height)] for _ in range(channels)]


def _each(image: Image, change: Callable[[float], float]) -> Image:
    return [[[change(pixel) for pixel in row] for row in plane] for plane in image]


def gain_offset(
    image: Image, rng: Generator, gain_low: float = 0.75, gain_span: float = 0.5, offset_deviation: float = 0.125
) -> Image:
    """R51."""
    gain = single(single(gain_low) + single(single(gain_span) * rng.next_single()))
    offset = single(rng.next_normal() * single(offset_deviation))
    return _each(image, lambda pixel: single(single(pixel * gain) + offset))


def noise(image: Image, rng: Generator, deviation: float = 0.05) -> Image:
    """R52."""
    pixels = Generator(rng.next_u64())
    factor = single(deviation / sqrt(43690))

    def change(pixel: float) -> float:
        total = sum(pixels.next_u64().to_bytes(8, "little"))
        return single(pixel + single((total - 1020) * factor))

    return _each(image, change)


def blur(image: Image, rng: Generator, strength: float = 0.5) -> Image:
    """R53."""
    a = single(single(strength) * rng.next_single())
    sides, middle = single(a * 0.5), single(1 - a)

    def changed(row: list[float]) -> list[float]:
        padded = [row[0], *row, row[-1]] if row else row
        return [
            single(single(row[x] * middle) + single(single(padded[x] + padded[x + 2]) * sides)) for x in range(len(row))
        ]

    return [[changed(row) for row in plane] for plane in image]


def shear(image: Image, rng: Generator, largest: float = 0.3, fill: float = 0.0) -> Image:
    """R54."""
    slope = single(single(largest) * single(single(rng.next_single() * 2) - 1))

    def changed(y: int, row: list[float]) -> list[float]:
        shift = round(single(slope * single(len(image[0]) / 2 - y)))  # ties to even
        return [row[x - shift] if 0 <= x - shift < len(row) else single(fill) for x in range(len(row))]

    return [[changed(y, row) for y, row in enumerate(plane)] for plane in image]


def erase(image: Image, rng: Generator, largest: float = 0.25, fill: float = 0.0) -> Image:
    """R55."""
    height, width = len(image[0]), len(image[0][0])
    tall, wide, top, left = (rng.next_single() for _ in range(4))
    rows = int(single(tall * single(largest * height)))
    columns = int(single(wide * single(largest * width)))
    y, x = int(single(top * (height - rows))), int(single(left * (width - columns)))
    return [
        [
            [
                single(fill) if y <= row < y + rows and x <= column < x + columns else plane[row][column]
                for column in range(width)
            ]
            for row in range(height)
        ]
        for plane in image
    ]


AUGMENTATIONS: dict[str, Callable[..., Image]] = {
    "gain_offset": gain_offset,
    "noise": noise,
    "blur": blur,
    "shear": shear,
    "erase": erase,
}
"""By the names in `vectors/`; each takes the image, the generator and its numbers by name."""


def compose(image: Image, rng: Generator, steps: Sequence[dict[str, Any]]) -> Image:
    """R56. All that these draw does not depend on the image, so drawing and editing in turn gives the same."""
    for step in steps:
        numbers = {key: value for key, value in step.items() if key != "name"}
        image = AUGMENTATIONS[step["name"]](image, rng, **numbers)
    return image


@dataclass
class Place:
    """Place of a batch: seed, epoch, step in epoch."""

    seed: int
    epoch: int
    step: int


def collate(
    samples: Sequence[ImageSample],
    indices: Sequence[int],
    place: Place,
    width_multiple: int,
    pad_value: float,
    augment: Augment | None,
) -> dict[str, tuple[list[int], list[float] | list[int]]]:
    """R41 to R44: each tensor as (shape, row-major values)."""
    widths = [len(sample.image[0][0]) for sample in samples]
    padded = -(-max(widths) // width_multiple) * width_multiple
    images: list[float] = []
    for slot, sample in enumerate(samples):
        image = sample.image
        if augment is not None:
            image = augment(image, Generator(derive(place.seed, place.epoch, place.step, slot, 1)))
        for plane in image:
            for row in plane:
                images += [*row, *[single(pad_value)] * (padded - len(row))]
    shape = [len(samples), len(samples[0].image), len(samples[0].image[0]), padded]
    assert len(images) == prod(shape)
    targets = [token for sample in samples for token in sample.target]
    return {
        "images": (shape, images),
        "widths": ([len(samples)], widths),
        "targets": ([len(targets)], targets),
        "target_lengths": ([len(samples)], [len(sample.target) for sample in samples]),
        "labels": ([len(samples)], [sample.label for sample in samples]),
        "indices": ([len(samples)], list(indices)),
    }


def _pixel(value: int, mean: float, std: float) -> float:
    scale = single(1 / single(255 * single(std)))
    bias = single(single(mean) / single(std))
    return single(single(value * scale) - bias)


def grey(pixels: Sequence[int], width: int, height: int, stride: int, mean: float, std: float) -> list[float]:
    """R57 and R59: [1, height, width], row-major."""
    return [_pixel(pixels[y * stride + x], mean, std) for y in range(height) for x in range(width)]


def rgb(
    pixels: Sequence[int], width: int, height: int, stride: int, mean: Sequence[float], std: Sequence[float]
) -> list[float]:
    """R58 and R59: [3, height, width], row-major."""
    return [
        _pixel(pixels[y * stride + 3 * x + channel], mean[channel], std[channel])
        for channel in range(3)
        for y in range(height)
        for x in range(width)
    ]
