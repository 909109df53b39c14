"""A picture of each augmentation on one line of text: `python -m tools.draw_augmentations docs/augmentations.png`.

Owns `draw_augmentations`. Each row shows one augmentation with three keys, the first row the line as it is. Needs
Pillow, of the extra `images`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from loader_service.augment import Augmentation, Blur, Compose, Erase, GainOffset, Noise, Shear
from loader_service.contract.rng import SampleRng

__all__ = ["draw_augmentations"]

_TEXT = "the same line, again"
_SIZE = (300, 40)
_NAME_WIDTH = 330
_GAP = 6
_KEYS = (1, 2, 3)
_AUGMENTATIONS: list[Augmentation | Compose] = [
    GainOffset(),
    Noise(0.2),
    Blur(1.0),
    Shear(0.6),
    Erase(0.5),
    Compose(Shear(0.6), Blur(), Noise(0.1), GainOffset(), Erase(0.3)),
]


def draw_augmentations(path: Path) -> None:
    """Draw all augmentations into a picture at `path`, whose ending names the format."""
    rows: list[tuple[str, list[NDArray[np.float32]]]] = [("the image", [_line()])]
    for augmentation in _AUGMENTATIONS:
        name = "Compose of all five" if isinstance(augmentation, Compose) else repr(augmentation)
        rows.append((name, [_edited(augmentation, key) for key in _KEYS]))
    width, height = _SIZE
    picture = Image.new("L", (_NAME_WIDTH + len(_KEYS) * (width + _GAP), len(rows) * (height + _GAP) + _GAP), 255)
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(13)
    for row, (name, images) in enumerate(rows):
        top = _GAP + row * (height + _GAP)
        draw.text((_GAP, top + height // 3), name.partition("(")[0], fill=0, font=font)
        draw.text((_GAP + 130, top + height // 3), name.partition("(")[2].rstrip(")")[:28], fill=90, font=font)
        for column, image in enumerate(images):
            pixels = np.clip(image[0] * 255.0, 0, 255).astype(np.uint8)
            picture.paste(Image.fromarray(pixels), (_NAME_WIDTH + column * (width + _GAP), top))
    picture.save(path)


def _line() -> NDArray[np.float32]:
    """The line of text, dark on light: float32 [1, H, W] in [0, 1]."""
    image = Image.new("L", _SIZE, 215)
    ImageDraw.Draw(image).text((10, 6), _TEXT, fill=30, font=ImageFont.load_default(24))
    return np.asarray(image, np.float32)[np.newaxis] / np.float32(255)


def _edited(augmentation: Augmentation | Compose, key: int) -> NDArray[np.float32]:
    image = _line()
    augmentation(image, SampleRng(key))
    return image


if __name__ == "__main__":
    draw_augmentations(Path(sys.argv[1]))
