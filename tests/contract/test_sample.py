"""The sample of line images."""

from __future__ import annotations

import numpy as np
import pytest

from loader_service import ImageSample


def test_it_unpacks_in_the_order_of_its_fields() -> None:
    image, target = np.zeros((1, 2, 3), np.float32), np.array([1, 2], np.int32)
    sample = ImageSample(image, target, 7)
    assert [part is whole for part, whole in zip(sample, (image, target, 7), strict=True)] == [True, True, True]


def test_the_label_may_be_left_out_and_nothing_can_be_set() -> None:
    sample = ImageSample(np.zeros((1, 2, 3), np.float32), np.zeros(0, np.int32))
    assert sample.label == 0
    with pytest.raises(AttributeError):
        sample.label = 3  # type: ignore[misc]  # that it is refused is the test
