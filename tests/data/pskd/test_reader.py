"""Random access: layouts that a caller gives, indices, places in errors, files past 4 GiB."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from loader_service.data.pskd import DataError, Leaf, Reader, Record, Tuple, write
from loader_service.errors import ArgumentError

_PARAMS = Record((("w", Leaf(None, (2,))), ("id", Leaf(9, ())), ("b", Leaf(None, ()))))


def test_a_file_of_params_gives_its_header_until_it_has_a_layout(tmp_path: Path) -> None:
    path = tmp_path / "a.psk.d"
    write(path, "params M", [{"w": [1.0, 2.0], "id": 3, "b": 4.0}], _PARAMS)
    reader = Reader(path)
    assert (len(reader), reader.header.type_text, reader.header.layout) == (1, "params M", None)
    for use in (lambda: reader[0], lambda: reader.read([0]), reader.params_reals):
        with pytest.raises(DataError) as raised:
            use()
        assert raised.value.code == "E9001"
    full = reader.with_layout(_PARAMS)
    assert {name: value.tolist() for name, value in full[0].items()} == {"w": [1.0, 2.0], "id": 3, "b": 4.0}
    assert full.read([0, 0])["w"].shape == (2, 2)
    assert full.params_reals().tolist() == [1.0, 2.0, 4.0]


@pytest.mark.parametrize(("shape", "code"), [((4,), "E9003"), ((2,), "E9005"), ((2**63 - 1,), "E9003")])
def test_a_layout_must_imply_the_size_of_the_file(shape: tuple[int, ...], code: str, tmp_path: Path) -> None:
    write(tmp_path / "a.psk.d", "params M", [[1.0, 2.0, 3.0]], Leaf(None, (3,)))
    with pytest.raises(DataError) as raised:
        Reader(tmp_path / "a.psk.d").with_layout(Leaf(None, shape))
    assert raised.value.code == code


def test_a_record_may_name_the_parts_of_a_tuple_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / "a.psk.d", "(idx[9][2], ℝ[])", [([1, 2], 0.5)])
    named = Reader(tmp_path / "a.psk.d").with_layout(Record((("x", Leaf(9, (2,))), ("y", Leaf(None, ())))))
    assert named[0]["x"].tolist() == [1, 2]
    with pytest.raises(DataError) as raised:
        Reader(tmp_path / "a.psk.d").with_layout(Tuple((Leaf(9, (2,)), Leaf(9, (8,)))))
    assert raised.value.code == "E9005"


@pytest.mark.parametrize("index", [-1, 3, 2**63, 2**64 - 1, 2**70])
def test_an_index_outside_the_file_is_refused(index: int, tmp_path: Path) -> None:
    write(tmp_path / "a.psk.d", "ℝ[]", [1.0, 2.0, 3.0])
    reader = Reader(tmp_path / "a.psk.d")
    for use in (reader.__getitem__, reader.params_reals, lambda one: reader.read([0, one])):
        with pytest.raises(ArgumentError):
            use(index)


@pytest.mark.parametrize("indices", [[0.5], [True], ["0"], [None]])
def test_indices_that_are_no_integers_are_refused(indices: Any, tmp_path: Path) -> None:
    write(tmp_path / "a.psk.d", "ℝ[]", [1.0, 2.0])
    with pytest.raises(ArgumentError, match=r"indices\[0\] is .*; it must be an integer"):
        Reader(tmp_path / "a.psk.d").read(indices)


def test_an_idx_out_of_its_bound_names_sample_leaf_element_and_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.psk.d"
    write(path, "(ℝ[], idx[300][2, 2])", [(0.0, [[1, 2], [3, 4]])] * 3)
    data = bytearray(path.read_bytes())
    place = len(data) - 4  # element [1, 0] of the last sample
    data[place : place + 2] = struct.pack("<H", 300)
    path.write_bytes(data)
    for indices in ([2], [0, 2]):
        with pytest.raises(
            DataError, match=rf"sample 2, leaf 1, element \[1, 0\] \(at byte {place}\) is 300"
        ) as raised:
            Reader(path).read(indices)
        assert raised.value.code == "E9004"
    assert Reader(path)[1][1].tolist() == [[1, 2], [3, 4]]


def _sparse(path: Path, text: str, count: int, size: int) -> None:
    head = b"PSKD" + struct.pack("<HI", 1, len(text.encode())) + text.encode() + struct.pack("<Q", count)
    path.write_bytes(head)
    os.truncate(path, len(head) + size)
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\7")


def test_a_file_past_4_gib_is_read_at_its_far_end_with_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.psk.d"
    _sparse(path, "idx[256][65536]", 70_000, 70_000 * 65536)
    tracemalloc.start()
    try:
        rows = Reader(path).read([69_999, 0])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert rows[:, -1].tolist() == [7, 0]
    assert peak < 4 << 20


def test_one_sample_may_be_larger_than_a_structure_of_numpy(tmp_path: Path) -> None:
    _sparse(tmp_path / "a.psk.d", f"(idx[256][0], idx[256][{2**31}], idx[256][])", 1, 2**31 + 1)
    reader = Reader(tmp_path / "a.psk.d")
    assert len(reader) == 1
