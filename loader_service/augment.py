"""Augmentations of line images, for `ImageBatchCollator(augmentation=…)`.

Owns nothing of its own: the public place of `loader_service.contract.augment`.

>>> from loader_service.augment import Blur, Compose, GainOffset
>>> Compose(GainOffset(gain_span=0.25), Blur())
Compose(GainOffset(gain_low=0.75, gain_span=0.25, offset_deviation=0.125), Blur(strength=0.5))
"""

from loader_service.contract.augment import Augmentation, Blur, Compose, Erase, GainOffset, Noise, Shear
from loader_service.contract.fused.randoms import next_double, next_int, next_normal, next_single, next_u64
from loader_service.contract.fused.user_edits import CompiledEdit, ImageKernel, image_kernel

__all__ = [
    "Augmentation",
    "Blur",
    "CompiledEdit",
    "Compose",
    "Erase",
    "GainOffset",
    "ImageKernel",
    "Noise",
    "Shear",
    "image_kernel",
    "next_double",
    "next_int",
    "next_normal",
    "next_single",
    "next_u64",
]
