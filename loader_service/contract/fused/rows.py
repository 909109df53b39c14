"""Kernels that copy rows of bytes out of one block: token windows, fixed-size samples, sequences that are padded.

Owns `gather_rows` and `pad_rows`. Invariant: every byte of `rows` is written; the caller has checked that what is read
lies in the block.
"""

from __future__ import annotations

from typing import Any

from loader_service.contract.fused.compiler import kernel

__all__ = ["gather_rows", "pad_rows"]


@kernel("void(Array(uint8, 1, 'C', True), Array(int64, 1, 'C', True), uint8[:,::1])")
def gather_rows(block: Any, starts: Any, rows: Any) -> None:
    """rows[b] = block[starts[b] : starts[b] + size]; block uint8 [V], starts int64 [B], rows uint8 [B, size]."""
    for row in range(rows.shape[0]):
        rows[row, :] = block[starts[row] : starts[row] + rows.shape[1]]


@kernel(
    "void(Array(uint8, 1, 'C', True), Array(int64, 1, 'C', True), Array(int64, 1, 'C', True), "
    "Array(uint8, 1, 'C', True), uint8[:,::1])"
)
def pad_rows(block: Any, starts: Any, sizes: Any, pad: Any, rows: Any) -> None:
    """rows[b] = block[starts[b] : starts[b] + sizes[b]], then `pad` again and again.

    Args:
        block: uint8 [V]; starts, sizes: int64 [B], in bytes, sizes multiples of len(pad).
        pad: uint8 [itemsize], the bytes of one padding element.
        rows: uint8 [B, size], any content; size is a multiple of len(pad).
    """
    unit = pad.size
    for row in range(rows.shape[0]):
        size = sizes[row]
        rows[row, :size] = block[starts[row] : starts[row] + size]
        for at in range(size, rows.shape[1], unit):
            rows[row, at : at + unit] = pad
