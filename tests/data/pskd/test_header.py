"""Headers: bytes to fields and back, and the byte at which a wrong one is wrong."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_service.data.pskd import DataError, Enc, Header, Leaf, Tuple
from loader_service.data.pskd.header import MAGIC, VERSION, VERSION_ENCODED, check_encodings
from loader_service.errors import ArgumentError

_TYPE = "(idx[9][2], ℝ[])"
_LAYOUT = Tuple((Leaf(9, (2,)), Leaf(None, ())))


def _bytes(version: int = 1, text: str = _TYPE, count: int = 3, more: bytes = b"") -> bytes:
    raw = text.encode()
    return MAGIC + struct.pack("<HI", version, len(raw)) + raw + struct.pack("<Q", count) + more


@given(st.integers(0, 2**63 - 1), st.sampled_from([None, (0, 0), (0, 1), (0, 2)]))
def test_what_is_written_is_read(count: int, codes: tuple[int, ...] | None) -> None:
    encodings = None if codes is None else tuple(map(Enc, codes))
    version = VERSION if codes is None else VERSION_ENCODED
    header = Header(version, _TYPE, _LAYOUT, count, encodings, 0)
    data = header.write()
    found = Header.read(memoryview(data + b"samples"))
    assert (found.version, found.type_text, found.layout, found.count, found.encodings) == (
        version,
        _TYPE,
        _LAYOUT,
        count,
        encodings,
    )
    assert found.nbytes == len(data)
    assert data[found.count_offset :][:8] == struct.pack("<Q", count)


def test_a_params_type_has_no_layout() -> None:
    header = Header.read(memoryview(_bytes(text="params M")))
    assert (header.type_text, header.layout, header.encodings) == ("params M", None, None)
    narrow = Header.read(memoryview(_bytes(2, "params M", 1, struct.pack("<IBB", 2, 1, 2))))
    assert narrow.encodings == (Enc.F32, Enc.BF16)


@pytest.mark.parametrize("end", range(len(_bytes()) - 1))
def test_a_header_that_ends_early_says_at_which_byte(end: int) -> None:
    with pytest.raises(DataError) as raised:
        Header.read(memoryview(_bytes()[:end]))
    assert raised.value.code == ("E9002" if end < 4 else "E9003")
    if end >= 4:
        assert f"ends at byte {end}" in raised.value.message


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (_bytes(0), "E9002"),
        (_bytes(3), "E9002"),
        (b"PSKE" + _bytes()[4:], "E9002"),
        (MAGIC + struct.pack("<HI", 1, 1) + b"\xff" + bytes(8), "E9002"),
        (_bytes(count=2**63), "E9004"),
        (_bytes(text="ℝ[n]"), "E9001"),
        (_bytes(2, more=struct.pack("<IBBB", 3, 0, 0, 0)), "E9005"),
        (_bytes(2, more=struct.pack("<IBB", 2, 0, 3)), "E9002"),
        (_bytes(2, more=struct.pack("<IBB", 2, 1, 0)), "E9002"),
        (_bytes(2, more=struct.pack("<IB", 2, 0)), "E9003"),
    ],
)
def test_a_wrong_header_is_refused_with_its_code(data: bytes, code: str) -> None:
    with pytest.raises(DataError) as raised:
        Header.read(memoryview(data))
    assert raised.value.code == code


@pytest.mark.parametrize("data", [None, 5, "text", [1]])
def test_what_is_no_bytes_is_refused(data: Any) -> None:
    with pytest.raises(ArgumentError, match="the bytes of a file"):
        Header.read(data)


def test_an_idx_leaf_has_the_one_encoding_of_integers() -> None:
    leaves = [Leaf(9, ()), Leaf(None, ())]
    check_encodings(leaves, [Enc.F64, Enc.BF16])
    with pytest.raises(DataError, match="leaf 0 is an idx and has the encoding F32"):
        check_encodings(leaves, [Enc.F32, Enc.F64])
