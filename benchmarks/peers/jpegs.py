"""A folder of JPEG files, decoded: the work that most people's loaders do.

Owns `Pictures`, `write_folder` and the stream `jpeg_stream`. The files are pictures of smooth noise, 256 x 256, quality
90, about 20 KB each. A sample is decoded by simplejpeg where it is installed, else by Pillow, for every peer alike.
"""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader_service import ShuffledSampler, StackCollator, Stream

__all__ = ["BATCH", "SIZE", "Pictures", "decoder", "jpeg_stream", "write_folder"]

BATCH, SIZE = 32, 256
_GRID = 16


def write_folder(folder: Path, count: int, seed: int = 0) -> None:
    """Write `count` JPEG files, 0000.jpg and so on, unless they are there."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for number in range(count):
        path = folder / f"{number:04}.jpg"
        if path.exists():
            continue
        coarse = rng.integers(0, 256, (_GRID, _GRID, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
        picture.save(path, quality=90)


@cache
def decoder() -> str:
    """Name of the library that decodes here."""
    try:
        import simplejpeg  # noqa: F401  # only whether it is there
    except ImportError:
        return "Pillow"
    return "simplejpeg"


def _decode(data: bytes) -> NDArray[np.uint8]:
    """Decode to uint8 [3, height, width]."""
    if decoder() == "simplejpeg":
        import simplejpeg

        pixels: Any = simplejpeg.decode_jpeg(data)
    else:
        from PIL import Image

        with Image.open(io.BytesIO(data)) as picture:
            pixels = np.asarray(picture.convert("RGB"))
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))  # [H, W, 3] -> [3, H, W]


class Pictures:
    """The files of a folder as samples {"image": uint8 [3, 256, 256]}.

    Args:
        folder: path of the folder; its files are taken in the order of their names.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._paths = sorted(Path(folder).glob("*.jpg"))

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> dict[str, NDArray[np.uint8]]:
        return {"image": _decode(self._paths[index].read_bytes())}


def jpeg_stream(folder: str, seed: int = 0) -> Stream:
    """Serve the folder in shuffled batches of 32: a factory for `loader-service serve`."""
    pictures = Pictures(folder)
    return Stream(pictures, ShuffledSampler(len(pictures), BATCH, seed), StackCollator(), seed=seed)
