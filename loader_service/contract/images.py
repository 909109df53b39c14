"""8-bit pixels to planar float32 (R57 to R59). Decoding image files is somebody else's work.

Owns `gray8_to_planar` and `rgb8_to_planar`. Invariant: scale and bias are float32, and each pixel is two operations,
each rounded: float32(p) * scale, then - bias; so the results are the same bits everywhere.

    scale = 1 / (255 · std),  bias = mean / std
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loader_service.errors import ArgumentError

__all__ = ["gray8_to_planar", "rgb8_to_planar"]

Pixels = bytes | bytearray | memoryview | NDArray[np.uint8]


def _scale_and_bias(mean: float, std: float) -> tuple[np.float32, np.float32]:
    with np.errstate(all="ignore"):
        deviation = np.float32(std)
        scale, bias = np.float32(1.0) / (np.float32(255.0) * deviation), np.float32(mean) / deviation
    if not (0 < scale < np.inf and np.isfinite(bias)):
        raise ArgumentError(f"mean is {mean} and std {std}; both must be finite in float32 and std positive")
    return scale, bias


def _rows(pixels: Pixels, row_bytes: int, height: int, stride: int) -> NDArray[np.uint8]:
    """The rows of an image without their padding: uint8 [height, row_bytes], a view."""
    flat = np.frombuffer(pixels, np.uint8) if not isinstance(pixels, np.ndarray) else pixels.reshape(-1)
    if flat.dtype != np.uint8:
        raise ArgumentError(f"pixels are {flat.dtype}; they must be uint8")
    if row_bytes < 0 or height < 0 or stride < row_bytes:
        raise ArgumentError(f"stride is {stride} bytes and a row has {row_bytes}; height is {height}")
    needed = stride * (height - 1) + row_bytes if height else 0
    if flat.size < needed:
        raise ArgumentError(f"pixels hold {flat.size} bytes; {height} rows with stride {stride} need {needed}")
    return np.ndarray((height, row_bytes), np.uint8, flat, 0, (stride, 1))


def _planar(shape: tuple[int, ...], out: NDArray[np.float32] | None) -> NDArray[np.float32]:
    if out is None:
        return np.empty(shape, np.float32)
    if out.dtype != np.float32 or out.shape != shape:
        raise ArgumentError(f"out is {out.dtype}{list(out.shape)}; it must be float32{list(shape)}")
    return out


def gray8_to_planar(
    pixels: Pixels,
    width: int,
    height: int,
    stride: int,
    mean: float,
    std: float,
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Grey pixels, rows of `stride` bytes, to float32 [1, height, width]; into `out` where it is given.

    mean, std: in units of full white, std > 0. Raises ArgumentError.

    >>> gray8_to_planar(bytes([0, 255]), width=2, height=1, stride=2, mean=0.5, std=0.5)
    array([[[-1.,  1.]]], dtype=float32)
    """
    scale, bias = _scale_and_bias(mean, std)
    rows = _rows(pixels, width, height, stride)
    planar = _planar((1, height, width), out)
    np.multiply(rows, scale, out=planar[0], dtype=np.float32)
    planar[0] -= bias
    return planar


def rgb8_to_planar(
    pixels: Pixels,
    width: int,
    height: int,
    stride: int,
    mean: Sequence[float],
    std: Sequence[float],
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Interleaved RGB pixels, rows of `stride` bytes, to float32 [3, height, width]; mean and std for each channel.

    Raises ArgumentError.
    """
    if len(mean) != 3 or len(std) != 3:
        raise ArgumentError(f"mean has {len(mean)} and std {len(std)} values; each needs three, for R, G and B")
    rows = _rows(pixels, 3 * width, height, stride).reshape(height, width, 3)  # [H, 3W] -> [H, W, 3]
    planar = _planar((3, height, width), out)
    for channel in range(3):
        scale, bias = _scale_and_bias(mean[channel], std[channel])
        np.multiply(rows[:, :, channel], scale, out=planar[channel], dtype=np.float32)
        planar[channel] -= bias
    return planar
