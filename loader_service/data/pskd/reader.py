"""Reading samples from a container file.

Owns `Reader` and `info`. Invariant: the file is mapped and its size checked before any sample is read, so no count in a
header, however large, costs memory (R87). Samples are read with array arithmetic, not one by one. Every element of an
idx leaf that is given out lies below its bound (R89). Wrong files are DataErrors, with the byte and the sample.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loader_service.contract.checks import checked_choice, checked_index, checked_indices, checked_int
from loader_service.contract.collate import SlotError
from loader_service.contract.collate.columns import RowsOfBlock
from loader_service.data.files import checked_path, file_error
from loader_service.data.pskd.header import Header, check_encodings
from loader_service.data.pskd.layout import Enc, Layout, Leaf, check_arrays, checked_layout, leaves, unflatten
from loader_service.data.pskd.types import layout_of
from loader_service.errors import ArgumentError, DataError

__all__ = ["Reader", "Reals", "info"]

Reals = Literal["float64", "stored", "bfloat16"]


def _map(path: Path) -> NDArray[np.uint8]:
    """Map a file read-only. Raises DataError E9002 where it is not regular, FileAccessError where it cannot be read."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # opening a pipe would wait
            raise DataError("E9002", f"{path} is no regular file")
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return np.empty(0, np.uint8)  # an empty file cannot be mapped
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except OSError as error:
        raise file_error(path, error) from error


