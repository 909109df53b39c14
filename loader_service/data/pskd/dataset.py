"""A container as a dataset, and windows of a token array as the same kind of dataset.

Owns `PskdDataset` and `LmWindows`. Invariant: a sample is a dict of named arrays, read from mapped memory; nothing is
read ahead, and workers that map the same file share its pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loader_service.contract.checks import (
    checked_index,
    checked_indices,
    checked_int,
    checked_integers,
    checked_sequence,
    checked_text,
)
from loader_service.contract.collate import SlotError
from loader_service.contract.collate.columns import Columns, RowsOfBlock
from loader_service.contract.fingerprint import describe, digest
from loader_service.data.files import check_regular_file, checked_path, content_digest
from loader_service.data.pskd.layout import Layout, Leaf, Record, Tuple, idx_width
from loader_service.data.pskd.reader import Reader, Reals
from loader_service.errors import ArgumentError, DataError, FileAccessError

__all__ = ["LmWindows", "PskdDataset"]

NamedArrays = dict[str, Any]


class PskdDataset:
    """The samples of a `.psk.d` file as dicts of tensors, for a StackCollator.

    Args:
        path: The file.
        names: Names of the parts of a tuple, or of a lone leaf; by default "0", "1", … and "data". A record has the
            names of its fields.
        reals: As of `Reader`.
        layout: The leaves of a `params` type.

    Attributes:
        path: The file's path.
        names: The names of a sample's parts.
        fingerprint: Digest of the file's content and the other arguments (R108).

    Raises:
        DataError: If the file is no container, or `layout` does not fit it.
        FileAccessError: If the file cannot be read.
        ArgumentError: If an argument is of the wrong kind, or the names do not fit.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        names: Sequence[str] = (),
        reals: Reals = "float64",
        layout: Layout | None = None,
    ) -> None:
        self.path = checked_path("path", path)
        self._reader = _open(self.path, reals, layout)
        found = self._reader.header.layout
        if found is None:
            raise DataError("E9001", f"{path} is of type {self._reader.header.type_text!r}; give its layout")
        self.names = _names(found, checked_sequence("names", names, checked_text))
        parts = [content_digest(self.path), list(self.names), reals, repr(layout)]
        self.fingerprint = digest(describe(parts))

    def __len__(self) -> int:
        return len(self._reader)

    def __getitem__(self, index: int, /) -> NamedArrays:
        """Read the sample at 0 <= index < len(self): name -> array, or nested. Raises DataError, ArgumentError."""
        return self._named(self._reader[index])

    def __iter__(self) -> Iterator[NamedArrays]:
        return (self[index] for index in range(len(self)))

    def read(self, indices: ArrayLike) -> NamedArrays:
        """Read many samples at once: name -> array [N, *shape]. Raises DataError, ArgumentError."""
        return self._named(self._reader.read(indices))

    def read_rows(self, indices: NDArray[np.int64]) -> Columns:
        """Find many samples at once, int64 [N]: they are copied when the batch is written. Raises ArgumentError."""
        return Columns(self._named(self._reader.columns(indices)), len(indices))

    def _named(self, sample: Any) -> NamedArrays:
        if isinstance(sample, dict):
            return sample
        parts = sample if isinstance(sample, tuple) else (sample,)
        return dict(zip(self.names, parts, strict=True))


def _open(path: Path, reals: Reals, layout: Layout | None) -> Reader:
    try:
        return Reader(path, reals=reals, layout=layout)
    except DataError as error:
        raise DataError(error.code, f"{path}: {error.message}") from None


def _names(layout: Layout, names: tuple[str, ...]) -> tuple[str, ...]:
    """Find the names of the parts of a sample. Raises ArgumentError where those given do not fit."""
    if isinstance(layout, Leaf):
        known: tuple[str, ...] = ("data",)
    elif isinstance(layout, Tuple):
        known = tuple(str(place) for place in range(len(layout.parts)))
    else:
        known = tuple(name for name, _ in layout.fields)
    if names and isinstance(layout, Record) and names != known:
        raise ArgumentError(f"names are {list(names)}; a record has its fields' names, {list(known)}")
    if names and (len(names) != len(known) or len(set(names)) != len(names)):
        raise ArgumentError(f"names are {list(names)}; a sample has {len(known)} parts, each with a name of its own")
    if not all(name and name.isprintable() for name in names):
        raise ArgumentError(f"names are {list(names)}; each must be of printable characters, at least one")
    return names or known


