"""8-bit pixels to planar float32 (R57 to R59). Decoding image files is somebody else's work.

Owns `gray8_to_planar` and `rgb8_to_planar`. Invariant: scale and bias are float32, and each pixel is two operations,
each rounded: float32(p) * scale, then - bias; so the results are the same bits everywhere.

    scale = 1 / (255 · std),  bias = mean / std
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.checks import MAX_N, checked_float32, checked_int, checked_sequence, shown
from loader_service.errors import ArgumentError

__all__ = ["gray8_to_planar", "rgb8_to_planar"]

Pixels = bytes | bytearray | memoryview | NDArray[np.uint8]


def _scale_and_bias(mean: float, std: float, name: str = "") -> tuple[np.float32, np.float32]:
    mean, std = checked_float32(f"mean{name}", mean), checked_float32(f"std{name}", std)
    with np.errstate(all="ignore"):
        deviation = np.float32(std)
        scale, bias = np.float32(1.0) / (np.float32(255.0) * deviation), np.float32(mean) / deviation
    if not (0 < scale < np.inf and np.isfinite(bias)):
        raise ArgumentError(
            f"mean{name} is {mean} and std{name} {std}; both must be finite in float32, and std positive"
        )
    return scale, bias


def _rows(pixels: Pixels, channels: int, width: int, height: int, stride: int) -> NDArray[np.uint8]:
    """The rows of an image without their padding: uint8 [height, channels · width], a view."""
    flat = _flat(pixels)
    row_bytes = channels * checked_int("width", width, 0, MAX_N)
    height, stride = checked_int("height", height, 0, MAX_N), checked_int("stride", stride, 0, MAX_N)
    if stride < row_bytes:
        raise ArgumentError(f"stride is {stride} bytes and a row has {row_bytes}; it must be at least that")
    needed = stride * (height - 1) + row_bytes if height else 0
    if flat.size < needed:
        raise ArgumentError(f"pixels hold {flat.size} bytes; {height} rows with stride {stride} need {needed}")
    return np.ndarray((height, row_bytes), np.uint8, flat, 0, (stride, 1))


def _flat(pixels: Pixels) -> NDArray[np.uint8]:
    if isinstance(pixels, np.ndarray) and type(pixels) is not np.ma.MaskedArray and pixels.dtype == np.uint8:
        return pixels.reshape(-1)  # [...] -> [bytes]
    if isinstance(pixels, bytes | bytearray | memoryview):
        try:
            return np.frombuffer(pixels, np.uint8)
        except (ValueError, BufferError):  # nothing at all, or a memoryview with gaps
            return np.frombuffer(bytes(pixels), np.uint8) if len(pixels) else np.empty(0, np.uint8)
    raise ArgumentError(f"pixels are {shown(pixels)}; they must be bytes or an array of uint8")


def _planar(shape: tuple[int, ...], out: NDArray[np.float32] | None) -> NDArray[np.float32]:
    if out is None:
        return np.empty(shape, np.float32)
    if not isinstance(out, np.ndarray) or out.dtype != np.float32 or out.shape != shape or not out.flags.writeable:
        raise ArgumentError(f"out is {shown(out)}; it must be writeable float32{list(shape)}")
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
    """Convert grey pixels to planar float32 (R57, R59).

    Args:
        pixels: height rows, each `stride` bytes behind the one before.
        width: pixels of a row.
        height: rows.
        stride: bytes from row to row, at least width.
        mean: in units of full white.
        std: in units of full white, above 0.
        out: float32 [1, height, width] to write into; None: a new array.

    Returns:
        float32 [1, height, width].

    Raises:
        ArgumentError: an argument outside its range, or too few pixels.

    >>> gray8_to_planar(bytes([0, 255]), width=2, height=1, stride=2, mean=0.5, std=0.5)
    array([[[-1.,  1.]]], dtype=float32)
    """
    scale, bias = _scale_and_bias(mean, std)
    rows = _rows(pixels, 1, width, height, stride)
    planar = _planar((1, *rows.shape), out)
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
    """Convert interleaved RGB pixels to planar float32 (R58, R59).

    Args:
        pixels: height rows, each `stride` bytes behind the one before.
        width: pixels of a row.
        height: rows.
        stride: bytes from row to row, at least 3 · width.
        mean: three numbers, for R, G and B, in units of full light.
        std: three numbers above 0.
        out: float32 [3, height, width] to write into; None: a new array.

    Returns:
        float32 [3, height, width].

    Raises:
        ArgumentError: an argument outside its range, or too few pixels.
    """
    means, deviations = checked_sequence("mean", mean, checked_float32), checked_sequence("std", std, checked_float32)
    if len(means) != 3 or len(deviations) != 3:
        raise ArgumentError(f"mean has {len(means)} and std {len(deviations)} values; each needs three, for R, G and B")
    rows = _rows(pixels, 3, width, height, stride)
    interleaved = rows.reshape(len(rows), rows.shape[1] // 3, 3)  # [H, 3W] -> [H, W, 3]
    planar = _planar((3, *interleaved.shape[:2]), out)
    for channel in range(3):
        scale, bias = _scale_and_bias(means[channel], deviations[channel], f"[{channel}]")
        np.multiply(interleaved[:, :, channel], scale, out=planar[channel], dtype=np.float32)
        planar[channel] -= bias
    return planar
