"""Paths that datasets are given, and digests of the files there.

Owns `checked_path`, `check_regular_file` and `content_digest`. Invariant: files of the same bytes have the same digest,
wherever they are. A file of up to 64 MiB is read whole. Of a larger file the size, the first and last MiB and 64 blocks
in between count, evenly spaced, so that a worker does not read a terabyte before it starts; a change that misses all of
them is not detected.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from loader_service.contract.checks import shown
from loader_service.errors import ArgumentError, FileAccessError

__all__ = ["check_regular_file", "checked_path", "content_digest", "file_error"]

_WHOLE_BYTES = 64 << 20
_END_BYTES = 1 << 20
_BLOCKS = 64
_BLOCK_BYTES = 64 << 10


def checked_path(name: str, value: Any) -> Path:
    """Take a text or an object with `__fspath__` as a path.

    Args:
        name: The argument's name, for the error.
        value: What was given.

    Raises:
        ArgumentError: If it is no text, or one that cannot name a file.
    """
    try:
        text = os.fspath(value)
        os.fsencode(text)
    except Exception:  # no path, one that no file can have, or whatever a `__fspath__` of the caller's raises
        text = None
    if not isinstance(text, str):
        raise ArgumentError(f"{name} is {shown(value)}; it must be the path of a file, as a str or a pathlib.Path")
    if "\0" in text:
        raise ArgumentError(f"{name} is {shown(text)}; a path has no NUL character")
    return Path(text)


def check_regular_file(path: Path) -> None:
    """Check that opening `path` does not wait, as opening a pipe does; a file that is missing is left to the opening.

    Raises:
        FileAccessError: If there is something that is neither a file nor a directory, or it is not permitted to look.
    """
    try:
        is_other = path.exists() and not path.is_file() and not path.is_dir()
    except OSError as error:
        raise file_error(path, error) from error
    if is_other:
        raise FileAccessError(f"{path} cannot be read: it is no regular file; check the path")


def file_error(path: Path, error: OSError) -> FileAccessError:
    """Make the error that tells what the operating system said of a file."""
    return FileAccessError(
        f"{path} cannot be read or written: {error.strerror or error}; check the path and its permissions"
    )


def content_digest(path: Path) -> str:
    """Digest the content of a file.

    Returns:
        SHA-256 in hexadecimal.

    Raises:
        OSError: If the file cannot be read.
    """
    size = path.stat().st_size
    hasher = hashlib.sha256(f"{size}\n".encode())
    with path.open("rb") as file:
        if size <= _WHOLE_BYTES:
            while block := file.read(_END_BYTES):
                hasher.update(block)
            return hasher.hexdigest()
        inner = ((size * place // (_BLOCKS + 1), _BLOCK_BYTES) for place in range(1, _BLOCKS + 1))
        for offset, nbytes in [(0, _END_BYTES), *inner, (size - _END_BYTES, _END_BYTES)]:
            file.seek(offset)
            hasher.update(file.read(nbytes))
    return hasher.hexdigest()
