"""Augmentations of line images, for `ImageBatchCollator(augmentation=…)`.

Owns nothing of its own: the public place of `loader_service.contract.augment`.

>>> from loader_service.augment import Blur, Compose, GainOffset
>>> Compose(GainOffset(gain_span=0.25), Blur())
Compose(GainOffset(gain_low=0.75, gain_span=0.25, offset_deviation=0.125), Blur(strength=0.5))
"""

from loader_service.contract.augment import Augmentation, Blur, Compose, Erase, GainOffset, Noise, Shear

__all__ = ["Augmentation", "Blur", "Compose", "Erase", "GainOffset", "Noise", "Shear"]
