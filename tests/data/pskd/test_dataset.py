"""Containers and token arrays as datasets."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_service.data.pskd import (
    DataError,
    Enc,
    Leaf,
    LmWindows,
    PskdDataset,
    Reader,
    Record,
    lm_windows,
    write,
    write_encoded,
)
from loader_service.errors import ArgumentError

_TYPE = "(idx[10][2], ℝ[])"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.psk.d"
    write(path, _TYPE, [(np.array([i % 10, i // 10 % 10]), np.array(i / 4)) for i in range(50)])
    return path


def test_the_parts_of_a_tuple_are_named_by_the_caller_or_by_their_place(corpus: Path) -> None:
    assert list(PskdDataset(corpus)[3]) == ["0", "1"]
    named = PskdDataset(corpus, ["tokens", "weight"])
    assert {name: value.tolist() for name, value in named[13].items()} == {"tokens": [3, 1], "weight": 3.25}
    assert named.read([13, 2])["weight"].tolist() == [3.25, 0.5]


def test_a_record_is_named_by_its_fields_and_a_lone_leaf_is_data(tmp_path: Path) -> None:
    record = Record((("a", Leaf(3, (1,))), ("b", Leaf(None, ()))))
    write(tmp_path / "r.psk.d", "params M", [{"a": [2], "b": 1.5}], record)
    assert PskdDataset(tmp_path / "r.psk.d", layout=record)[0] == {"a": np.array([2]), "b": np.array(1.5)}
    write(tmp_path / "l.psk.d", "idx[3][1]", [[2]])
    assert list(PskdDataset(tmp_path / "l.psk.d")[0]) == ["data"]
    with pytest.raises(DataError, match="give its layout") as raised:
        PskdDataset(tmp_path / "r.psk.d")
    assert raised.value.code == "E9001"


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"], ["a", "a"]])
def test_names_that_do_not_fit_are_refused(corpus: Path, names: list[str]) -> None:
    with pytest.raises(ArgumentError, match="a sample has 2 parts"):
        PskdDataset(corpus, names)


def test_a_file_that_is_not_there_or_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"none\.psk\.d cannot be read"):
        PskdDataset(tmp_path / "none.psk.d")
    (tmp_path / "bad.psk.d").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"bad\.psk\.d: the file begins with"):
        PskdDataset(tmp_path / "bad.psk.d")


def test_the_fingerprint_tells_content_and_names(corpus: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.psk.d"
    copy.write_bytes(corpus.read_bytes())
    assert PskdDataset(copy).fingerprint == PskdDataset(corpus).fingerprint
    assert PskdDataset(copy, ["a", "b"]).fingerprint != PskdDataset(corpus).fingerprint
    data = bytearray(corpus.read_bytes())
    data[-1] ^= 1
    copy.write_bytes(data)
    assert PskdDataset(copy).fingerprint != PskdDataset(corpus).fingerprint


@given(st.integers(0, 40), st.integers(1, 9), st.integers(1, 9))
def test_windows_as_a_dataset_are_those_of_lm_windows(length: int, seq: int, stride: int) -> None:
    tokens = np.arange(length) * 7 % 300
    windows = LmWindows(tokens, seq, stride, 300)
    expected = lm_windows(tokens, seq, stride, 300)
    assert len(windows) == len(expected)
    for place, (one, other) in enumerate(expected):
        found = windows[place]
        assert (found["tokens"].tolist(), found["targets"].tolist()) == (one.tolist(), other.tolist())
        assert found["tokens"].dtype == one.dtype == np.uint16
    many = windows.read(range(len(windows))[::-1])
    assert many["targets"].tolist() == [other.tolist() for _, other in expected[::-1]]


def test_windows_over_a_mapped_array_take_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "tokens.npy"
    np.lib.format.open_memmap(path, "w+", np.uint16, (50_000_000,))[-200:] = 9
    tracemalloc.start()
    try:
        windows = LmWindows(path, 128, 1, 10)
        assert windows[len(windows) - 1]["targets"].tolist() == [9] * 128
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_wrong_tokens_and_arrays_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the vocabulary has 3"):
        LmWindows(np.array([0, 1, 3, 2]), 2, 1, 3)[1]
    with pytest.raises(ArgumentError, match="must have one dimension"):
        LmWindows(np.zeros((2, 2), np.int64), 1, 1, 3)
    with pytest.raises(ArgumentError, match=r"none\.npy is no \.npy file that can be mapped"):
        LmWindows(tmp_path / "none.npy", 1, 1, 3)
    with pytest.raises(ArgumentError, match="seq is 0"):
        LmWindows(np.arange(9), 0, 1, 9)


def test_bf16_leaves_come_as_the_dtype_of_ml_dtypes_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package is stood for by a module with a dtype of two bytes, for it is not needed otherwise."""
    path = tmp_path / "bf16.psk.d"
    write_encoded(path, "(ℝ[3], ℝ[])", [(np.array([1.0, -2.5, 0.0]), np.array(7.0))], [Enc.BF16, Enc.F32])
    monkeypatch.setitem(sys.modules, "ml_dtypes", SimpleNamespace(bfloat16=np.dtype("<V2")))
    narrow, single = Reader(path, reals="bfloat16")[0]
    assert (narrow.dtype, single.dtype) == (np.dtype("<V2"), np.dtype(np.float32))
    assert narrow.view(np.uint16).tolist() == [0x3F80, 0xC020, 0]
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ArgumentError, match="needs the package ml-dtypes"):
        Reader(path, reals="bfloat16")


def test_indices_that_are_none_and_reals_that_are_none_are_refused(corpus: Path, tmp_path: Path) -> None:
    windows = LmWindows(np.arange(9), 2, 1, 9)
    for indices in ([0.7], [True], [2**63], [-1], [7]):
        with pytest.raises(ArgumentError, match="indices"):
            windows.read(indices)
    with pytest.raises(ArgumentError, match="reals is 'float32'"):
        Reader(corpus, reals="float32")  # type: ignore[arg-type]  # that is what is tested
    (tmp_path / "empty.npy").touch()
    with pytest.raises(ArgumentError, match=r"no \.npy file"):
        LmWindows(tmp_path / "empty.npy", 1, 1, 3)


def test_names_on_a_record_must_be_its_own(tmp_path: Path) -> None:
    record = Record((("x", Leaf(None, ())), ("y", Leaf(None, ()))))
    write(tmp_path / "r", "params M", [{"x": 1.0, "y": 2.0}], record)
    with pytest.raises(ArgumentError, match="a record has its fields' names"):
        PskdDataset(tmp_path / "r", ["u", "v"], layout=record)
    with pytest.raises(DataError, match="a name of its own"):
        Record((("x", Leaf(None, ())), ("x", Leaf(None, ()))))
