"""The gain-and-offset augmentation: in float32 throughout, in place, and a function of its generator alone."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_service.contract.augment import GainOffset
from loader_service.contract.fingerprint import describe
from loader_service.contract.rng import SampleRng
from loader_service.errors import ArgumentError

words = st.integers(0, 2**64 - 1)


@given(words)
@settings(deadline=None)
def test_every_operation_is_rounded_to_float32(key: int) -> None:
    pixels = np.linspace(-2, 2, 24, dtype=np.float32).reshape(2, 3, 4)
    rng = SampleRng(key)
    gain = np.float32(np.float32(0.75) + np.float32(np.float32(0.5) * rng.next_single()))
    offset = np.float32(rng.next_normal() * np.float32(0.125))
    expected = [np.float32(np.float32(pixel * gain) + offset) for pixel in pixels.reshape(-1)]
    image = pixels.copy()
    GainOffset()(image, SampleRng(key))
    assert image.dtype == np.float32
    assert image.reshape(-1).tolist() == [float(pixel) for pixel in expected]


@given(words)
@settings(deadline=None)
def test_the_gain_stays_in_its_range(key: int) -> None:
    image = np.array([[[0, 1]]], np.float32)
    GainOffset(offset_deviation=0)(image, SampleRng(key))
    assert image[0, 0, 0] == 0
    assert 0.75 <= image[0, 0, 1] < 1.25


def test_without_span_and_deviation_the_image_stays_as_it_is() -> None:
    image = np.linspace(0, 1, 8, dtype=np.float32).reshape(1, 2, 4)
    before = image.copy()
    GainOffset(gain_low=1, gain_span=0, offset_deviation=0)(image, SampleRng(3))
    assert np.array_equal(image, before)


def test_another_key_gives_another_image() -> None:
    images = np.ones((2, 1, 1, 4), np.float32)
    for key, image in enumerate(images):
        GainOffset()(image, SampleRng(key))
    assert not np.array_equal(images[0], images[1])


def test_it_survives_pickle_and_its_fields_are_its_description() -> None:
    augmentation = GainOffset(gain_low=0.5)
    assert pickle.loads(pickle.dumps(augmentation)) == augmentation
    assert describe(augmentation) != describe(GainOffset())


@pytest.mark.parametrize("name", ["gain_low", "gain_span", "offset_deviation"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e39, "1", None, True])
def test_a_field_that_is_no_finite_number_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=f"{name} is"):
        GainOffset(**{name: value})
