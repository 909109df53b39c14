"""Augmentations: callables that edit one image in place with the random numbers of its slot (R51 to R56).

Owns the few that people use on line images. Invariant: what is written depends on the image, the fields and the
generator alone, and every operation is rounded to float32, so the bits are the same on every machine. Each draws
its numbers first (`draw`, from one generator or from many at once, with the same bits) and then edits any [C, H, W]
view (`apply`). They fail at construction only, with ArgumentError.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.buffers import scratch
from loader_service.contract.checks import checked_float32, checked_parts, set_fields
from loader_service.contract.fused.edits import (
    BLUR,
    BYTE_SUM_DEVIATION,
    BYTE_SUM_MEAN,
    ERASE,
    GAIN_OFFSET,
    NOISE,
    SHEAR,
)
from loader_service.contract.fused.user_edits import CompiledEdit
from loader_service.contract.rng import RngArray, SampleRng, counter_block
from loader_service.errors import ArgumentError

__all__ = ["Augmentation", "Blur", "Compose", "Erase", "GainOffset", "Noise", "Shear"]

Image = NDArray[np.float32]
_GIVE = "give objects such as GainOffset()"
Drawn = tuple[Any, ...]
"""The numbers of one image (numpy scalars), or arrays with those of many."""
Program = tuple[float, float, float, float]

_EVEN_BYTES = np.uint64(0x00FF00FF00FF00FF)
_ADD_LANES = np.uint64(0x0001000100010001)


class Augmentation(ABC):
    """Base of augmentations: a dataclass whose fields are finite float32 numbers, with `draw` and `apply`.

    The fields are checked and kept as floats. Called as `augmentation(image, rng)`, it draws and applies.

    Attributes:
        draws: the length of `draw`'s answer.
    """

    __slots__ = ()
    draws: ClassVar[int]

    def __post_init__(self) -> None:
        for field in fields(cast(Any, self)):
            # A float: one description for equal numbers, and float64 in all products.
            set_fields(self, **{field.name: checked_float32(field.name, getattr(self, field.name))})

    @abstractmethod
    def draw(self, rng: SampleRng | RngArray) -> Drawn:
        """Draw the numbers that `apply` takes.

        Args:
            rng: one generator, whose numbers are numpy scalars, or many, whose numbers are arrays [N] of the same bits.
        """

    @abstractmethod
    def apply(self, image: Image, /, *drawn: Any) -> None:
        """Edit `image`, float32 [C, H, W], any strides, in place."""

    def apply_from(self, source: Image, image: Image, /, *drawn: Any) -> None:
        """Write the edited `source` into `image`, of the same shape, any content: a copy, then `apply`."""
        image[...] = source
        self.apply(image, *drawn)

    @property
    def program(self) -> Program | None:
        """The compiled form of the augmentation, see `fused.edits`; None where it has none."""
        return None

    def __call__(self, image: Image, rng: SampleRng) -> None:
        """Edit `image`, float32 [C, H, W], in place."""
        self.apply(image, *self.draw(rng))


@dataclass(frozen=True, slots=True)
class GainOffset(Augmentation):
    """A random contrast and brightness (R51): one single for the gain, then one normal for the offset.

    image = image · gain + offset, gain = gain_low + gain_span · single, offset = offset_deviation · normal.

    Args:
        gain_low: the least gain.
        gain_span: gains lie in [gain_low, gain_low + gain_span).
        offset_deviation: the standard deviation of the offset, in units of the image.

    Raises:
        ArgumentError: a field is not finite in float32.

    >>> image = np.ones((1, 1, 2), np.float32)
    >>> GainOffset()(image, SampleRng(key=0))
    >>> image
    array([[[1.1525433, 1.1525433]]], dtype=float32)
    """

    gain_low: float = 0.75
    gain_span: float = 0.5
    offset_deviation: float = 0.125

    draws: ClassVar[int] = 2

    def draw(self, rng: SampleRng | RngArray) -> Drawn:
        gain = np.float32(self.gain_low) + np.float32(self.gain_span) * rng.next_single()
        return gain, rng.next_normal() * np.float32(self.offset_deviation)

    def apply(self, image: Image, /, *drawn: Any) -> None:
        gain, offset = drawn
        image *= gain
        image += offset

    def apply_from(self, source: Image, image: Image, /, *drawn: Any) -> None:
        gain, offset = drawn
        np.multiply(source, gain, out=image)  # one pass over memory less
        np.add(image, offset, out=image)

    @property
    def program(self) -> Program:
        return (GAIN_OFFSET, self.gain_low, self.gain_span, self.offset_deviation)


@dataclass(frozen=True, slots=True)
class Noise(Augmentation):
    """Noise of its own for every pixel, about normal: a sum of eight random bytes (R52).

    One u64 of the generator is the key of all pixels: pixel i, row-major, has the i-th output of SplitMix64 from it.

    Args:
        deviation: its standard deviation, in units of the image.

    Raises:
        ArgumentError: the field is not finite in float32.
    """

    deviation: float = 0.05

    draws: ClassVar[int] = 1

    def draw(self, rng: SampleRng | RngArray) -> Drawn:
        return (rng.next_u64(),)

    def apply(self, image: Image, /, *drawn: Any) -> None:
        room = scratch("noise room", (image.size,), np.uint64)
        bits = counter_block(int(drawn[0]), scratch("noise bits", (image.size,), np.uint64), room)
        noise = scratch("noise", image.shape)
        noise[...] = _byte_sums(bits, room).reshape(image.shape)  # [C·H·W] -> [C, H, W]
        noise -= BYTE_SUM_MEAN
        noise *= np.float32(self.deviation / BYTE_SUM_DEVIATION)
        image += noise

    @property
    def program(self) -> Program:
        return (NOISE, self.deviation, 0.0, 0.0)


def _byte_sums(bits: NDArray[np.uint64], half: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The sum of the eight bytes of each number, in place; `half` is room of the same size.

    Neighbouring bytes are added in lanes of 16 bits, then a multiplication adds the four lanes up in the highest.
    """
    np.bitwise_and(bits, _EVEN_BYTES, out=half)
    bits >>= np.uint64(8)
    bits &= _EVEN_BYTES
    bits += half
    bits *= _ADD_LANES
    bits >>= np.uint64(48)
    return bits


