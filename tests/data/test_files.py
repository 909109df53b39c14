"""Paths and digests of files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from loader_service.data.files import check_regular_file, checked_path, content_digest, file_error
from loader_service.errors import ArgumentError, FileAccessError, from_record

_MIB = 1 << 20


@pytest.mark.parametrize("path", ["a", Path("a"), "träin", ""])
def test_a_text_or_a_path_is_a_path(path: Any) -> None:
    assert checked_path("path", path) == Path(path)


@pytest.mark.parametrize("path", [None, b"a", 5, 1.5, ["a"], Path, "\ud800"])
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(ArgumentError, match=r"source is .*; it must be the path of a file"):
        checked_path("source", path)


def test_a_path_with_nul_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"source is 'a\\x00b'; a path has no NUL character"):
        checked_path("source", "a\0b")


def test_a_pipe_is_no_regular_file_and_what_is_missing_is_left_to_the_opening(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    for good in (tmp_path, tmp_path / "file", tmp_path / "none"):
        check_regular_file(good)
    with pytest.raises(FileAccessError, match="no regular file"):
        check_regular_file(tmp_path / "pipe")


def test_a_name_that_is_too_long_is_an_error_of_ours() -> None:
    with pytest.raises(FileAccessError, match="File name too long"):
        check_regular_file(Path("a" * 5000))


def test_the_error_of_a_file_is_an_argument_error_and_an_os_error_and_travels() -> None:
    error = file_error(Path("here"), PermissionError(13, "Permission denied"))
    assert isinstance(error, ArgumentError)
    assert isinstance(error, OSError)
    assert error.message == "here cannot be read or written: Permission denied; check the path and its permissions"
    again = from_record(error.to_record())
    assert (type(again), again.message) == (FileAccessError, error.message)


@pytest.mark.parametrize("size", [0, 1, _MIB - 1, _MIB, _MIB + 1])
def test_every_byte_of_a_small_file_counts(size: int, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(bytes(size))
    other.write_bytes(bytes(size))
    assert content_digest(one) == content_digest(other)
    other.write_bytes(bytes(size + 1))
    assert content_digest(one) != content_digest(other)
    for place in {0, size // 2, size - 1} if size else ():
        other.write_bytes(bytes(place) + b"\1" + bytes(size - place - 1))
        assert content_digest(one) != content_digest(other)


def test_of_a_large_file_size_both_ends_and_blocks_between_count(tmp_path: Path) -> None:
    path, size = tmp_path / "large", 65 * _MIB
    path.touch()
    os.truncate(path, size)
    before = content_digest(path)
    for place in (0, _MIB - 1, size * 3 // 65, size * 3 // 65 + (64 << 10) - 1, size - _MIB, size - 1):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"\1")
            file.flush()
            assert content_digest(path) != before, place
            file.seek(place)
            file.write(b"\0")
    assert content_digest(path) == before
    os.truncate(path, size + 1)
    assert content_digest(path) != before
