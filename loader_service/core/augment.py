"""Augmentations: callables that edit one image in place with the random numbers of its slot (section 4).

Owns `GainOffset`. Invariant: what is written depends on the image, the fields and the generator alone, and
every operation is rounded to float32, so the bits are the same on every machine. Fails at construction only.

    image = image · gain + offset,  gain = gain_low + gain_span · single,  offset = offset_deviation · normal
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from loader_service.core.rng import SampleRng
from loader_service.errors import ArgumentError

__all__ = ["GainOffset"]

_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class GainOffset:
    """A random contrast and brightness: one single for the gain, then one normal for the offset.

    gain_low: the smallest gain; gain_span: the gain lies in [gain_low, gain_low + gain_span); offset_deviation:
    the offset's standard deviation. Raises ArgumentError for a value that is no finite float32.

    >>> image = np.ones((1, 1, 2), np.float32)
    >>> GainOffset()(image, SampleRng(key=0))
    >>> image
    array([[[1.1525433, 1.1525433]]], dtype=float32)
    """

    gain_low: float = 0.75
    gain_span: float = 0.5
    offset_deviation: float = 0.125

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float | np.floating):
                raise ArgumentError(f"{field.name} is {value!r}; it must be a number")
            if not abs(float(value)) <= _FLOAT32_MAX:
                raise ArgumentError(f"{field.name} is {value!r}; it must be finite in float32")

    def __call__(self, image: NDArray[np.float32], rng: SampleRng) -> None:
        """Edit `image`, float32 [C, H, W], in place; draws 13 numbers of `rng`."""
        gain = np.float32(self.gain_low) + np.float32(self.gain_span) * rng.next_single()
        offset = rng.next_normal() * np.float32(self.offset_deviation)
        image *= gain
        image += offset
