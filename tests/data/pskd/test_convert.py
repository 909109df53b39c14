"""Containers from other formats and back: the same numbers, or one error that says which is not."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from loader_service.cli.main import main
from loader_service.data.pskd import DataError, Enc, Reader, write, write_encoded
from loader_service.data.pskd.convert import ConvertOptions, import_samples
from loader_service.data.pskd.diff import diff

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def convert(source: Path, target: Path, *options: str) -> int:
    return main(["data", "convert", str(source), str(target), *options])


def refused(capsys: pytest.CaptureFixture[str], code: str, source: Path, target: Path, *options: str) -> str:
    """The one line of an error with `code`; the target and its parts are not there."""
    before = sorted(target.parent.iterdir())
    assert convert(source, target, *options) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"loader-service: {code}: "), error
    assert sorted(target.parent.iterdir()) == before
    return error


@pytest.mark.parametrize("dtype", ["<f8", "<f4", ">f8", "<u1", "<u2", "<u4", "<u8", "<i8", "<f2", "?"])
@pytest.mark.parametrize("shape", [(0, 2), (1,), (5,), (3, 2, 2), (4, 0), (7, 1)])
def test_an_array_comes_back_as_it_was(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    array = (np.arange(np.prod(shape)) % 2 + 0.0).reshape(shape).astype(dtype)
    np.save(tmp_path / "a.npy", array)
    assert convert(tmp_path / "a.npy", tmp_path / "a.psk.d") == 0
    assert convert(tmp_path / "a.psk.d", tmp_path / "b.npy") == 0
    back = np.load(tmp_path / "b.npy")
    assert np.array_equal(back, array)
    assert back.shape == shape
    assert Reader(tmp_path / "a.psk.d").header.version == (2 if dtype in ("<f4", "<f2") else 1)


def test_an_array_of_singles_is_stored_in_four_bytes_and_comes_back_as_singles(tmp_path: Path) -> None:
    array = np.array([[0.1, -0.0], [1e-45, 3e38]], np.float32)
    np.save(tmp_path / "a.npy", array)
    assert convert(tmp_path / "a.npy", tmp_path / "a.psk.d") == 0
    assert Reader(tmp_path / "a.psk.d").header.encodings == (Enc.F32,)
    assert convert(tmp_path / "a.psk.d", tmp_path / "b.npy") == 0
    assert (tmp_path / "b.npy").read_bytes() == (tmp_path / "a.npy").read_bytes()


@given(hnp.arrays(np.float64, st.tuples(st.integers(0, 5), st.integers(1, 3)), elements=FINITE), st.data())
@pytest.mark.parametrize("suffix", ["npy", "npz", "csv", "jsonl"])
def test_real_values_survive_every_format(
    suffix: str, tmp_path_factory: pytest.TempPathFactory, array: NDArray[Any], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("round")
    text = f"ℝ[{array.shape[1]}]"
    write(folder / "a.psk.d", text, array)
    assert convert(folder / "a.psk.d", folder / f"a.{suffix}") == 0
    assert convert(folder / f"a.{suffix}", folder / "b.psk.d", "--type", text) == 0
    assert (folder / "a.psk.d").read_bytes() == (folder / "b.psk.d").read_bytes()


def tree_file(path: Path) -> str:
    text = f"(idx[{2**64 - 1}][2], (ℝ[], ℝ[2, 2]), idx[3][])"
    samples = [
        (np.array([2**64 - 2, 2**63 + k], np.uint64), (0.1 * k, np.full((2, 2), 1 / 3 + k)), k % 3) for k in range(5)
    ]
    write(path, text, samples)
    return text


@pytest.mark.parametrize("suffix", ["npz", "csv", "jsonl"])
def test_a_nested_tuple_survives_every_format_of_several_leaves(suffix: str, tmp_path: Path) -> None:
    text = tree_file(tmp_path / "a.psk.d")
    assert convert(tmp_path / "a.psk.d", tmp_path / f"a.{suffix}") == 0
    assert convert(tmp_path / f"a.{suffix}", tmp_path / "b.psk.d", "--type", text) == 0
    assert (tmp_path / "a.psk.d").read_bytes() == (tmp_path / "b.psk.d").read_bytes()


def test_the_arrays_of_an_archive_become_a_tuple_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    named: dict[str, Any] = {str(place): np.full((2, place), place, np.uint8) for place in range(12)}
    np.savez(tmp_path / "a.npz", **named)
    assert convert(tmp_path / "a.npz", tmp_path / "a.psk.d") == 0
    reader = Reader(tmp_path / "a.psk.d")
    assert [part.shape for part in reader[1]] == [(place,) for place in range(12)]
    assert convert(tmp_path / "a.psk.d", tmp_path / "b.npz") == 0
    with np.load(tmp_path / "b.npz") as back:
        assert all(np.array_equal(back[name], array) for name, array in named.items())


def test_a_bound_a_type_and_encodings_can_be_given(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([[1, 2], [3, 0]]))
    assert convert(tmp_path / "a.npy", tmp_path / "a.psk.d", "--bound", "300") == 0
    assert Reader(tmp_path / "a.psk.d").header.type_text == "idx[300][2]"
    assert convert(tmp_path / "a.npy", tmp_path / "b.psk.d", "--type", "Real[2]", "--encodings", "bf16") == 0
    assert Reader(tmp_path / "b.psk.d").header.encodings == (Enc.BF16,)
    assert convert(tmp_path / "b.psk.d", tmp_path / "c.psk.d", "--encodings", "f64") == 0
    assert Reader(tmp_path / "c.psk.d").header.version == 1
    assert diff(tmp_path / "b.psk.d", tmp_path / "c.psk.d").same


def test_names_of_columns_are_passed_over_and_empty_lines_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,0.1\n\n-2e3,3\n")
    assert convert(tmp_path / "a.csv", tmp_path / "a.psk.d") == 0
    assert Reader(tmp_path / "a.psk.d").read([0, 1]).tolist() == [[1.0, 0.1], [-2000.0, 3.0]]
    (tmp_path / "a.csv").write_text("x,y\n")
    assert convert(tmp_path / "a.csv", tmp_path / "a.psk.d") == 0
    assert (len(Reader(tmp_path / "a.psk.d")), Reader(tmp_path / "a.psk.d").header.type_text) == (0, "ℝ[2]")


@pytest.mark.parametrize(
    ("text", "options", "code", "says"),
    [
        ("1,2\n3\n", (), "E9005", "line 2 has 1 cells"),
        ("1,2\n3,x\n", (), "E9004", "line 2, column 1 is 'x'"),
        ("1,nan\n", (), "E9004", "NaN"),
        ("9007199254740993\n", (), "E9004", "no number of f64"),
        ("", (), "E9004", "give a type"),
        ("0.1\n", ("--encodings", "f32"), "E9004", "f32"),
        ("1,2\n", ("--type", "ℝ[D]"), "E9001", "^"),
        ("1.5\n", ("--type", "idx[2][]"), "E9004", "an idx holds integers"),
        ('1,"2\n', (), "E9004", "no CSV"),
        ("1\n", ("--encodings", "f64,f64"), "E9005", "2 encodings"),
        ("1\n", ("--encodings", "f16"), "E1101", "'f16'"),
        ("1\n", ("--bound", "0", "--type", "idx[2][]"), "E1101", "bound is 0"),
    ],
)
def test_a_table_that_is_no_data_is_one_error(
    text: str, options: tuple[str, ...], code: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text(text)
    assert says in refused(capsys, code, tmp_path / "a.csv", tmp_path / "a.psk.d", *options)


@pytest.mark.parametrize(
    ("line", "type_text", "code"),
    [
        ("[1, 2", "ℝ[2]", "E9004"),
        ("[1, [2]]", "ℝ[2]", "E9005"),
        ("[[1, 2], [3]]", "ℝ[2, 2]", "E9005"),
        ("[1, 2, 3]", "ℝ[2]", "E9005"),
        ("[5]", "idx[6][]", "E9005"),
        ("[1, 2]", "(ℝ[], ℝ[], ℝ[])", "E9005"),
        ("6", "idx[6][]", "E9004"),
        ("-1", "idx[6][]", "E9004"),
        ("true", "idx[6][]", "E9004"),
        ("1.0", "idx[6][]", "E9004"),
        (str(2**70), "idx[6][]", "E9004"),
        (str(2**1024), "ℝ[]", "E9004"),
        ("9" * 5000, "ℝ[]", "E9004"),
        ("1e999", "ℝ[]", "E9004"),
        ("NaN", "ℝ[]", "E9004"),
        ("null", "ℝ[]", "E9004"),
        ('"1"', "ℝ[]", "E9004"),
        ('{"a": 1}', "ℝ[]", "E9004"),
        ("[" * 100_000, "ℝ[]", "E9004"),
        ("[" * 90 + "]" * 90, "ℝ[]", "E9005"),
        ("1", "params M", "E9001"),
    ],
)
def test_a_line_that_is_no_sample_is_one_error(
    line: str, type_text: str, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text(f"{line}\n")
    refused(capsys, code, tmp_path / "a.jsonl", tmp_path / "a.psk.d", "--type", type_text)


def _object_array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([{}], object), allow_pickle=True)
    return file.getvalue()


def _array(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _archive(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _archive_of_text() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.txt", "text")
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("a.npy", b"", "E9004"),
        ("a.npy", b"text", "E9004"),
        ("a.npy", _object_array(), "E9004"),
        ("a.npy", _array(np.zeros(3))[:-1], "E9004"),
        ("a.npy", _array(np.array(3.0)), "E9005"),
        ("a.npy", _array(np.array([1.0, np.nan])), "E9004"),
        ("a.npy", _array(np.array([np.inf], np.float32)), "E9004"),
        ("a.npy", _array(np.array([1, -1])), "E9004"),
        ("a.npy", _array(np.array([2**64 - 1], np.uint64)), "E9001"),
        ("a.npy", _array(np.array([1j])), "E9004"),
        ("a.npy", _array(np.array(["a"])), "E9004"),
        ("a.npz", _archive(a=np.zeros(3), b=np.zeros(2)), "E9005"),
        ("a.npz", _archive(), "E9005"),
        ("a.npz", _archive(a=np.zeros(3))[:-30], "E9004"),
        ("a.npz", _archive_of_text(), "E9004"),
        ("a.csv", b"\xff\xff", "E9004"),
        ("a.jsonl", b"1\n", "E1101"),
        ("a.txt", b"1\n", "E1101"),
        ("a.psk.d", b"1\n", "E9002"),
    ],
)
def test_a_file_that_holds_no_samples_is_one_error(
    name: str, content: bytes, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    refused(capsys, code, tmp_path / name, tmp_path / "out.psk.d")


def test_a_container_goes_only_into_formats_that_hold_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree_file(tmp_path / "a.psk.d")
    source = tmp_path / "a.psk.d"
    assert "no single leaf" in refused(capsys, "E9005", source, tmp_path / "a.npy")
    assert "'.txt'" in refused(capsys, "E1101", source, tmp_path / "a.txt")
    refused(capsys, "E1101", source, tmp_path / "a.csv", "--encodings", "f32")
    refused(capsys, "E9005", source, tmp_path / "a.csv", "--type", "ℝ[2]")
    refused(capsys, "E1101", tmp_path / "a.csv", tmp_path / "b.npy")
    refused(capsys, "E1101", tmp_path / "missing.csv", tmp_path / "b.psk.d")


def test_a_value_that_json_has_not_is_an_error_and_csv_writes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "a.psk.d", "ℝ[]", [1.0])
    data = (tmp_path / "a.psk.d").read_bytes()
    (tmp_path / "a.psk.d").write_bytes(data[:-8] + np.array([np.nan]).tobytes())
    refused(capsys, "E9004", tmp_path / "a.psk.d", tmp_path / "a.jsonl")
    assert convert(tmp_path / "a.psk.d", tmp_path / "a.csv") == 0
    assert (tmp_path / "a.csv").read_text() == "nan\n"


def test_the_layout_of_a_params_file_can_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from loader_service.data.pskd import parse_type

    write_encoded(tmp_path / "m.psk.d", "params M", [(0.5, [1.0, 2.0])], [Enc.BF16, Enc.F32], parse_type("(ℝ[], ℝ[2])"))
    refused(capsys, "E9001", tmp_path / "m.psk.d", tmp_path / "m.jsonl")
    assert convert(tmp_path / "m.psk.d", tmp_path / "m.jsonl", "--type", "(ℝ[], ℝ[2])") == 0
    assert json.loads((tmp_path / "m.jsonl").read_text()) == [0.5, [1.0, 2.0]]


def test_an_existing_target_stays_where_a_conversion_fails(tmp_path: Path) -> None:
    (tmp_path / "out.psk.d").write_bytes(b"old")
    (tmp_path / "a.csv").write_text("1\n" * 5000 + "x\n")
    with pytest.raises(DataError, match="line 5001"):
        import_samples(tmp_path / "a.csv", tmp_path / "out.psk.d", ConvertOptions(), lambda done, total: None)
    assert (tmp_path / "out.psk.d").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 2


def test_the_caller_hears_how_far_the_work_is(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3000, np.uint8))
    heard: list[tuple[int, int | None]] = []
    done = import_samples(
        tmp_path / "a.npy", tmp_path / "a.psk.d", ConvertOptions(), lambda *place: heard.append(place)
    )
    assert done == 3000
    assert heard == [(3000, 3000)]


def test_a_first_row_with_one_number_is_no_row_of_names(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("1,,3\n4,5,6\n")
    options = ConvertOptions()
    with pytest.raises(DataError, match="line 1, column 1 is ''"):
        import_samples(tmp_path / "m.csv", tmp_path / "m.psk.d", options, lambda done, total: None)
    assert not (tmp_path / "m.psk.d").exists()
