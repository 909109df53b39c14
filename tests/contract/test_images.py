"""Image helpers: known bits, a scalar reading of the formula, strides, given memory, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from loader_service.contract.images import gray8_to_planar, rgb8_to_planar
from loader_service.errors import ArgumentError
from tests.vectors.files import read_vectors

VECTORS: list[dict[str, Any]] = read_vectors("images")["grey"]

statistics = st.tuples(st.floats(-2, 2), st.floats(0.01, 4))


def by_the_text(pixel: int, mean: float, std: float) -> float:
    """One pixel: float32 scale and bias, then two operations, each rounded."""
    scale = np.float32(1) / np.float32(np.float32(255) * np.float32(std))
    bias = np.float32(mean) / np.float32(std)
    return float(np.float32(np.float32(pixel) * scale) - bias)


def pixels_for(height: int, stride: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, height * stride, np.uint8).tobytes()


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: f"{case['width']}x{case['height']}")
def test_grey_pixels_have_the_known_bits(case: dict[str, Any]) -> None:
    sizes = case["width"], case["height"], case["stride"], case["mean"], case["std"]
    planar = gray8_to_planar(bytes(case["pixels"]), *sizes)
    assert planar.shape == (1, case["height"], case["width"])
    assert planar.reshape(-1).view(np.uint32).tolist() == case["bits"]


@given(st.integers(0, 9), st.integers(0, 5), st.integers(0, 4), statistics)
@settings(max_examples=60)
def test_each_grey_pixel_is_the_formula(width: int, height: int, rest: int, given: tuple[float, float]) -> None:
    stride = width + rest
    pixels = pixels_for(height, stride)
    planar = gray8_to_planar(pixels, width, height, stride, *given)
    expected = [[by_the_text(pixels[y * stride + x], *given) for x in range(width)] for y in range(height)]
    assert planar.dtype == np.float32
    assert planar.shape == (1, height, width)
    assert planar[0].tolist() == expected


@given(st.integers(0, 6), st.integers(0, 4), st.integers(0, 4), st.tuples(statistics, statistics, statistics))
@settings(max_examples=60)
def test_each_colour_is_a_plane_with_its_own_mean_and_std(
    width: int, height: int, rest: int, given: tuple[tuple[float, float], ...]
) -> None:
    stride = 3 * width + rest
    pixels = pixels_for(height, stride)
    planar = rgb8_to_planar(pixels, width, height, stride, [mean for mean, _ in given], [std for _, std in given])
    assert planar.dtype == np.float32
    assert planar.shape == (3, height, width)
    for channel, (mean, std) in enumerate(given):
        rows = [[pixels[y * stride + 3 * x + channel] for x in range(width)] for y in range(height)]
        assert planar[channel].tolist() == [[by_the_text(pixel, mean, std) for pixel in row] for row in rows]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)])
def test_pixels_may_be_any_bytes(kind: Any) -> None:
    data = pixels_for(3, 8)
    assert np.array_equal(gray8_to_planar(kind(data), 5, 3, 8, 0.5, 0.5), gray8_to_planar(data, 5, 3, 8, 0.5, 0.5))


def test_an_array_of_rows_is_taken_too() -> None:
    image = np.frombuffer(pixels_for(3, 12), np.uint8).reshape(3, 4, 3)
    planar = rgb8_to_planar(image, 4, 3, 12, [0] * 3, [1 / 255] * 3)
    assert np.array_equal(planar.round(), image.transpose(2, 0, 1))


def test_the_last_row_needs_no_padding() -> None:
    data = pixels_for(3, 8)
    assert np.array_equal(gray8_to_planar(data[:-3], 5, 3, 8, 0, 1), gray8_to_planar(data, 5, 3, 8, 0, 1))


@pytest.mark.parametrize("channels", [1, 3])
def test_the_result_may_go_to_given_memory_of_any_strides(channels: int) -> None:
    def convert(out: NDArray[np.float32] | None) -> NDArray[np.float32]:
        if channels == 1:
            return gray8_to_planar(data, 4, 3, 12, 0.1, 0.3, out)
        return rgb8_to_planar(data, 4, 3, 12, [0.1, 0.2, 0.3], [0.3, 0.2, 0.1], out)

    data = pixels_for(3, 12)
    memory = np.full((channels, 3, 9), 7, np.float32)
    out = memory[:, :, 2:6]
    assert convert(out) is out
    assert np.array_equal(out, convert(None))
    assert (memory[:, :, :2] == 7).all()
    assert (memory[:, :, 6:] == 7).all()


NAN = float("nan")
GREY: dict[str, Any] = {"pixels": bytes(12), "width": 4, "height": 3, "stride": 4, "mean": 0.5, "std": 0.5}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"std": 0}, r"std 0\.0; both must be finite in float32, and std positive"),
        ({"std": -0.5}, r"std -0\.5"),
        ({"std": NAN}, "std is nan; it must be finite"),
        ({"std": float("inf")}, "std is inf; it must be finite"),
        ({"std": 1e-46}, "std 1e-46"),
        ({"std": 1e39}, r"std is 1e\+39; it must be finite in float32"),
        ({"mean": NAN}, "mean is nan"),
        ({"mean": 1e39}, r"mean is 1e\+39"),
        ({"stride": 3}, "stride is 3 bytes and a row has 4"),
        ({"width": -1, "stride": 0}, "width is -1"),
        ({"height": -1}, "height is -1"),
        ({"height": 4}, "pixels hold 12 bytes; 4 rows with stride 4 need 16"),
        ({"pixels": np.zeros(12)}, r"pixels are float64\[12\]; they must be bytes or an array of uint8"),
        (
            {"out": np.zeros((1, 3, 5), np.float32)},
            r"out is float32\[1, 3, 5\]; it must be writeable float32\[1, 3, 4\]",
        ),
        ({"out": np.zeros((1, 3, 4))}, r"out is float64\[1, 3, 4\]"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_arguments_that_make_no_image_are_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        gray8_to_planar(**GREY | changes)


def test_rgb_needs_a_mean_and_a_std_for_each_colour() -> None:
    with pytest.raises(ArgumentError, match="mean has 1 and std 3 values; each needs three"):
        rgb8_to_planar(bytes(12), 2, 2, 6, [0.5], [0.5] * 3)
    with pytest.raises(ArgumentError, match=r"std\[1\] 0\.0"):
        rgb8_to_planar(bytes(12), 2, 2, 6, [0.5] * 3, [0.5, 0, 0.5])
