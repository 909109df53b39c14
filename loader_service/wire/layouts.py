"""A batch's layout on its way from the worker that wrote the batch to whoever reads it.

Owns `pack_layout` and `unpack_layout`. Invariant: a layout that was unpacked has passed `Layout.from_wire`. The daemon
passes the bytes on as they are, and equal bytes are equal layouts, so that a reader may keep what it has unpacked.
"""

from __future__ import annotations

import msgpack

from loader_service.contract.layout import Layout
from loader_service.errors import ProtocolError

__all__ = ["pack_layout", "unpack_layout"]

_ANY_TEXT = "surrogatepass"
"""A tensor may have any name that Python can hold."""


def pack_layout(layout: Layout) -> bytes:
    """Write a layout as bytes, about 30 for each tensor."""
    packed: bytes = msgpack.packb(layout.to_wire(), unicode_errors=_ANY_TEXT)
    return packed


def unpack_layout(packed: bytes) -> Layout:
    """Read the layout that was packed. Raises ProtocolError."""
    try:
        entries = msgpack.unpackb(packed, unicode_errors=_ANY_TEXT)
    except Exception as error:  # msgpack documents no common base for what malformed input raises
        raise ProtocolError(f"a layout is no msgpack: {type(error).__name__}") from error
    return Layout.from_wire(entries)
