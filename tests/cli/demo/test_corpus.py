"""The text demo's container: made of text files, read back as windows."""

from __future__ import annotations

from pathlib import Path

import pytest

from loader_service.cli.demo.corpus import CORPUS, make_corpus
from loader_service.data.pskd import Reader
from loader_service.errors import ArgumentError


def test_windows_of_the_files_stand_in_the_container(tmp_path: Path) -> None:
    first, second = tmp_path / "first.txt", tmp_path / "second.txt"
    first.write_text("abc" * 60)
    second.write_text("cba" * 60)
    said = make_corpus([str(first), str(second)], tmp_path)
    assert said == f"360 characters, a vocabulary of 3, 2 windows of 128 in {CORPUS}"
    tokens, targets = Reader(tmp_path / CORPUS)[1]
    text = ("abc" * 60 + "cba" * 60).translate(str.maketrans("abc", "012"))
    assert "".join(map(str, tokens)) == text[128:256]
    assert "".join(map(str, targets)) == text[129:257]


def test_what_is_no_utf_8_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"\xe4" * 200)
    assert make_corpus([str(path)], tmp_path).startswith("200 characters, a vocabulary of 1,")


def test_too_little_text_is_refused_with_how_much_there_is(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("short")
    with pytest.raises(ArgumentError, match="5 characters"):
        make_corpus([str(path)], tmp_path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="none"):
        make_corpus([str(tmp_path / "none.txt")], tmp_path)
