"""The header of a container file.

Owns `Header`: its fields, how it is read and how it is written (R77, R78). Invariant: a header that was read is
consistent with its type; anything else is a DataError that names the byte.

    "PSKD", version u16, type_len u32, the type in UTF-8, count u64
    version 2 goes on: leaves u32, one encoding u8 for each leaf
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from loader_service.contract.checks import checked_int, checked_text, set_fields, shown
from loader_service.data.pskd.layout import Enc, Layout, Leaf, checked_encodings, checked_layout, leaves
from loader_service.data.pskd.types import is_params, parse_type
from loader_service.errors import ArgumentError, DataError

__all__ = ["MAGIC", "VERSION", "VERSION_ENCODED", "Header", "check_encodings"]

MAGIC = b"PSKD"
VERSION = 1
VERSION_ENCODED = 2


class _ByteCursor:
    """A position in the bytes of a file, with the error for their end."""

    def __init__(self, data: memoryview) -> None:
        self._data, self.offset = data, 0

    def take(self, size: int, what: str) -> bytes:
        """Read `size` bytes and go on behind them. Raises DataError E9003 where the file ends within them."""
        if len(self._data) - self.offset < size:
            raise DataError(
                "E9003", f"the file ends at byte {len(self._data)}, within {what}, which begins at {self.offset}"
            )
        taken = bytes(self._data[self.offset : self.offset + size])
        self.offset += size
        return taken

    def number(self, layout: str, what: str) -> int:
        """Read one number of the struct format `layout`. Raises DataError E9003."""
        return int(struct.unpack(layout, self.take(struct.calcsize(layout), what))[0])


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a file.

    Attributes:
        version: 1 or 2.
        type_text: The sample type as written.
        layout: The layout that the type tells, or that a caller gave; None for a `params` type.
        count: Number of samples, below 2^63.
        encodings: One for each leaf; None in version 1.
        nbytes: Bytes of the header: where the samples begin.

    Raises:
        ArgumentError: If a field is of another type or outside its range.
    """

    version: int
    type_text: str
    layout: Layout | None
    count: int
    encodings: tuple[Enc, ...] | None
    nbytes: int

    def __post_init__(self) -> None:
        set_fields(
            self,
            version=checked_int("version", self.version, VERSION, VERSION_ENCODED),
            type_text=checked_text("type_text", self.type_text),
            layout=None if self.layout is None else checked_layout("layout", self.layout),
            count=checked_int("count", self.count, 0, 2**63 - 1),
            encodings=None if self.encodings is None else checked_encodings("encodings", self.encodings),
            nbytes=checked_int("nbytes", self.nbytes, 0, 2**63 - 1),
        )

    @classmethod
    def read(cls, data: memoryview) -> Self:
        """Read the header at the start of a file's bytes (R87).

        Args:
            data: The file, or its beginning.

        Raises:
            DataError: E9001 to E9005, as the specification says.
            ArgumentError: If `data` is no bytes.
        """
        view = _checked_bytes(data)
        cursor = _ByteCursor(view)
        if bytes(view[:4]) != MAGIC:
            raise DataError("E9002", f"the file begins with {bytes(view[:4])!r}; a .psk.d file begins with {MAGIC!r}")
        cursor.take(4, "the magic")
        version = cursor.number("<H", "the version")
        if version not in (VERSION, VERSION_ENCODED):
            raise DataError("E9002", f"the version is {version}; {VERSION} and {VERSION_ENCODED} can be read")
        raw = cursor.take(cursor.number("<I", "the type's length"), "the type")
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError("E9002", f"the type is no UTF-8 at byte {10 + error.start}") from None
        count = cursor.number("<Q", "the count")
        if count >= 2**63:
            raise DataError("E9004", f"the count is {count}; it must lie below 2^63")
        layout = None if is_params(text) else parse_type(text)
        encodings = _read_encodings(cursor, layout) if version == VERSION_ENCODED else None
        return cls(version, text, layout, count, encodings, cursor.offset)

    def write(self) -> bytes:
        """Make the bytes of the header."""
        text = self.type_text.encode()
        head = MAGIC + struct.pack("<HI", self.version, len(text)) + text + struct.pack("<Q", self.count)
        if self.encodings is None:
            return head
        return head + struct.pack("<I", len(self.encodings)) + bytes(self.encodings)

    @property
    def count_offset(self) -> int:
        """The byte at which the count stands, for a writer that knows it last."""
        return 10 + len(self.type_text.encode())


def _checked_bytes(data: Any) -> memoryview:
    try:
        return memoryview(data).cast("B")
    except TypeError:
        raise ArgumentError(f"data is {shown(data)}; it must be the bytes of a file") from None


def _read_encodings(cursor: _ByteCursor, layout: Layout | None) -> tuple[Enc, ...]:
    number = cursor.number("<I", "the number of leaves")
    found = None if layout is None else list(leaves(layout))
    if found is not None and number != len(found):
        raise DataError("E9005", f"the header has {number} encodings and the type {len(found)} leaves")
    encodings = tuple(Enc(code) for code in cursor.take(number, "the encodings"))
    check_encodings(found or [], encodings)
    return encodings


def check_encodings(found: Sequence[Leaf], encodings: Sequence[Enc]) -> None:
    """Check that no idx leaf has a narrow encoding.

    Raises:
        DataError: E9002 where one has.
    """
    for place, leaf in enumerate(found):
        if leaf.bound is not None and encodings[place] is not Enc.F64:
            raise DataError("E9002", f"leaf {place} is an idx and has the encoding {encodings[place].name}")
