"""A picture of one batch of line images, each with its text.

Owns `save_grid`. Needs Pillow, of the extra `images`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from loader_service.contract.batch import Batch
from loader_service.errors import ConfigurationError

__all__ = ["check_writeable", "save_grid"]

_GAP = 2
_GAP_GREY = 96


def check_writeable(path: Path) -> None:
    """Raises ConfigurationError where no picture can be written to `path`, before any work is done."""
    if not path.parent.is_dir() or path.suffix.lower() not in Image.registered_extensions():
        raise ConfigurationError(f"the picture {path} cannot be written: name a .png file in a directory that exists")


def save_grid(batch: Batch, path: Path) -> None:
    """Write the images of `batch` (float32 [B, 1, H, Wp] in [0, 1]) below one another. Raises ConfigurationError."""
    images = batch["images"]
    count, _, height, width = images.shape
    grid = np.full((count * (height + _GAP) - _GAP, width), _GAP_GREY, np.uint8)
    for row, image in enumerate(images):
        top = row * (height + _GAP)
        grid[top : top + height] = np.clip(image[0] * 255.0, 0, 255).astype(np.uint8)
    try:
        Image.fromarray(grid).save(path)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the picture {path} cannot be written: {error}; name a .png file") from error
