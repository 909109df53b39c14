"""Samples out of a container file.

Owns `Reader` and `info`. Invariant: the file is mapped and its size checked before any sample is read, so no count in
a header, however large, costs memory; samples are read with array arithmetic, not one by one. Every element of an idx
leaf that is given out lies below its bound. Fails with DataError, with offset and sample.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import replace
from operator import index as as_index
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loader_service.data.pskd.header import Header, check_encodings
from loader_service.data.pskd.layout import Enc, Layout, fold, leaves, sample_dtype
from loader_service.errors import ArgumentError, DataError

__all__ = ["Reader", "info"]

Reals = Literal["float64", "stored"]


def _map(path: Path) -> NDArray[np.uint8]:
    with path.open("rb") as file:
        if not path.stat().st_size:
            return np.empty(0, np.uint8)  # an empty file cannot be mapped
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


class Reader:
    """Random access to the samples of a `.psk.d` file.

    reals: "float64" gives every real leaf as float64, which is exact; "stored" gives float32 for f32 and bf16 leaves.
    A file of a `params` type has a header only until `with_layout`. Raises DataError and OSError.
    """

    def __init__(self, path: str | Path, *, reals: Reals = "float64", layout: Layout | None = None) -> None:
        self.path, self._reals = Path(path), reals
        self._data = _map(self.path)
        self.header = Header.read(self._data.data)
        if layout is not None:
            self.header = replace(self.header, layout=layout)
        if self.header.layout is not None:
            self._check(self.header.layout)

    def __repr__(self) -> str:
        return f"Reader({str(self.path)!r}: {self.header.count} of {self.header.type_text})"

    def __len__(self) -> int:
        return self.header.count

    def with_layout(self, layout: Layout) -> Self:
        """The same file with the layout that its `params` type does not tell; its size must be what that implies."""
        return type(self)(self.path, reals=self._reals, layout=layout)

    def __getitem__(self, index: int, /) -> Any:
        """Sample `index`, 0 <= index < len: the tree of the layout, arrays of the leaves' shapes. Raises DataError."""
        if not 0 <= as_index(index) < len(self):
            raise ArgumentError(f"index is {index}; the file's indices lie in [0, {len(self)})")
        return fold(self._layout, (values[0] for values in self._values(np.array([index], np.int64))))

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def read(self, indices: ArrayLike) -> Any:
        """Many samples: the same tree, with a leading axis of len(indices). Raises DataError, ArgumentError."""
        wanted = np.asarray(indices, np.int64).reshape(-1)  # [N]
        if wanted.size and not 0 <= int(wanted.min()) <= int(wanted.max()) < len(self):
            raise ArgumentError(f"indices lie in [{wanted.min()}, {wanted.max()}]; the file's in [0, {len(self)})")
        return fold(self._layout, self._values(wanted))

    def params_reals(self, index: int = 0) -> NDArray[np.float64]:
        """All real values of one sample, flat, in storage order: float64."""
        values = list(self._values(np.array([index], np.int64)))
        reals = [v.reshape(-1) for v, leaf in zip(values, self._leaves, strict=True) if leaf.bound is None]
        return np.concatenate(reals, dtype=np.float64) if reals else np.empty(0)

    @property
    def _layout(self) -> Layout:
        if self.header.layout is None:
            raise DataError(
                "E9001", f"the type {self.header.type_text!r} does not tell its layout; give `with_layout` one"
            )
        return self.header.layout

    def _check(self, layout: Layout) -> None:
        """The file must be exactly as long as its header and its samples."""
        self._leaves = list(leaves(layout))
        self._encodings = self.header.encodings or (Enc.F64,) * len(self._leaves)
        if len(self._encodings) != len(self._leaves):
            raise DataError("E9005", f"the layout has {len(self._leaves)} leaves, the header {len(self._encodings)}")
        check_encodings(self._leaves, self._encodings)
        pairs = zip(self._leaves, self._encodings, strict=True)
        self._sample_bytes = sum(leaf.size * leaf.dtype(enc).itemsize for leaf, enc in pairs)
        needed = self.header.nbytes + self.header.count * self._sample_bytes
        if len(self._data) < needed:
            raise DataError("E9003", f"the file has {len(self._data)} bytes; its header and samples need {needed}")
        if len(self._data) > needed:
            raise DataError("E9005", f"the file has {len(self._data)} bytes; its header and samples end at {needed}")

    def _values(self, indices: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        """Each leaf of the samples at `indices`, [N, *shape], in storage order."""
        _ = self._layout
        rows: NDArray[Any] | None = None
        if self._sample_bytes and len(indices):
            dtype = sample_dtype(self._leaves, self._encodings)
            rows = np.ndarray((len(self),), dtype, self._data.data, self.header.nbytes)[indices]
        for place, (leaf, enc) in enumerate(zip(self._leaves, self._encodings, strict=True)):
            shape = (len(indices), *leaf.shape)
            stored = np.empty(shape, leaf.dtype(enc)) if rows is None else rows[str(place)].reshape(shape)
            if leaf.bound is None:
                yield _real(stored, enc, self._reals)
            else:
                self._check_bound(place, leaf.bound, stored, indices)
                yield stored

    def _check_bound(self, place: int, bound: int, values: NDArray[Any], indices: NDArray[np.int64]) -> None:
        if values.size and int(values.max()) >= bound:
            row, *element = np.argwhere(values >= bound)[0].tolist()
            offset = self.header.nbytes + int(indices[row]) * self._sample_bytes
            raise DataError(
                "E9004",
                f"sample {indices[row]} (at byte {offset}), leaf {place}, element {element} is "
                f"{values[row, *element]}; an idx[{bound}] lies below {bound}",
            )


def _real(stored: NDArray[Any], enc: Enc, reals: Reals) -> NDArray[Any]:
    if enc is Enc.BF16:
        stored = (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return stored.astype(np.float64) if reals == "float64" else stored


def info(path: str | Path, n: int = 3) -> str:
    """The header in words, and the first `n` samples, one a line. Raises DataError."""
    reader = Reader(path)
    header = reader.header
    lines = [f"version {header.version}", f"type {header.type_text}", f"samples {header.count}"]
    if header.encodings is not None:
        lines.append(f"encodings {', '.join(enc.name.lower() for enc in header.encodings)}")
    if header.layout is not None:
        lines += [f"{place}: {reader[place]}" for place in range(min(n, len(reader)))]
    return "\n".join(lines)
