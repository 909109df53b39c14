"""Images that numpy writes: in any order of widths, in blocks of rows, with the error of the first row that has one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from loader_service.contract.augment import Blur, GainOffset
from loader_service.contract.collate import BatchContext, SlotError
from loader_service.contract.collate.numpy_lines import write_images
from loader_service.contract.rng import SampleRng, derive
from loader_service.contract.sample import ImageSample

Image = NDArray[np.float32]


def make_samples(widths: list[int], height: int = 2) -> list[ImageSample]:
    rng = np.random.default_rng(len(widths))
    return [ImageSample(rng.random((1, height, width), np.float32), np.zeros(0, np.int32)) for width in widths]


def written(samples: list[ImageSample], augmentation: Any, padded: int, first_slot: int = 0) -> Image:
    context = BatchContext(7, 1, 2, np.arange(len(samples)), first_slot=first_slot)
    images = np.full((len(samples), 1, samples[0].image.shape[1], padded), np.nan, np.float32)
    write_images(samples, context, images, augmentation, -2.0)
    return images


@pytest.mark.parametrize("augmentation", [None, GainOffset(), Blur()], ids=repr)
@given(widths=st.lists(st.integers(0, 9), min_size=1, max_size=140))
def test_each_image_is_the_edited_one_and_padding_stands_behind_it(augmentation: Any, widths: list[int]) -> None:
    samples = make_samples(widths)
    images = written(samples, augmentation, 11, first_slot=3)
    for row, (sample, width) in enumerate(zip(samples, widths, strict=True)):
        expected = sample.image.copy()
        if augmentation is not None:
            augmentation(expected, SampleRng(derive(7, 1, 2, 3 + row, 1)))
        assert images[row, :, :, :width].tobytes() == expected.tobytes()
        assert (images[row, :, :, width:] == -2).all()


def test_the_samples_stay_as_they_are() -> None:
    samples = make_samples([3, 1, 2])
    before = [sample.image.copy() for sample in samples]
    written(samples, GainOffset(), 4)
    assert all(np.array_equal(sample.image, image) for sample, image in zip(samples, before, strict=True))


def test_the_error_is_that_of_the_first_row_with_one() -> None:
    def fail_on_wide(image: Image, rng: SampleRng) -> None:
        if image.shape[2] >= 5:
            raise OSError(f"width {image.shape[2]}")

    with pytest.raises(SlotError, match="width 9") as caught:
        written(make_samples([1, 9, 5, 2]), fail_on_wide, 9)
    assert caught.value.row == 1
