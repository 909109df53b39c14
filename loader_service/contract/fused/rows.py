"""Kernels that copy rows of bytes out of one block: token windows, fixed-size samples, sequences that are padded.

Owns `gather_rows` and `pad_rows`. Invariant: every byte of `rows` is written; the caller has checked that what is read
lies in the block.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from loader_service.contract.fused.compiler import kernel

__all__ = ["copy_bytes", "gather_rows", "pad_rows"]


@kernel()
def copy_bytes(block: Any, first: Any, size: Any, line: Any) -> None:
    """line[:size] = block[first : first + size], as a loop: for slices numba would look whether they overlap."""
    for i in range(size):
        line[i] = block[first + i]


@kernel("void(Array(uint8, 1, 'C', True), Array(int64, 1, 'C', True), uint8[:,::1])")
def gather_rows(block: Any, starts: Any, rows: Any) -> None:
    """rows[b] = block[starts[b] : starts[b] + size]; block uint8 [V], starts int64 [B], rows uint8 [B, size]."""
    size = np.uintp(rows.shape[1])
    for row in range(rows.shape[0]):
        copy_bytes(block, np.uintp(starts[row]), size, rows[row])


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
    unit, padded = np.uintp(pad.size), np.uintp(rows.shape[1])
    for row in range(rows.shape[0]):
        size, line = np.uintp(sizes[row]), rows[row]
        copy_bytes(block, np.uintp(starts[row]), size, line)
        for at in range(size, padded, unit):
            for i in range(unit):
                line[at + i] = pad[i]
