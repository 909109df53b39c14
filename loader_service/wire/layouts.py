"""A batch's layout on its way from the worker that wrote the batch to whoever reads it.

Owns `pack_layout` and `unpack_layout`. Invariant: what is unpacked has passed `Layout.from_wire`. Whoever is between
passes the bytes on as they are, and equal bytes are equal layouts: a reader of batches of one shape looks once.
"""

from __future__ import annotations

from functools import lru_cache

import msgpack

from loader_service.contract.layout import Layout
from loader_service.errors import ProtocolError

__all__ = ["pack_layout", "unpack_layout"]

_ANY_TEXT = "surrogatepass"
"""A tensor may have any name that Python can hold."""
_KEPT, _KEPT_BYTES = 256, 1 << 12


def pack_layout(layout: Layout) -> bytes:
    """A layout as bytes; those of large ones take about 30 for each tensor."""
    packed: bytes = msgpack.packb(layout.to_wire(), unicode_errors=_ANY_TEXT)
    return packed


def unpack_layout(packed: bytes) -> Layout:
    """The layout that was packed. Raises ProtocolError."""
    return _kept(packed) if len(packed) <= _KEPT_BYTES else _unpacked(packed)


def _unpacked(packed: bytes) -> Layout:
    try:
        entries = msgpack.unpackb(packed, unicode_errors=_ANY_TEXT)
    except Exception as error:  # msgpack documents no common base for what malformed input raises
        raise ProtocolError(f"a layout is no msgpack: {type(error).__name__}") from error
    return Layout.from_wire(entries)


_kept = lru_cache(maxsize=_KEPT)(_unpacked)
