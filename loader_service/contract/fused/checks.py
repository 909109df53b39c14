"""Kernels that look whether rows lie in their block, once a batch.

Owns `first_outside`.
"""

from __future__ import annotations

from typing import Any

from loader_service.contract.fused.compiler import kernel

__all__ = ["first_outside"]


@kernel("int64(Array(int64, 1, 'C', True), Array(int64, 1, 'C', True), int64, int64)")
def first_outside(starts: Any, sizes: Any, unit: int, limit: int) -> int:
    """The first row that does not lie in a block of `limit` elements, or -1; it has `sizes[row] * unit` elements."""
    for row in range(starts.size):
        start, size = starts[row], sizes[row]
        if start < 0 or start > limit or size < 0 or (unit > 0 and size > (limit - start) // unit):
            return row
    return -1
