"""Damaged files end in a value or a DataError, within bounded memory."""

from __future__ import annotations

import struct
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_service.data.pskd import DataError, Enc, Reader, Writer, info

_TYPE = "(idx[300][2], (ℝ[2, 1], ℝ[0]), idx[5][])"
_LIMIT_BYTES = 16 << 20


def _valid(encodings: list[Enc]) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "valid.psk.d"
        with Writer(path, _TYPE, encodings=encodings) as writer:
            for place in range(3):
                writer.add(([place, 299], ([[0.5], [place]], []), 4))
        return path.read_bytes()


_VALID = [_valid([]), _valid([Enc.F64, Enc.F32, Enc.BF16, Enc.F64])]


def _use(path: Path) -> str:
    """Open it and read at both ends: "" or the code of the DataError."""
    try:
        reader = Reader(path)
        if len(reader) and reader.header.layout is not None:
            last = len(reader) - 1
            assert len(reader.params_reals(last)) >= 0
            assert repr(reader[0])
            reader.read([last, 0])
        reader.read([])
        assert info(path, 2).startswith("version")
    except DataError as error:
        return error.code
    return ""


def _end(data: bytes) -> str:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "damaged.psk.d"
        path.write_bytes(data)
        tracemalloc.start()
        try:
            return _use(path)
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < _LIMIT_BYTES


@given(
    st.sampled_from(_VALID),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4),
    st.integers(0, 200),
    st.binary(max_size=9),
)
@settings(max_examples=150)
def test_bytes_that_flip_are_cut_or_appended_end_in_a_value_or_a_data_error(
    valid: bytes, flips: list[tuple[int, int]], cut: int, more: bytes
) -> None:
    data = bytearray(valid)
    for place, value in flips:
        data[place % len(data)] ^= value
    damaged = bytes(data[: len(data) - cut // 4 if cut % 2 else None]) + more * (cut % 3 == 0)
    assert _end(damaged) in ("", "E9001", "E9002", "E9003", "E9004", "E9005")


def test_a_single_bit_that_flips_ends_in_a_value_or_a_data_error(tmp_path: Path) -> None:
    path = tmp_path / "damaged.psk.d"
    for valid in _VALID:
        for place in range(0, 8 * len(valid), 7):
            data = bytearray(valid)
            data[place // 8] ^= 1 << place % 8
            path.write_bytes(data)
            assert _use(path) in ("", "E9001", "E9002", "E9003", "E9004", "E9005")


@pytest.mark.parametrize("valid", _VALID)
def test_every_cut_is_refused(valid: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.psk.d"
    for size in range(len(valid)):
        path.write_bytes(valid[:size])
        assert _use(path) == ("E9002" if size < 4 else "E9003")


def _file(text: str, count: int, rest: bytes = b"", version: int = 1) -> bytes:
    raw = text.encode()
    return b"PSKD" + struct.pack("<HI", version, len(raw)) + raw + struct.pack("<Q", count) + rest


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (_file("ℝ[]", 2**63 - 1), "E9003"),
        (_file("ℝ[]", 2**63), "E9004"),
        (_file("ℝ[]", 2**64 - 1), "E9004"),
        (_file("ℝ[0]", 2**63 - 1), ""),
        (_file("idx[7][0, 3]", 2**63 - 1), ""),
        (_file(f"ℝ[{2**63 - 1}]", 2**63 - 1), "E9003"),
        (_file(f"ℝ[{', '.join([str(2**63 - 1)] * 31)}]", 1), "E9003"),
        (_file(f"ℝ[{', '.join([str(2**63 - 1)] * 300)}]", 1), "E9001"),
        (_file(f"ℝ[{2**62}, {2**62}]", 0), "E9005"),
        (_file(f"ℝ[0, {2**63 - 1}]", 1), "E9005"),
        (b"PSKD" + struct.pack("<HI", 1, 2**32 - 1) + b"x" * 50, "E9003"),
        (_file("ℝ[]", 0, struct.pack("<I", 2**32 - 1) + b"\1", 2), "E9005"),
        (_file("params M", 0, struct.pack("<I", 2**32 - 1) + b"\1", 2), "E9003"),
        (_file("params M", 0, struct.pack("<I", 1) + b"\7", 2), "E9002"),
        (_file("(" * 100_000, 1), "E9001"),
        (_file("idx[" + "9" * 100_000, 1), "E9001"),
    ],
)
def test_a_number_in_a_header_costs_no_memory(data: bytes, code: str) -> None:
    assert _end(data) == code


def test_every_bit_pattern_of_a_real_is_read_without_a_warning(tmp_path: Path) -> None:
    patterns = np.array([0x7F800001, 0xFFC00000, 0x7F800000, 0xFF800000, 1], "<u4")
    path = tmp_path / "nan.psk.d"
    path.write_bytes(_file("ℝ[5]", 1, struct.pack("<I", 1) + b"\1" + patterns.tobytes(), 2))
    assert Reader(path, reals="stored")[0].tobytes() == patterns.tobytes()
    found = Reader(path)[0]
    assert np.isnan(found).tolist() == [True, True, False, False, False]
    assert found[2:].tolist() == [np.inf, -np.inf, 2.0**-149]
    assert np.isnan(Reader(path, reals="stored").params_reals()[:2]).all()
    path.write_bytes(_file("ℝ[1]", 1, struct.pack("<I", 1) + b"\2" + b"\x81\x7f", 2))
    assert np.isnan(Reader(path)[0]).all()
    path.write_bytes(_file("ℝ[1]", 1, struct.pack("<Q", 0x7FF0000000000001)))
    assert Reader(path)[0].tobytes() == struct.pack("<Q", 0x7FF0000000000001)
