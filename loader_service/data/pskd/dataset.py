"""A container as a dataset, and windows over a token array as the same kind of dataset.

Owns `PskdDataset` and `LmWindows`. Invariant: a sample is a dict of named arrays, read from mapped memory; nothing is
materialised, and workers that map the same file share its pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_index
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loader_service.contract.checks import checked_indices, checked_int
from loader_service.contract.fingerprint import describe, digest
from loader_service.data.content import content_digest
from loader_service.data.pskd.layout import Layout, Leaf, Record, Tuple, idx_width
from loader_service.data.pskd.reader import Reader, Reals
from loader_service.errors import ArgumentError, DataError

__all__ = ["LmWindows", "PskdDataset"]

Named = dict[str, Any]


class PskdDataset:
    """The samples of a `.psk.d` file, as dicts of tensors for a StackCollator.

    names: of the parts of a tuple, or of a lone leaf ("0", "1", … and "data" by default); a record has its fields'
    names. reals: as for Reader. layout: for a `params` type. Raises DataError, ArgumentError.
    """

    def __init__(
        self,
        path: str | Path,
        names: Sequence[str] = (),
        reals: Reals = "float64",
        layout: Layout | None = None,
    ) -> None:
        self.path = Path(path)
        self._reader = _open(self.path, reals, layout)
        found = self._reader.header.layout
        if found is None:
            raise DataError("E9001", f"{path} is of type {self._reader.header.type_text!r}; give its layout")
        self.names = _names(found, tuple(names))
        parts = [content_digest(self.path), list(self.names), reals, repr(layout)]
        self.fingerprint = digest(describe(parts))

    def __len__(self) -> int:
        return len(self._reader)

    def __getitem__(self, index: int, /) -> Named:
        """Sample `index`: name -> array, or nested. Raises DataError, ArgumentError."""
        return self._named(self._reader[index])

    def read(self, indices: ArrayLike) -> Named:
        """Many samples at once: name -> array with a leading axis. Raises DataError, ArgumentError."""
        return self._named(self._reader.read(indices))

    def _named(self, sample: Any) -> Named:
        if isinstance(sample, dict):
            return sample
        parts = sample if isinstance(sample, tuple) else (sample,)
        return dict(zip(self.names, parts, strict=True))


def _open(path: Path, reals: Reals, layout: Layout | None) -> Reader:
    try:
        return Reader(path, reals=reals, layout=layout)
    except DataError as error:
        raise DataError(error.code, f"{path}: {error.message}") from None
    except OSError as error:
        raise ArgumentError(f"{path} cannot be read: {error.strerror}") from error


def _names(layout: Layout, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the parts of a sample. Raises ArgumentError."""
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

    tokens: a one-dimensional integer array, or the path of one in a .npy file, which is mapped; vocab: its size; seq,
    stride: at least 1. Tokens that are not below vocab are DataError E9004, where they are read. Raises ArgumentError.
    """

    def __init__(self, tokens: str | Path | NDArray[np.integer], seq: int, stride: int, vocab: int) -> None:
        self.seq, self.stride = checked_int("seq", seq, 1, 2**62), checked_int("stride", stride, 1, 2**62)
        self.vocab = checked_int("vocab", vocab, 1, 2**64 - 1)
        path = Path(tokens) if isinstance(tokens, str | Path) else None
        self._tokens = _mapped(path) if path is not None else np.asarray(tokens)
        if self._tokens.ndim != 1 or self._tokens.dtype.kind not in "iu":
            raise ArgumentError(f"tokens are {self._tokens.dtype}{list(self._tokens.shape)}; they must be integers [N]")
        content = describe(self._tokens) if path is None else content_digest(path)
        self.fingerprint = digest(describe(["lm_windows", digest(content), self.seq, self.stride, self.vocab]))

    def __len__(self) -> int:
        return max(0, (len(self._tokens) - self.seq - 1) // self.stride + 1)

    def __getitem__(self, index: int, /) -> dict[str, NDArray[np.unsignedinteger]]:
        """Window `index`. Raises ArgumentError, DataError."""
        if not 0 <= as_index(index) < len(self):
            raise ArgumentError(f"index is {index}; the windows' indices lie in [0, {len(self)})")
        return {name: values[0] for name, values in self.read([index]).items()}

    def read(self, indices: ArrayLike) -> dict[str, NDArray[np.unsignedinteger]]:
        """Many windows at once: tokens and targets [N, seq], of the narrowest unsigned dtype. Raises as above."""
        wanted = checked_indices("indices", indices, len(self))  # [N]
        windows = self._tokens[wanted[:, np.newaxis] * self.stride + np.arange(self.seq + 1)]  # [N, seq + 1]
        if windows.size and not 0 <= int(windows.min()) <= int(windows.max()) < self.vocab:
            raise DataError(
                "E9004", f"tokens lie in [{windows.min()}, {windows.max()}]; the vocabulary has {self.vocab}"
            )
        narrow = windows.astype(f"<u{idx_width(self.vocab)}")
        return {"tokens": narrow[:, :-1], "targets": narrow[:, 1:]}


def _mapped(path: Path) -> NDArray[Any]:
    try:
        return np.asarray(np.lib.format.open_memmap(path, mode="r"))
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{path} is no .npy file that can be mapped: {error}") from error