class LmWindows:
    """The samples of `lm_windows` over a token array of any size: {"tokens": [seq], "targets": [seq]}.

    Args:
        tokens: Integers [N], or the path of a .npy file of them, which is mapped.
        seq: Tokens in a window, at least 1.
        stride: Tokens between the starts of two windows, at least 1.
        vocab: Size of the vocabulary; a token that is not below it is DataError E9004 where it is read.

    Raises:
        ArgumentError: If an argument lies outside its range, or tokens are no integers of one dimension.
        FileAccessError: If the file cannot be read.
    """

    def __init__(self, tokens: str | PathLike[str] | NDArray[np.integer], seq: int, stride: int, vocab: int) -> None:
        self.seq, self.stride = checked_int("seq", seq, 1, 2**62), checked_int("stride", stride, 1, 2**62)
        self.vocab = checked_int("vocab", vocab, 1, 2**64 - 1)
        path = checked_path("tokens", tokens) if isinstance(tokens, str | PathLike) else None
        self._tokens = checked_integers("tokens", tokens if path is None else _mapped(path))
        content = describe(self._tokens) if path is None else content_digest(path)
        self.fingerprint = digest(describe(["lm_windows", digest(content), self.seq, self.stride, self.vocab]))

    def __len__(self) -> int:
        return max(0, (len(self._tokens) - self.seq - 1) // self.stride + 1)

    def __getitem__(self, index: int, /) -> dict[str, NDArray[np.unsignedinteger]]:
        """Read the window at 0 <= index < len(self). Raises ArgumentError, DataError."""
        return {name: values[0] for name, values in self.read([checked_index(index, len(self))]).items()}

    def __iter__(self) -> Iterator[dict[str, NDArray[np.unsignedinteger]]]:
        return (self[index] for index in range(len(self)))

    def read_rows(self, indices: NDArray[np.int64]) -> Columns:
        """Find many windows at once, int64 [N]: they are copied when the batch is written. Raises ArgumentError."""
        tokens = np.ascontiguousarray(self._tokens)
        starts = checked_indices("indices", indices, len(self)) * (self.stride * tokens.itemsize)
        dtype, block = np.dtype(f"<u{idx_width(self.vocab)}"), tokens.view(np.uint8)
        fits = tokens.dtype.kind == "u" and np.iinfo(tokens.dtype).max < self.vocab
        verify = None if fits else partial(self._check_rows, indices)
        parts = {
            name: RowsOfBlock(block, starts + shift * tokens.itemsize, dtype, (self.seq,), verify, tokens.dtype)
            for shift, name in enumerate(("tokens", "targets"))
        }
        return Columns(parts, len(starts))

    def _check_rows(self, indices: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Check the stored tokens of many windows, [N, seq]. Raises SlotError for the first that is not below vocab."""
        if not values.size or (int(np.minimum.reduce(values, axis=None)) >= 0 and self._are_below_vocab(values)):
            return
        row = int(np.argwhere((values < 0) | (values >= self.vocab))[0][0])
        try:
            self.read(indices[row : row + 1])
        except DataError as error:
            raise SlotError(row, error) from error

    def _are_below_vocab(self, values: NDArray[Any]) -> bool:
        return int(np.maximum.reduce(values, axis=None)) < self.vocab

    def read(self, indices: ArrayLike) -> dict[str, NDArray[np.unsignedinteger]]:
        """Read many windows at once.

        Args:
            indices: Integers [N] in [0, len(self)).

        Returns:
            "tokens" and "targets", each [N, seq] of the narrowest unsigned dtype.

        Raises:
            ArgumentError: If an index lies outside.
            DataError: E9004 for a token that is not below the size of the vocabulary.
        """
        wanted = checked_indices("indices", indices, len(self))  # [N]
        windows = self._tokens[wanted[:, np.newaxis] * self.stride + np.arange(self.seq + 1)]  # [N, seq + 1]
        if windows.size and not 0 <= int(windows.min()) <= int(windows.max()) < self.vocab:
            raise DataError(
                "E9004", f"tokens lie in [{windows.min()}, {windows.max()}]; the vocabulary has {self.vocab}"
            )
        narrow = windows.astype(f"<u{idx_width(self.vocab)}")
        return {"tokens": narrow[:, :-1], "targets": narrow[:, 1:]}


def _mapped(path: Path) -> NDArray[Any]:
    check_regular_file(path)
    try:
        return np.asarray(np.lib.format.open_memmap(path, mode="r"))
    except (OSError, ValueError) as error:
        raise FileAccessError(f"{path} is no .npy file that can be mapped: {error}") from error