@dataclass(frozen=True, slots=True)
class Blur(Augmentation):
    """A random blur along the line (R53): weights a/2, 1 - a, a/2 of a pixel and its neighbours, a = strength · single.

    The outermost columns count as their own neighbours.

    Args:
        strength: the most, in [0, 1].

    Raises:
        ArgumentError: the field lies outside its range.
    """

    strength: float = 0.5

    draws: ClassVar[int] = 1

    def __post_init__(self) -> None:
        Augmentation.__post_init__(self)
        checked_float32("strength", self.strength, 0.0, 1.0)

    def draw(self, rng: SampleRng | RngArray) -> Drawn:
        return (np.float32(self.strength) * rng.next_single(),)

    def apply(self, image: Image, /, *drawn: Any) -> None:
        if not image.shape[2]:
            return
        left, right = scratch("blur left", image.shape), scratch("blur right", image.shape)
        left[:, :, 1:], left[:, :, :1] = image[:, :, :-1], image[:, :, :1]
        right[:, :, :-1], right[:, :, -1:] = image[:, :, 1:], image[:, :, -1:]
        left += right
        left *= drawn[0] * np.float32(0.5)
        image *= np.float32(1.0) - drawn[0]
        image += left

    @property
    def program(self) -> Program:
        return (BLUR, self.strength, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Shear(Augmentation):
    """A random slant (R54): row y moves by slope · (H/2 - y) columns, whole ones, slope uniform in ±largest.

    The width stays.

    Args:
        largest: the most columns for each row, in [0, 1000].
        fill: stands where nothing moves to, in units of the image.

    Raises:
        ArgumentError: a field lies outside its range.
    """

    largest: float = 0.3
    fill: float = 0.0

    draws: ClassVar[int] = 1

    def __post_init__(self) -> None:
        Augmentation.__post_init__(self)
        checked_float32("largest", self.largest, 0.0, 1000.0)

    def draw(self, rng: SampleRng | RngArray) -> Drawn:
        return (np.float32(self.largest) * (rng.next_single() * np.float32(2.0) - np.float32(1.0)),)

    def apply(self, image: Image, /, *drawn: Any) -> None:
        _, height, width = image.shape
        row = scratch("shear", (image.shape[0], width))
        for y in range(height):
            shift = int(np.rint(drawn[0] * np.float32(height / 2 - y)))
            kept = max(width - abs(shift), 0)
            from_left, to_left = max(-shift, 0), max(shift, 0)
            row[...] = image[:, y]
            image[:, y] = np.float32(self.fill)
            image[:, y, to_left : to_left + kept] = row[:, from_left : from_left + kept]

    @property
    def program(self) -> Program:
        return (SHEAR, self.largest, self.fill, 0.0)


@dataclass(frozen=True, slots=True)
class Erase(Augmentation):
    """A random rectangle that is filled (R55), anywhere in the image.

    Args:
        largest: its most height and width, as a part of the image's, in [0, 1].
        fill: stands in it, in units of the image.

    Raises:
        ArgumentError: a field lies outside its range.
    """

    largest: float = 0.25
    fill: float = 0.0

    draws: ClassVar[int] = 4

    def __post_init__(self) -> None:
        Augmentation.__post_init__(self)
        checked_float32("largest", self.largest, 0.0, 1.0)

    def draw(self, rng: SampleRng | RngArray) -> Drawn:
        return tuple(rng.next_single() for _ in range(4))

    def apply(self, image: Image, /, *drawn: Any) -> None:
        _, height, width = image.shape
        tall, wide, top, left = drawn
        rows = int(tall * np.float32(self.largest * height))
        columns = int(wide * np.float32(self.largest * width))
        y, x = int(top * np.float32(height - rows)), int(left * np.float32(width - columns))
        image[:, y : y + rows, x : x + columns] = np.float32(self.fill)

    @property
    def program(self) -> Program:
        return (ERASE, self.largest, self.fill, 0.0)


class Compose:
    """Several augmentations, one after the other, on the numbers of one generator (R56).

    Args:
        augmentations: objects such as GainOffset(), compositions, or what an `image_kernel` gives.

    Raises:
        ArgumentError: one of them is none.

    >>> Compose(GainOffset(), Noise())
    Compose(GainOffset(gain_low=0.75, gain_span=0.5, offset_deviation=0.125), Noise(deviation=0.05))
    """

    def __init__(self, *augmentations: Augmentation | Compose | CompiledEdit) -> None:
        for place, one in enumerate(augmentations):
            if not isinstance(one, CompiledEdit):
                checked_parts(f"augmentations[{place}]", one, ("draws", "draw", "apply"), _GIVE)
        self.augmentations = augmentations

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.augmentations))})"

    @property
    def draws(self) -> int | None:
        """The length of `draw`'s answer; None where one of them draws while it edits."""
        draws = [getattr(one, "draws", None) for one in self.augmentations]
        return None if None in draws else sum(filter(None, draws))

    def draw(self, rng: SampleRng | RngArray) -> Drawn:
        """The edits that each draws, flat and in order."""
        return tuple(number for augmentation in self.augmentations for number in _drawing(augmentation).draw(rng))

    def apply(self, image: Image, /, *drawn: Any) -> None:
        """Edit `image`, float32 [C, H, W], any strides, in place."""
        first = 0
        for augmentation in map(_drawing, self.augmentations):
            draws = augmentation.draws or 0
            augmentation.apply(image, *drawn[first : first + draws])
            first += draws

    def apply_from(self, source: Image, image: Image, /, *drawn: Any) -> None:
        """Write the edited `source` into `image`, of the same shape, any content: a copy, then `apply`."""
        image[...] = source
        self.apply(image, *drawn)

    def __call__(self, image: Image, rng: SampleRng) -> None:
        """Edit `image`, float32 [C, H, W], in place."""
        for augmentation in self.augmentations:  # each draws before it edits: the same as all draws, then all edits
            augmentation(image, rng)


def _drawing(augmentation: Any) -> Augmentation:
    if isinstance(augmentation, CompiledEdit):
        raise ArgumentError(f"{augmentation!r} draws while it edits; call the composition instead of draw and apply")
    return cast(Augmentation, augmentation)
