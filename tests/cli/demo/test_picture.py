"""A picture of a batch: rows below one another, a grey gap between them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from loader_service.cli.demo.picture import check_writeable, save_grid
from loader_service.contract.batch import Batch
from loader_service.errors import ConfigurationError


def batch() -> Batch:
    """Two images of 3 by 4: black, then white."""
    images = np.stack([np.zeros((1, 3, 4), np.float32), np.ones((1, 3, 4), np.float32)])  # -> [B, 1, H, W]
    return Batch({"images": images}, 0, 0, 0, 2)


def test_the_images_stand_below_one_another(tmp_path: Path) -> None:
    path = tmp_path / "grid.png"
    save_grid(batch(), path)
    with Image.open(path) as picture:
        pixels = np.asarray(picture)
    assert pixels.shape == (3 + 2 + 3, 4)
    assert (pixels[:3] == 0).all()
    assert (pixels[3:5] == 96).all()
    assert (pixels[5:] == 255).all()


@pytest.mark.parametrize("name", ["none/grid.png", "grid.text", "grid"])
def test_a_place_where_no_picture_can_be_is_found_before_the_work(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError):
        check_writeable(tmp_path / name)


def test_a_directory_in_its_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "grid.png").mkdir()
    with pytest.raises(ConfigurationError, match=r"grid\.png"):
        save_grid(batch(), tmp_path / "grid.png")
