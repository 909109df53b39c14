"""The vectors of images and augmentations follow from the rules."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import pytest

from tests.vectors.files import read_vectors
from tests.vectors.reference_images import AUGMENTATIONS, ImageSample, Place, collate, compose, grey, planes, rgb
from tests.vectors.reference_random import Generator, bits_of_single, single_from_bits

IMAGES = read_vectors("images")


@pytest.mark.parametrize("case", IMAGES["batches"], ids=lambda case: f"{case['channels']}-{case['augmentation']}")
def test_a_batch_of_images_follows_from_the_rules(case: dict[str, Any]) -> None:
    samples = []
    for one in case["samples"]:
        pixels = [single_from_bits(bits) for bits in one["pixels"]]
        image = planes(pixels, case["channels"], case["height"], one["width"])
        samples.append(ImageSample(image, one["target"], one["label"]))
    place = Place(int(case["seed"]), case["epoch"], case["step"])
    augment = AUGMENTATIONS[case["augmentation"]] if case["augmentation"] else None
    found = collate(samples, case["indices"], place, case["width_multiple"], case["pad_value"], augment)
    assert list(found) == list(case["tensors"])
    for name, expected in case["tensors"].items():
        shape, values = found[name]
        assert shape == expected["shape"]
        assert expected["dtype"] == ("float32" if name == "images" else "int32")
        stored = [bits_of_single(value) for value in values] if name == "images" else values
        assert stored == expected["bits" if name == "images" else "values"]
        packed = struct.pack(f"<{len(values)}{'f' if name == 'images' else 'i'}", *values)
        assert hashlib.sha256(packed).hexdigest() == expected["sha256"]


def test_the_pixels_of_the_samples_have_the_digests_beside_them() -> None:
    for case in IMAGES["batches"]:
        for one in case["samples"]:
            packed = struct.pack(f"<{len(one['pixels'])}I", *one["pixels"])
            assert hashlib.sha256(packed).hexdigest() == one["pixels_sha256"]


@pytest.mark.parametrize("case", IMAGES["grey"], ids=lambda case: f"{case['width']}x{case['height']}")
def test_grey_pixels_follow_from_the_rules(case: dict[str, Any]) -> None:
    found = grey(*(case[name] for name in ("pixels", "width", "height", "stride", "mean", "std")))
    assert [bits_of_single(value) for value in found] == case["bits"]


@pytest.mark.parametrize("case", IMAGES["rgb"], ids=lambda case: f"{case['width']}x{case['height']}")
def test_coloured_pixels_follow_from_the_rules(case: dict[str, Any]) -> None:
    found = rgb(*(case[name] for name in ("pixels", "width", "height", "stride", "mean", "std")))
    assert [bits_of_single(value) for value in found] == case["bits"]


@pytest.mark.parametrize("case", read_vectors("augmentations")["cases"], ids=lambda c: f"{c['steps']} {c['shape']}")
def test_an_augmented_image_follows_from_the_rules(case: dict[str, Any]) -> None:
    image = planes([single_from_bits(bits) for bits in case["image"]], *case["shape"])
    result = compose(image, Generator(int(case["key"])), case["steps"])
    assert [bits_of_single(pixel) for plane in result for row in plane for pixel in row] == case["result"]