class Reader:
    """Random access to the samples of a `.psk.d` file.

    Args:
        path: The file. It is mapped as long as the reader, or an array of it, lives.
        reals: dtype of real leaves. "float64": all of them, which is exact. "stored": float32 for f32 and bf16 leaves.
            "bfloat16": as "stored", but bf16 leaves as `ml_dtypes.bfloat16`; it needs the package ml-dtypes.
        layout: The leaves of a `params` type, or names for the parts of a tuple; without it a file of a `params` type
            tells its header only.

    Attributes:
        path: The file's path.
        header: The file's header.

    Raises:
        DataError: If the file is no container, or `layout` does not fit it.
        FileAccessError: If the file cannot be read.
        ArgumentError: If an argument is of the wrong kind.
    """

    def __init__(self, path: str | PathLike[str], *, reals: Reals = "float64", layout: Layout | None = None) -> None:
        self.path = checked_path("path", path)
        checked_choice("reals", reals, get_args(Reals))
        self._reals = reals
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
        """Open the same file with a layout that its `params` type does not tell (R85).

        Raises:
            DataError: E9003 or E9005 if the file has another size than the layout says; E9005 if the type tells other
                leaves.
            ArgumentError: If `layout` is none.
        """
        return type(self)(self.path, reals=self._reals, layout=checked_layout("layout", layout))

    def __getitem__(self, index: int, /) -> Any:
        """Read the sample at 0 <= index < len(self): the tree of the layout, with arrays of the leaves' shapes.

        Raises:
            DataError: E9004 if an idx is out of its bound; E9001 without a layout.
            ArgumentError: If the index lies outside.
        """
        values = self._values(self._checked_indices([checked_index(index, len(self))]))
        return unflatten(self._layout, (value.reshape(value.shape[1:]) for value in values))

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def read(self, indices: ArrayLike) -> Any:
        """Read many samples at once.

        Args:
            indices: Integers [N] in [0, len(self)).

        Returns:
            The tree of the layout, with arrays [N, *shape].

        Raises:
            DataError: E9004 if an idx is out of its bound; E9001 without a layout.
            ArgumentError: If an index lies outside, or `indices` are no integers of one dimension.
        """
        return unflatten(self._layout, self._values(self._checked_indices(indices)))

    def columns(self, indices: NDArray[np.int64]) -> Any:
        """Find many samples at once, to be copied out of the file when a batch is written.

        Args:
            indices: int64 [N] in [0, len(self)).

        Returns:
            The tree of the layout, with a `RowsOfBlock` of N rows for each leaf that is given as it is stored, and an
            array [N, *shape] for others.

        Raises:
            DataError: E9001 without a layout.
            ArgumentError: If an index lies outside.
        """
        return unflatten(self._layout, self._columns(self._checked_indices(indices)))

    def _columns(self, indices: NDArray[np.int64]) -> Iterator[NDArray[Any] | RowsOfBlock]:
        offset = self.header.nbytes
        for place, (leaf, enc) in enumerate(zip(self._leaves, self._encodings, strict=True)):
            dtype, begin = leaf.dtype(enc), offset
            offset += leaf.size * dtype.itemsize
            if leaf.bound is None and (enc is not Enc.F64 and not (enc is Enc.F32 and self._reals != "float64")):
                yield _real(self._stored(leaf, dtype, begin, indices), enc, self._reals)
                continue
            verify = None if leaf.bound is None else partial(self._check_rows, place, leaf.bound, begin, indices)
            yield RowsOfBlock(self._data, indices * self._sample_bytes + begin, dtype, leaf.shape, verify)

    def _check_rows(
        self, place: int, bound: int, offset: int, indices: NDArray[np.int64], values: NDArray[Any]
    ) -> None:
        """Check the rows of an idx leaf. Raises SlotError for the first that has a value out of its bound."""
        if values.size and int(np.maximum.reduce(values, axis=None)) >= bound:
            row = int(np.argwhere(values >= bound)[0][0])
            try:
                self._check_bound(place, bound, values[row : row + 1], offset, indices[row : row + 1])
            except DataError as error:
                raise SlotError(row, error) from error

    def params_reals(self, index: int = 0) -> NDArray[np.float64]:
        """Read all real values of one sample, flat, in storage order: float64. Raises as `read`."""
        values = list(self._values(self._checked_indices([checked_index(index, len(self))])))
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
        """Check that the file is exactly as long as its header and its samples."""
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

    def _checked_indices(self, indices: ArrayLike) -> NDArray[np.int64]:
        """`indices` as int64 [N], each that of a sample. Raises ArgumentError, and DataError E9001 without a layout."""
        _ = self._layout
        return checked_indices("indices", indices, len(self))

    def _values(self, indices: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        """Read each leaf of the samples at `indices`, [N, *shape], in storage order."""
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
        """Copy the values of a leaf that begins at byte `offset` of the file in sample 0: [N, *shape]."""
        shape = (len(indices), *leaf.shape)
        if not leaf.size or not len(indices):
            return np.empty(shape, dtype)
        rows = (len(self), leaf.size * dtype.itemsize)  # bytes, for a structure of numpy's ends at 2 GiB
        view = np.ndarray(rows, np.uint8, self._data.data, offset, (self._sample_bytes, 1))
        return view[indices].view(dtype).reshape(shape)

    def _check_bound(
        self, place: int, bound: int, values: NDArray[Any], offset: int, indices: NDArray[np.int64]
    ) -> None:
        """Check the values of an idx leaf. Raises DataError E9004 with the first one that is out of its bound."""
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
    """The dtype of the package ml-dtypes; ArgumentError where that is not installed."""
    try:
        dtype: np.dtype[Any] = np.dtype(import_module("ml_dtypes").bfloat16)
    except ModuleNotFoundError:
        raise ArgumentError('reals = "bfloat16" needs the package ml-dtypes; install it, or read "stored"') from None
    return dtype


def _exact(stored: NDArray[Any]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):  # a signalling NaN is read as any other
        return stored.astype(np.float64, copy=False)


def info(path: str | PathLike[str], n: int = 3) -> str:
    """Describe a container: its header and its first samples, as `loader-service data info` prints it.

    Args:
        path: The file.
        n: Number of samples, at least 0; each takes a line.

    Raises:
        DataError, FileAccessError, ArgumentError: As `Reader`.
    """
    n = checked_int("n", n, 0)
    reader = Reader(path)
    header = reader.header
    lines = [f"version {header.version}", f"type {header.type_text}", f"samples {header.count}"]
    if header.encodings is not None:
        lines.append(f"encodings {', '.join(enc.name.lower() for enc in header.encodings)}")
    if header.layout is not None:
        lines += [f"{place}: {' '.join(str(reader[place]).split())}" for place in range(min(n, len(reader)))]
    return "\n".join(lines)
