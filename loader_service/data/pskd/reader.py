"""Samples out of a container file.

Owns `Reader` and `info`. Invariant: the file is mapped and its size checked before any sample is read, so no count in
a header, however large, costs memory; samples are read with array arithmetic, not one by one. Every element of an idx
leaf that is given out lies below its bound. Fails with DataError, with offset and sample.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from operator import index as as_index
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loader_service.contract.checks import checked_indices
from loader_service.data.pskd.header import Header, check_encodings
from loader_service.data.pskd.layout import Enc, Layout, Leaf, check_arrays, fold, leaves
from loader_service.data.pskd.types import layout_of
from loader_service.errors import ArgumentError, DataError

__all__ = ["Reader", "info"]

Reals = Literal["float64", "stored", "bfloat16"]


def _map(path: Path) -> NDArray[np.uint8]:
    if path.exists() and not (path.is_file() or path.is_dir()):  # opening a pipe would wait
        raise DataError("E9002", f"{path} is no regular file")
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return np.empty(0, np.uint8)  # an empty file cannot be mapped
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


class Reader:
    """Random access to the samples of a `.psk.d` file.

    reals: "float64" gives every real leaf as float64, which is exact; "stored" gives float32 for f32 and bf16
    leaves; "bfloat16" is "stored" with bf16 leaves as `ml_dtypes.bfloat16`, of the package ml-dtypes where it is
    installed. A file of a `params` type has a header only until `with_layout`. Raises DataError and OSError.
    """

    def __init__(self, path: str | Path, *, reals: Reals = "float64", layout: Layout | None = None) -> None:
        self.path, self._reals = Path(path), reals
        if reals not in get_args(Reals):
            raise ArgumentError(f"reals is {reals!r}; there are {', '.join(get_args(Reals))}")
        if reals == "bfloat16":
            _bfloat16()  # tells where it is missing
        self._data = _map(self.path)
        self.header = Header.read(self._data.data)
        if layout is not None:
            self.header = replace(self.header, layout=layout_of(self.header.type_text, layout))
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
        values = self._values(self._checked([as_index(index)]))
        return fold(self._layout, (value.reshape(value.shape[1:]) for value in values))

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def read(self, indices: ArrayLike) -> Any:
        """Many samples: the same tree, with a leading axis of len(indices). Raises DataError, ArgumentError."""
        return fold(self._layout, self._values(self._checked(indices)))

    def params_reals(self, index: int = 0) -> NDArray[np.float64]:
        """All real values of one sample, flat, in storage order: float64. Raises DataError, ArgumentError."""
        values = list(self._values(self._checked([as_index(index)])))
        reals = [_exact(v.reshape(-1)) for v, leaf in zip(values, self._leaves, strict=True) if leaf.bound is None]
        return np.concatenate(reals) if reals else np.empty(0)

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
        check_arrays(self._leaves)

    def _checked(self, indices: ArrayLike) -> NDArray[np.int64]:
        """`indices` as int64 [N], each that of a sample."""
        _ = self._layout
        return checked_indices("indices", indices, len(self))

    def _values(self, indices: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        """Each leaf of the samples at `indices`, [N, *shape], in storage order."""
        offset = self.header.nbytes
        for place, (leaf, enc) in enumerate(zip(self._leaves, self._encodings, strict=True)):
            stored = self._stored(leaf, leaf.dtype(enc), offset, indices)
            if leaf.bound is None:
                yield _real(stored, enc, self._reals)
            else:
                self._check_bound(place, leaf.bound, stored, offset, indices)
                yield stored
            offset += leaf.size * stored.itemsize

    def _stored(self, leaf: Leaf, dtype: np.dtype[Any], offset: int, indices: NDArray[np.int64]) -> NDArray[Any]:
        """A copy of a leaf's bytes, which begin at `offset` in sample 0: [N, *shape]."""
        shape = (len(indices), *leaf.shape)
        if not leaf.size or not len(indices):
            return np.empty(shape, dtype)
        rows = (len(self), leaf.size * dtype.itemsize)  # bytes, for a structure of numpy's ends at 2 GiB
        view = np.ndarray(rows, np.uint8, self._data.data, offset, (self._sample_bytes, 1))
        return view[indices].view(dtype).reshape(shape)

    def _check_bound(
        self, place: int, bound: int, values: NDArray[Any], offset: int, indices: NDArray[np.int64]
    ) -> None:
        if values.size and int(values.max()) >= bound:
            row, *element = np.argwhere(values >= bound)[0].tolist()
            within = int(np.argmax(values[row].reshape(-1) >= bound)) * values.itemsize
            raise DataError(
                "E9004",
                f"sample {indices[row]}, leaf {place}, element {element} (at byte "
                f"{offset + int(indices[row]) * self._sample_bytes + within}) is {values[row, *element]}; "
                f"an idx[{bound}] lies below {bound}",
            )


def _real(stored: NDArray[Any], enc: Enc, reals: Reals) -> NDArray[Any]:
    if enc is Enc.BF16 and reals == "bfloat16":
        return stored.view(_bfloat16())
    if enc is Enc.BF16:
        stored = (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return _exact(stored) if reals == "float64" else stored


def _bfloat16() -> np.dtype[Any]:
    """The dtype of the package ml-dtypes. Raises ArgumentError where it is not installed."""
    try:
        dtype: np.dtype[Any] = np.dtype(import_module("ml_dtypes").bfloat16)
    except ModuleNotFoundError:
        raise ArgumentError('reals = "bfloat16" needs the package ml-dtypes; install it, or read "stored"') from None
    return dtype


def _exact(stored: NDArray[Any]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):  # a signalling NaN is read as any other
        return stored.astype(np.float64, copy=False)


def info(path: str | Path, n: int = 3) -> str:
    """The header in words, and the first `n` samples, one a line. Raises DataError."""
    reader = Reader(path)
    header = reader.header
    lines = [f"version {header.version}", f"type {header.type_text}", f"samples {header.count}"]
    if header.encodings is not None:
        lines.append(f"encodings {', '.join(enc.name.lower() for enc in header.encodings)}")
    if header.layout is not None:
        lines += [f"{place}: {' '.join(str(reader[place]).split())}" for place in range(min(n, len(reader)))]
    return "\n".join(lines)
