"""Files appear whole or not at all, and hold the numbers that they were given."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from loader_service.data.pskd import (
    DataError,
    Enc,
    Leaf,
    Reader,
    Tuple,
    Writer,
    encode,
    lm_windows,
    write,
    write_encoded,
)
from loader_service.errors import ArgumentError, FileAccessError


def test_a_streaming_writer_patches_its_count_and_shows_no_file_before(tmp_path: Path) -> None:
    path = tmp_path / "a.psk.d"
    with Writer(path, "idx[9][]") as writer:
        for value in range(5):
            writer.add(value)
        (part,) = tmp_path.iterdir()
        assert part != path
        with pytest.raises(DataError):
            Reader(part)
    writer.close()
    assert [path] == list(tmp_path.iterdir())
    assert Reader(path).read(range(5)).tolist() == [0, 1, 2, 3, 4]


def test_an_aborted_write_keeps_the_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.psk.d"
    write(path, "idx[9][]", [3])
    with pytest.raises(DataError), Writer(path, "idx[9][]") as writer:
        writer.add_rows([4, 5, 9])
    writer.close()
    assert [path] == list(tmp_path.iterdir())
    assert Reader(path)[0] == 3
    write(path, "idx[9][]", [4, 5])
    assert len(Reader(path)) == 2


def test_a_writer_goes_on_after_a_sample_that_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.psk.d"
    with Writer(path, "(idx[9][], ℝ[])") as writer:
        writer.add((1, 0.5))
        with pytest.raises(DataError, match="sample 1, leaf 1, element"):
            writer.add((2, np.nan))
        writer.add((3, 1.5))
    assert [tuple(map(float, sample)) for sample in Reader(path)] == [(1, 0.5), (3, 1.5)]


def test_a_file_that_cannot_get_its_name_leaves_nothing(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a.psk.d", "ℝ[]")
    writer.add(1.0)
    (tmp_path / "a.psk.d").mkdir()  # somebody was faster
    with pytest.raises(OSError, match=r"a\.psk\.d"):
        writer.close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.psk.d"]
    with pytest.raises(FileAccessError, match=r"missing.* No such file"):
        write(tmp_path / "missing" / "a.psk.d", "ℝ[]", [1.0])


def test_a_file_has_the_mode_that_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write(tmp_path / "a.psk.d", "ℝ[]", [1.0])
    finally:
        os.umask(before)
    assert (tmp_path / "a.psk.d").stat().st_mode & 0o777 == 0o640


_REFUSED: list[tuple[str, Enc, Any]] = [
    ("ℝ[2]", Enc.F32, [1.0, 0.1]),
    ("ℝ[2]", Enc.F32, [1.0, 2.0**1000]),
    ("ℝ[2]", Enc.F32, [1.0, 2.0**-150]),
    ("ℝ[2]", Enc.BF16, [1.0, 1 + 2.0**-9]),
    ("ℝ[2]", Enc.F64, [1.0, np.nan]),
    ("ℝ[2]", Enc.F64, [1.0, -np.inf]),
    ("ℝ[2]", Enc.F64, np.array([1, 2**53 + 1])),
    ("ℝ[2]", Enc.F64, np.array([1, 2**63 - 1])),
    ("ℝ[2]", Enc.F64, np.array([1, 2**64 - 1], np.uint64)),
    ("ℝ[2]", Enc.F64, [1, 2**63 + 1]),
    ("ℝ[2]", Enc.F64, [1, 2**2000]),
    ("ℝ[2]", Enc.F64, np.array([1, None])),
    ("idx[9][2]", Enc.F64, [1, -1]),
    ("idx[9][2]", Enc.F64, [1, 9]),
    ("idx[9][2]", Enc.F64, [1, 2**70]),
    ("idx[9][2]", Enc.F64, np.array([1, 0.5], object)),
    ("idx[9][2]", Enc.F64, np.array([1, None])),
    ("idx[9][2]", Enc.F64, np.array([1, True], object)),
]


@pytest.mark.parametrize(("text", "enc", "value"), _REFUSED, ids=str)
def test_a_value_that_is_no_number_of_its_leaf_names_sample_leaf_and_element(
    text: str, enc: Enc, value: Any, tmp_path: Path
) -> None:
    samples = [([0], [1.0, 1.0] if "ℝ" in text else [1, 1]), ([0], value)]
    with pytest.raises(DataError, match=r"sample 1, leaf 1, element \[1\]") as raised:
        write_encoded(tmp_path / "a.psk.d", f"(idx[1][1], {text})", samples, [Enc.F64, enc])
    assert raised.value.code == "E9004"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "value"), [("idx[9][]", 0.0), ("idx[9][]", True), ("ℝ[]", True), ("ℝ[]", "1"), ("ℝ[]", 1j), ("ℝ[]", None)]
)
def test_what_is_no_number_is_refused(text: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="sample 0, leaf 0") as raised:
        write(tmp_path / "a.psk.d", text, [value])
    assert raised.value.code == "E9004"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ℝ[2]", [1.0]),
        ("ℝ[2, 1]", [1.0, 2.0]),
        ("ℝ[2, 2]", [[1.0], [1.0, 2.0]]),
        ("(ℝ[], ℝ[])", (1.0,)),
        ("(ℝ[], ℝ[])", 1.0),
        ("(ℝ[], (ℝ[], ℝ[]))", (1.0, {"a": 1.0})),
    ],
)
def test_another_shape_or_tree_is_refused(text: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="sample 0") as raised:
        write(tmp_path / "a.psk.d", text, [value])
    assert raised.value.code == "E9005"


def test_large_numbers_are_written_exactly(tmp_path: Path) -> None:
    path = tmp_path / "a.psk.d"
    write(path, "(idx[18446744073709551615][2], ℝ[3])", [([2**63 + 1, 1], [2**63, 2**1000, -(2**60)])])
    large, reals = Reader(path)[0]
    assert large.tolist() == [2**63 + 1, 1]
    assert reals.tolist() == [2.0**63, 2.0**1000, -(2.0**60)]


@pytest.mark.parametrize(
    ("text", "layout", "encodings", "code"),
    [
        ("params M", None, [], "E9001"),
        ("nonsense", Leaf(None, ()), [], "E9001"),
        ("ℝ[2]", Leaf(None, (3,)), [], "E9005"),
        ("ℝ[2]", None, [0, 0], "E9005"),
        ("ℝ[2]", None, [3], "E9002"),
        ("(idx[2][], ℝ[])", None, [1, 0], "E9002"),
        (f"ℝ[0, {2**62}]", None, [], "E9005"),
    ],
)
def test_a_writer_that_could_not_be_read_is_refused(
    text: str, layout: Leaf | Tuple | None, encodings: list[Any], code: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as raised:
        Writer(tmp_path / "a.psk.d", text, encodings=encodings, layout=layout)
    assert raised.value.code == code
    assert list(tmp_path.iterdir()) == []


def test_a_closed_writer_takes_no_more_samples(tmp_path: Path) -> None:
    closed, aborted = Writer(tmp_path / "a.psk.d", "ℝ[]"), Writer(tmp_path / "b.psk.d", "ℝ[]")
    closed.close()
    aborted.abort()
    for writer in (closed, aborted):
        for add in (writer.add, writer.add_rows):
            with pytest.raises(ArgumentError, match="is closed"):
                add([1.0])
        writer.close()
        writer.abort()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.psk.d"]


@pytest.mark.parametrize("masked", [True, False])
def test_a_mask_is_not_dropped(masked: bool, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="masked array"):
        write(tmp_path / "a.psk.d", "ℝ[2]", [np.ma.array([1.0, 2.0], mask=[masked, False])])


def test_rows_are_written_as_one_by_one(tmp_path: Path) -> None:
    tokens = encode("hello, world", sorted(set("hello, world")))
    samples = lm_windows(tokens, 4, 2, 9)
    write(tmp_path / "one", "(idx[9][4], idx[9][4])", samples)
    with Writer(tmp_path / "rows", "(idx[9][4], idx[9][4])") as writer:
        writer.add_rows((np.stack([one for one, _ in samples]), np.stack([other for _, other in samples])))
    assert (tmp_path / "rows").read_bytes() == (tmp_path / "one").read_bytes()
    for rows in ((np.zeros((2, 4)), np.zeros((3, 4))), (np.zeros((2, 3)), np.zeros((2, 3))), (1, 2)):
        with pytest.raises(DataError), Writer(tmp_path / "bad", "(idx[9][4], idx[9][4])") as writer:
            writer.add_rows(rows)
    assert not (tmp_path / "bad").exists()


def test_a_row_that_cannot_be_written_names_its_sample(tmp_path: Path) -> None:
    with Writer(tmp_path / "f", "(idx[9][], ℝ[2])", encodings=[Enc.F64, Enc.F32]) as writer:
        writer.add((1, [1.0, 2.0]))
        with pytest.raises(DataError, match=r"sample 3, leaf 1, element \[0\] is 0\.1; that is no number of f32"):
            writer.add_rows(([1, 2, 3], [[0.0, 1.0], [0.5, 1.5], [0.1, 1.0]]))


def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ArgumentError, match="no regular file"):
            Writer(place, "ℝ[]")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(3, 4), (0, 4), (1, 4), (4, 1)])
def test_rows_of_any_memory_order_are_written(tmp_path: Path, order: Literal["C", "F"], shape: tuple[int, int]) -> None:
    rows = np.arange(np.prod(shape), dtype=float).reshape(shape)
    for array in (np.asarray(rows, order=order), np.repeat(rows, 2, axis=1)[:, ::2]):
        with Writer(tmp_path / "f", f"ℝ[{shape[1]}]") as writer:
            writer.add_rows(array)
        assert Reader(tmp_path / "f").read(range(shape[0])).tolist() == rows.tolist()
