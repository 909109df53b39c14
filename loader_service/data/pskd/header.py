"""The header of a container file.

Owns `Header`: what it says, how it is read and written. Invariant: a header that was read is consistent with its type;
anything else is a DataError with the offset where it is wrong.

    "PSKD", version u16, type_len u32, the type in UTF-8, count u64
    version 2 goes on: leaves u32, one encoding u8 for each leaf
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from loader_service.data.pskd.layout import Enc, Layout, Leaf, leaves
from loader_service.data.pskd.types import is_params, parse_type
from loader_service.errors import DataError

__all__ = ["MAGIC", "VERSION", "VERSION_ENCODED", "Header", "check_encodings"]

MAGIC = b"PSKD"
VERSION = 1
VERSION_ENCODED = 2


class _Bytes:
    """A place in a file's bytes, with the error for its end."""

    def __init__(self, data: memoryview) -> None:
        self._data, self.offset = data, 0

    def take(self, size: int, what: str) -> bytes:
        if len(self._data) - self.offset < size:
            raise DataError(
                "E9003", f"the file ends at byte {len(self._data)}, within {what}, which begins at {self.offset}"
            )
        taken = bytes(self._data[self.offset : self.offset + size])
        self.offset += size
        return taken

    def number(self, layout: str, what: str) -> int:
        return int(struct.unpack(layout, self.take(struct.calcsize(layout), what))[0])


@dataclass(frozen=True, slots=True)
class Header:
    """What a header says. layout: None for a `params` type; encodings: None in version 1; nbytes: of the header."""

    version: int
    type_text: str
    layout: Layout | None
    count: int
    encodings: tuple[Enc, ...] | None
    nbytes: int

    @classmethod
    def read(cls, data: memoryview) -> Self:
        """The header at the start of `data`. Raises DataError."""
        place = _Bytes(data)
        if bytes(data[:4]) != MAGIC:
            raise DataError("E9002", f"the file begins with {bytes(data[:4])!r}; a .psk.d file begins with {MAGIC!r}")
        place.take(4, "the magic")
        version = place.number("<H", "the version")
        if version not in (VERSION, VERSION_ENCODED):
            raise DataError("E9002", f"the version is {version}; {VERSION} and {VERSION_ENCODED} can be read")
        raw = place.take(place.number("<I", "the type's length"), "the type")
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError("E9002", f"the type is no UTF-8 at byte {10 + error.start}") from None
        count = place.number("<Q", "the count")
        if count >= 2**63:
            raise DataError("E9004", f"the count is {count}; it must lie below 2^63")
        layout = None if is_params(text) else parse_type(text)
        encodings = _encodings(place, layout) if version == VERSION_ENCODED else None
        return cls(version, text, layout, count, encodings, place.offset)

    def write(self) -> bytes:
        """The header's bytes."""
        text = self.type_text.encode()
        head = MAGIC + struct.pack("<HI", self.version, len(text)) + text + struct.pack("<Q", self.count)
        if self.encodings is None:
            return head
        return head + struct.pack("<I", len(self.encodings)) + bytes(self.encodings)

    @property
    def count_offset(self) -> int:
        """Where the count stands, for a writer that learns it last."""
        return 10 + len(self.type_text.encode())


def _encodings(place: _Bytes, layout: Layout | None) -> tuple[Enc, ...]:
    number = place.number("<I", "the number of leaves")
    found = None if layout is None else list(leaves(layout))
    if found is not None and number != len(found):
        raise DataError("E9005", f"the header has {number} encodings and the type {len(found)} leaves")
    raw = place.take(number, "the encodings")
    unknown = next((code for code in raw if code > max(Enc)), None)
    if unknown is not None:
        raise DataError("E9002", f"the encoding {unknown} is unknown; 0 is f64, 1 f32, 2 bf16")
    encodings = tuple(Enc(code) for code in raw)
    check_encodings(found or [], encodings)
    return encodings


def check_encodings(found: Sequence[Leaf], encodings: Sequence[Enc]) -> None:
    """Raises DataError E9002 where an idx leaf has a narrow encoding."""
    for place, leaf in enumerate(found):
        if leaf.bound is not None and encodings[place] is not Enc.F64:
            raise DataError("E9002", f"leaf {place} is an idx and has the encoding {encodings[place].name}")
