"""The text demo's corpus: vocabulary, windows and container made of text files.

Owns `make_corpus`. The files are read as UTF-8; what is no UTF-8 becomes the replacement character.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from pathlib import Path

from loader_service.data.pskd import LmWindows, Writer, char_vocab, encode
from loader_service.errors import ArgumentError

__all__ = ["CORPUS", "make_corpus"]

CORPUS = "corpus.psk.d"
_SEQ = 128
_MAX_CHARACTERS = 4_000_000
_ROWS = 1024


def _text(files: Sequence[str]) -> str:
    paths = [Path(file) for file in files] or sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    try:
        return "".join(path.read_text(encoding="utf-8", errors="replace") for path in paths)[:_MAX_CHARACTERS]
    except OSError as error:
        raise ArgumentError(f"{error.filename} cannot be read: {error.strerror}") from error


def make_corpus(files: Sequence[str], directory: Path) -> str:
    """Write windows of 128 characters of `files` (none: the standard library's sources); what was made, in words.

    Raises ArgumentError where there is not enough text.
    """
    text = _text(files)
    vocab = char_vocab(text)
    windows = LmWindows(encode(text, vocab), _SEQ, _SEQ, max(len(vocab), 1))
    if not len(windows):
        raise ArgumentError(f"the texts have {len(text)} characters; a window needs {_SEQ + 1}: give more text")
    leaf = f"idx[{len(vocab)}][seq: {_SEQ}]"
    with Writer(directory / CORPUS, f"({leaf}, {leaf})") as writer:
        for first in range(0, len(windows), _ROWS):
            rows = windows.read(range(first, min(first + _ROWS, len(windows))))
            writer.add_rows((rows["tokens"], rows["targets"]))
    return f"{len(text)} characters, a vocabulary of {len(vocab)}, {len(windows)} windows of {_SEQ} in {CORPUS}"
