"""Augmentations of a user's own, written once: compiled where the process compiles, in Python elsewhere.

Owns the decorator `image_kernel` and what it makes. Invariant: both forms give the same bits, which is looked at on a
small image before the first compiled use in a process. Fails with ArgumentError, which says what usually makes them
differ: a constant that is not rounded to float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.checks import checked_float, checked_sequence, set_fields
from loader_service.contract.fingerprint import function_digest
from loader_service.contract.fused.compiler import Kernel, compile_function
from loader_service.contract.fused.edits import EDIT
from loader_service.contract.rng import SampleRng
from loader_service.errors import ArgumentError, FingerprintError

__all__ = ["CompiledEdit", "ImageKernel", "check_bits", "image_kernel"]


class ImageKernel(Kernel):
    """A kernel that edits one image; called with its options it gives the augmentation."""

    def __call__(self, *options: float) -> Any:
        """The augmentation with these options, finite numbers. Raises ArgumentError."""
        return CompiledEdit(self, options)

    def edit(self, image: NDArray[np.float32], rng: NDArray[np.uint64], options: NDArray[np.float64]) -> None:
        """Run it, compiled or in Python: image float32 [C, H, W], contiguous; rng uint64 [1]; options float64 [K]."""
        super().__call__(image, rng, options)

    @property
    def fingerprint(self) -> str:
        """Module and name of the edit, as of any function. Raises FingerprintError."""
        if "<" in self.__qualname__:
            raise FingerprintError(
                f"{self.__module__}:{self.__qualname__} is no function at module level, so no other process can tell "
                "it apart from another of that name; move it there, or give the stream a `version`"
            )
        return f"{self.__module__}:{self.__qualname__} {function_digest(self.__wrapped__)}"


@dataclass(frozen=True)
class CompiledEdit:
    """An image kernel and its options: an augmentation for `ImageBatchCollator`, alone or within `Compose`."""

    kernel: ImageKernel
    options: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        set_fields(self, options=checked_sequence("options", self.options, checked_float))

    def __repr__(self) -> str:
        return f"{self.kernel.__qualname__}({', '.join(map(str, self.options))})"

    def __call__(self, image: NDArray[np.float32], rng: SampleRng) -> None:
        """Edit `image`, float32 [C, H, W], any strides, in place."""
        state, contiguous = np.array([rng.state], np.uint64), np.ascontiguousarray(image)
        self.kernel.edit(contiguous, state, np.array(self.options, np.float64))
        if contiguous is not image:
            image[...] = contiguous
        rng.state = int(state[0])


def image_kernel(function: Callable[..., Any]) -> ImageKernel:
    """Make an augmentation out of a function that edits one image, written as a loop over its elements.

    Compiled, it runs for a whole batch at the speed of C, without the GIL; without numba the same function runs in
    Python. The function may use loops, numbers, numpy's scalar functions and the draws of `loader_service.augment`
    (`next_single(rng)`, `next_normal`, `next_int`, `next_u64`, `next_double`), and call other kernels.

    So that both give the same bits, round each constant and option to float32 before use: `np.float32(0.5)`. A
    product and a sum are rounded each; nothing is contracted or reordered.

    Args:
        function: `edit(image, rng, options)`; image is float32 [C, H, W], contiguous, and is edited in place; rng is
            the generator of the image's slot; options are float64 [K]. It stands at module level.

    Returns:
        The kernel: called with the options it gives the augmentation.

    >>> from loader_service.augment import image_kernel, next_single
    >>> @image_kernel
    ... def darken(image, rng, options):
    ...     gain = np.float32(1) - np.float32(options[0]) * next_single(rng)
    ...     flat = image.reshape(-1)
    ...     for i in range(flat.size):
    ...         flat[i] = flat[i] * gain
    >>> darken(0.25)
    darken(0.25)
    """
    return ImageKernel(function, EDIT, None, lambda: compile_function(function, EDIT))


@lru_cache(maxsize=256)
def check_bits(edit: CompiledEdit) -> None:
    """Look that compiled code and Python give the same bits, on one small image. Raises ArgumentError."""
    image = (np.arange(2 * 3 * 7, dtype=np.float32) / np.float32(11)).reshape(2, 3, 7)
    images, states = (image, image.copy()), (np.array([7], np.uint64), np.array([7], np.uint64))
    options = np.array(edit.options, np.float64)
    edit.kernel.compiled(images[0], states[0], options)
    edit.kernel.function(images[1], states[1], options)
    if images[0].tobytes() != images[1].tobytes() or states[0][0] != states[1][0]:
        raise ArgumentError(
            f"{edit!r} gives other bits compiled than in Python; write each constant and option that meets a pixel as "
            "np.float32(...), and draw with next_single(rng) and its like"
        )
