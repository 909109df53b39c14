"""`loader-service data`: what it prints and writes, and the one line in which each mistake ends."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from loader_service.cli.main import main
from loader_service.data.pskd import Enc, Reader, char_vocab, encode, lm_windows, parse_type, write, write_encoded
from loader_service.data.pskd.diff import diff

TEXT = "To be, or not\r\nto be: ℝ 😀\n"


def data(*arguments: str | Path) -> int:
    return main(["data", *map(str, arguments)])


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT.encode())
    return path


@pytest.fixture
def vocab(text: Path) -> Path:
    path = text.with_name("vocab.json")
    assert data("vocab", text, "-o", path) == 0
    return path


def refused(capsys: pytest.CaptureFixture[str], code: str, *arguments: str | Path) -> str:
    """The one message of an error with `code`."""
    capsys.readouterr()
    assert data(*arguments) == 1
    out, error = capsys.readouterr()
    assert error.startswith(f"loader-service: {code}: "), error
    assert out == ""
    return error


def test_a_vocabulary_is_the_sorted_characters_in_a_file_or_printed(
    text: Path, vocab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert json.loads(vocab.read_text(encoding="utf-8")) == char_vocab(TEXT)
    assert data("vocab", text) == 0
    assert json.loads(capsys.readouterr().out) == char_vocab(TEXT)


@pytest.mark.parametrize("content", [TEXT, "", "a", "ab" * 5000])
def test_a_text_that_was_encoded_is_decoded_to_the_same_characters(
    content: str, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text.write_bytes(content.encode())
    tokens, vocab = text.with_name("t.psk.d"), text.with_name("v.json")
    assert data("vocab", text, "-o", vocab) == 0
    assert data("encode", text, "-o", tokens, "--vocab", vocab) == 0
    reader = Reader(tokens)
    assert reader.header.type_text == f"idx[{max(1, len(set(content)))}][]"
    assert len(reader) == len(content)
    capsys.readouterr()
    assert data("decode", tokens, "--vocab", vocab) == 0
    assert capsys.readouterr().out == content


def test_a_text_is_its_own_vocabulary_where_none_is_given(text: Path) -> None:
    assert data("encode", text, "-o", text.with_name("t.psk.d")) == 0
    tokens = Reader(text.with_name("t.psk.d")).read(np.arange(len(TEXT)))
    assert np.array_equal(tokens, encode(TEXT, char_vocab(TEXT)))


@pytest.mark.parametrize(
    ("seq", "stride"), [(1, 1), (4, 2), (4, 7), (len(TEXT) - 1, 1), (len(TEXT), 1), (10**6, 10**6)]
)
def test_windows_are_those_of_the_library(seq: int, stride: int, text: Path) -> None:
    out, tokens = text.with_name("w.psk.d"), encode(TEXT, char_vocab(TEXT))
    assert data("windows", text, "-o", out, "--seq", str(seq), "--stride", str(stride)) == 0
    expected = text.with_name("expected.psk.d")
    leaf = f"idx[{len(set(TEXT))}][seq: {seq}]"
    write(expected, f"({leaf}, {leaf})", lm_windows(tokens, seq, stride, len(set(TEXT))))
    assert out.read_bytes() == expected.read_bytes()


def test_the_inputs_of_windows_are_decoded_one_a_line(
    text: Path, vocab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = text.with_name("w.psk.d")
    assert data("windows", text, "-o", out, "--seq", "5", "--vocab", vocab) == 0
    capsys.readouterr()
    assert data("decode", out, "--vocab", vocab) == 0
    windows = [TEXT[start : start + 5] for start in range(0, len(TEXT) - 5, 5)]
    assert capsys.readouterr().out == "".join(f"{window}\n" for window in windows)


def test_the_header_and_the_first_samples_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a.psk.d", "idx[9][]", [3, 1, 4])
    assert data("info", tmp_path / "a.psk.d", "-n", "2") == 0
    out = capsys.readouterr().out
    assert "idx[9][]" in out
    assert "samples 3" in out
    assert "0: 3" in out
    assert "2: 4" not in out


def test_a_character_outside_the_vocabulary_is_named_and_nothing_is_written(
    text: Path, vocab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text.write_text("To be, Z")
    for command in (["encode"], ["windows", "--seq", "2"]):
        message = refused(capsys, "E9004", *command, text, "-o", text.with_name("t.psk.d"), "--vocab", vocab)
        assert "'Z' at position 7" in message
    assert sorted(path.name for path in text.parent.iterdir()) == ["text.txt", "vocab.json"]


def test_a_file_that_is_missing_or_wrongly_named_is_one_error(
    text: Path, vocab: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing"
    assert "No such file" in refused(capsys, "E1101", "info", missing)
    refused(capsys, "E1101", "vocab", missing)
    refused(capsys, "E1101", "vocab", text, "-o", missing / "v.json")
    refused(capsys, "E1101", "encode", text, "-o", missing / "t.psk.d")
    refused(capsys, "E1101", "encode", text, "-o", tmp_path / "t.bin")
    refused(capsys, "E1101", "encode", text, "-o", tmp_path / "t.psk.d", "--vocab", missing)
    refused(capsys, "E1101", "windows", text, "-o", tmp_path / "t.bin", "--seq", "1")
    refused(capsys, "E1101", "windows", text, "-o", tmp_path / "t.psk.d", "--seq", "0")
    refused(capsys, "E1101", "windows", text, "-o", tmp_path / "t.psk.d", "--seq", "1", "--stride", "0")
    refused(capsys, "E1101", "decode", text, "--vocab", vocab)
    refused(capsys, "E1101", "diff", missing, missing)
    refused(capsys, "E1101", "info", tmp_path)
    refused(capsys, "E9002", "info", text)
    refused(capsys, "E9002", "diff", text, text)
    (tmp_path / "folder.psk.d").mkdir()
    refused(capsys, "E1101", "encode", text, "-o", tmp_path / "folder.psk.d")
    refused(capsys, "E1101", "vocab", text, "-o", tmp_path / "folder.psk.d")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.psk.d", "text.txt", "vocab.json"]


def test_an_output_never_takes_the_place_of_a_pipe_or_device(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe.psk.d"
    os.mkfifo(pipe)
    for command in (["vocab"], ["encode"], ["windows", "--seq", "2"]):
        assert "no regular file" in refused(capsys, "E1101", *command, text, "-o", pipe)
    refused(capsys, "E1101", "convert", text, pipe)
    assert pipe.is_fifo()


@pytest.mark.parametrize("content", [b"", b"\xff", b"{}", b"[1]", b'["a", "a"]', b'["a"', b"[" * 100_000])
def test_what_is_no_vocabulary_is_one_error(content: bytes, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = text.with_name("bad.json")
    bad.write_bytes(content)
    refused(capsys, "E9004", "encode", text, "-o", text.with_name("t.psk.d"), "--vocab", bad)


def test_a_text_that_is_no_utf_8_is_one_error(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text.write_bytes(b"ab\xff")
    assert "byte 2" in refused(capsys, "E9004", "vocab", text)


@pytest.mark.parametrize("type_text", ["ℝ[2]", "(idx[24][2], idx[24][3])", "((idx[24][], ℝ[]), ℝ[])", "idx[3][]"])
def test_what_holds_no_tokens_of_the_vocabulary_is_not_decoded(
    type_text: str, text: Path, vocab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(text.with_name("a.psk.d"), type_text, [])
    refused(capsys, "E9005", "decode", text.with_name("a.psk.d"), "--vocab", vocab)


def test_equal_numbers_are_the_same_whatever_their_encoding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a.psk.d", "(ℝ[2], idx[3][])", [([0.5, 0.0], 1), ([-2.0, 3.0], 2)])
    write_encoded(
        tmp_path / "b.psk.d",
        "(Real[x: 2], idx[3][])",
        [([0.5, -0.0], 1), ([-2.0, 3.0], 2)],
        [Enc.BF16, Enc.F64],
    )
    assert data("diff", tmp_path / "a.psk.d", tmp_path / "b.psk.d") == 0
    assert capsys.readouterr().out == "the same\n"


def test_values_that_differ_are_placed_counted_and_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = np.zeros((100_000, 3))
    write(tmp_path / "a.psk.d", "ℝ[3]", values)
    values[99_999, 1], values[7, 2], values[7, 0] = 4.0, -0.25, 1.0
    write(tmp_path / "b.psk.d", "ℝ[3]", values)
    assert data("diff", tmp_path / "a.psk.d", tmp_path / "b.psk.d", "-n", "2") == 1
    assert capsys.readouterr().out.splitlines() == [
        "sample 7, leaf 0, element [0]: 0.0 and 1.0",
        "sample 7, leaf 0, element [2]: 0.0 and -0.25",
        "3 values differ, by at most 4.0",
    ]
    found = diff(tmp_path / "a.psk.d", tmp_path / "b.psk.d")
    assert found.first[-1].where == "sample 99999, leaf 0, element [1]"


def test_integers_are_measured_exactly(tmp_path: Path) -> None:
    text = f"idx[{2**64 - 1}][]"
    write(tmp_path / "a.psk.d", text, [2**64 - 2, 5])
    write(tmp_path / "b.psk.d", text, [1, 6])
    found = diff(tmp_path / "a.psk.d", tmp_path / "b.psk.d")
    assert (found.count, found.largest) == (2, 2**64 - 3)


def test_nan_is_itself_and_infinitely_far_from_numbers(tmp_path: Path) -> None:
    write(tmp_path / "a.psk.d", "ℝ[]", [1.0, 2.0])
    head = (tmp_path / "a.psk.d").read_bytes()[:-16]
    (tmp_path / "a.psk.d").write_bytes(head + np.array([np.nan, 2.0]).tobytes())
    (tmp_path / "b.psk.d").write_bytes(head + np.array([np.nan, np.nan]).tobytes())
    assert diff(tmp_path / "a.psk.d", tmp_path / "a.psk.d").same
    found = diff(tmp_path / "a.psk.d", tmp_path / "b.psk.d")
    assert (found.count, found.largest) == (1, float("inf"))


def test_another_type_or_count_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a.psk.d", "idx[4][2]", [[1, 2]])
    write(tmp_path / "b.psk.d", "idx[400][2]", [[1, 3], [300, 2]])
    write(tmp_path / "c.psk.d", "ℝ[2]", [[1, 3]])
    assert data("diff", tmp_path / "a.psk.d", tmp_path / "b.psk.d") == 1
    assert capsys.readouterr().out.splitlines() == [
        "type: idx[4][2] and idx[400][2]",
        "samples: 1 and 2",
        "sample 0, leaf 0, element [1]: 2 and 3",
        "1 values differ, by at most 1",
    ]
    assert data("diff", tmp_path / "a.psk.d", tmp_path / "c.psk.d") == 1
    assert capsys.readouterr().out == "type: idx[4][2] and ℝ[2]\n"


def test_params_files_are_compared_by_their_bytes_and_with_a_layout_by_their_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("a", 1.0), ("b", 1.5)):
        write(tmp_path / f"{name}.psk.d", "params M", [[0.0, value]], parse_type("ℝ[2]"))
    assert data("diff", tmp_path / "a.psk.d", tmp_path / "a.psk.d") == 0
    capsys.readouterr()
    assert data("diff", tmp_path / "a.psk.d", tmp_path / "b.psk.d") == 1
    assert "byte 14 behind the header: 240 and 248" in capsys.readouterr().out
    assert data("diff", tmp_path / "a.psk.d", tmp_path / "b.psk.d", "--type", "ℝ[2]") == 1
    assert "sample 0, leaf 0, element [1]: 1.0 and 1.5" in capsys.readouterr().out
    (tmp_path / "b.psk.d").write_bytes((tmp_path / "a.psk.d").read_bytes() + b"\0")
    assert data("diff", tmp_path / "a.psk.d", tmp_path / "b.psk.d") == 1
    assert "bytes behind the header: 16 and 17" in capsys.readouterr().out
    refused(capsys, "E9005", "diff", tmp_path / "a.psk.d", tmp_path / "b.psk.d", "--type", "ℝ[2]")


def test_a_bar_is_shown_on_a_terminal_alone(
    text: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert data("encode", text, "-o", text.with_name("t.psk.d")) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert data("encode", text, "-o", text.with_name("t.psk.d")) == 0
    out, error = capsys.readouterr()
    assert "t.psk.d" in error
    assert out.splitlines() == [f"{text.with_name('t.psk.d')}: {len(TEXT)} samples of idx[{len(set(TEXT))}][]"]
