"""The places of the tensors of one batch in one buffer (R67 to R69).

Owns `TensorSpec`, `Layout` and the words for how rows lie in a tensor. Invariant: offsets are multiples of 64,
in the order of the tensors, without overlap, and `nbytes` covers the last one. A layout from another process is
checked by `Layout.from_wire` before any view is made over it.

    offset of tensor i = offset of tensor i-1 + its bytes, rounded up to 64
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from loader_service.errors import ArgumentError, ProtocolError

__all__ = ["ALIGNMENT", "EACH_ROW", "WHOLE", "Layout", "TensorSpec", "align", "ragged"]

ALIGNMENT = 64
EACH_ROW = "each"
"""The first axis of the tensor is the rows of the batch."""
WHOLE = "whole"
"""The tensor belongs to the batch as a whole: every rank gets all of it."""
_RAGGED = "ragged:"
_MAX_DIMENSIONS = 32
_MAX_NBYTES = 2**48
_KINDS = "biufc"
"""What may stand in a batch: booleans, integers, floats and complex numbers; never objects."""
_DTYPE_TEXT = re.compile(rf"[<>|][{_KINDS}]\d{{1,2}}")


def align(nbytes: int, unit: int = ALIGNMENT) -> int:
    """`nbytes` rounded up to a multiple of `unit`.

    >>> align(0), align(1), align(64), align(65)
    (0, 64, 64, 128)
    """
    return -(-nbytes // unit) * unit


def ragged(lengths: str) -> str:
    """The rows lie one behind the other along the tensor's first axis; tensor `lengths`, [B], says how long each is.

    >>> Layout.plan([("n", "int32", [2]), ("words", "int32", [5], ragged("n"))]).tensors[1].lengths
    'n'
    """
    return _RAGGED + lengths


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor: its name, numpy dtype, shape, offset in bytes from the start of the batch, and how rows lie in it."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    rows: str = EACH_ROW

    @property
    def lengths(self) -> str | None:
        """The tensor that holds the lengths of its rows, where it is ragged."""
        return self.rows.removeprefix(_RAGGED) if self.rows.startswith(_RAGGED) else None

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


Planned = tuple[str, DTypeLike, Sequence[int]] | tuple[str, DTypeLike, Sequence[int], str]


@dataclass(frozen=True, slots=True)
class Layout:
    """The tensors of one batch in storage order, and the bytes that they need together."""

    tensors: tuple[TensorSpec, ...]
    nbytes: int

    @classmethod
    def plan(cls, tensors: Iterable[Planned]) -> Layout:
        """Lay out (name, dtype, shape) one behind the other. Raises ArgumentError: not numbers, a name twice.

        A fourth value says how the rows of the batch lie in the tensor: EACH_ROW (the default), WHOLE or `ragged(…)`.

        >>> Layout.plan([("a", "int8", [3]), ("b", "float32", [2, 2])]).nbytes
        80
        """
        specs: list[TensorSpec] = []
        end = 0
        for name, dtype, shape, *rows in tensors:
            sizes = tuple(int(size) for size in shape)
            spec = TensorSpec(name, _number_dtype(name, dtype), sizes, align(end), *rows)
            specs.append(spec)
            end = spec.offset + spec.nbytes
        for spec in specs:
            if len(spec.shape) > _MAX_DIMENSIONS or min(spec.shape, default=0) < 0:
                raise ArgumentError(f"tensor {spec.name!r} has the shape {list(spec.shape)}, which no batch can hold")
        if len({spec.name for spec in specs}) != len(specs):
            raise ArgumentError(f"a layout names a tensor twice: {[spec.name for spec in specs]}")
        _check_rows(specs)
        return cls(tuple(specs), end)

    def views(self, buffer: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """Arrays over `buffer` (uint8 [>= nbytes]), by name; they are writeable if the buffer is.

        Each keeps the buffer alive; nothing is copied.
        """
        return {spec.name: np.ndarray(spec.shape, spec.dtype, buffer, spec.offset) for spec in self.tensors}

    def to_wire(self) -> list[list[Any]]:
        """As plain values: [name, dtype text, shape, offset, rows] for each tensor."""
        return [[spec.name, spec.dtype.str, list(spec.shape), spec.offset, spec.rows] for spec in self.tensors]

    @classmethod
    def from_wire(cls, entries: Any) -> Layout:
        """The layout that `to_wire` wrote; every field is checked. Raises ProtocolError."""
        if not isinstance(entries, list):
            raise ProtocolError(f"a layout is {type(entries).__name__}; it must be a list of tensors")
        specs = tuple(_spec_from_wire(entry) for entry in entries)
        names = {spec.name for spec in specs}
        if len(names) != len(specs):
            raise ProtocolError("a layout names a tensor twice")
        end = 0
        for spec in specs:
            if spec.rows not in (EACH_ROW, WHOLE) and spec.lengths not in names:
                raise ProtocolError(f"tensor {spec.name!r} has the rows {spec.rows[:50]!r}, which nothing explains")
            if spec.offset < end:
                raise ProtocolError(f"tensor {spec.name!r} begins before the one before it ends")
            end = spec.offset + spec.nbytes
        return cls(specs, end)


def _number_dtype(name: str, dtype: DTypeLike) -> np.dtype[Any]:
    """Refused here, where it is planned: an array of objects over raw memory ends the process."""
    dtype = np.dtype(dtype)
    if dtype.kind not in _KINDS:
        raise ArgumentError(f"tensor {name!r} has dtype {dtype}; a batch holds numbers only")
    return dtype


def _check_rows(specs: Sequence[TensorSpec]) -> None:
    names = {spec.name for spec in specs}
    for spec in specs:
        known = spec.rows in (EACH_ROW, WHOLE) if spec.lengths is None else spec.lengths in names
        if not known:
            raise ArgumentError(
                f"tensor {spec.name!r} has the rows {spec.rows!r}; they must be EACH_ROW, WHOLE, or ragged(NAME) of a "
                "tensor of the same batch"
            )


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MAX_NBYTES


def _spec_from_wire(entry: Any) -> TensorSpec:
    if not isinstance(entry, list) or len(entry) != 5:
        raise ProtocolError("a tensor of a layout is not [name, dtype, shape, offset, rows]")
    name, dtype_text, shape, offset, rows = entry
    if not isinstance(name, str) or not isinstance(dtype_text, str) or not isinstance(rows, str):
        raise ProtocolError("a tensor's name, dtype and rows must be text")
    if not isinstance(shape, list) or len(shape) > _MAX_DIMENSIONS or not all(map(_is_size, shape)):
        raise ProtocolError(f"tensor {name!r} has no valid shape")
    if not _is_size(offset) or offset % ALIGNMENT:  # before the cache, to which 64.0 is 64
        raise ProtocolError(f"tensor {name!r} has an offset that is no multiple of {ALIGNMENT}")
    return _spec(name, dtype_text, tuple(shape), offset, rows)


@lru_cache(maxsize=1024)
def _spec(name: str, dtype_text: str, shape: tuple[int, ...], offset: int, rows: str) -> TensorSpec:
    """Cached: most tensors of a stream have the same place in each batch."""
    dtype = _dtype_from_wire(name, dtype_text)
    if dtype.itemsize * math.prod(size for size in shape if size) > _MAX_NBYTES:  # numpy's limit skips zeros
        raise ProtocolError(f"tensor {name!r} has the shape {list(shape)}, more than {_MAX_NBYTES} bytes")
    return TensorSpec(name, dtype, shape, offset, rows)


def _dtype_from_wire(name: str, text: str) -> np.dtype[Any]:
    if not _DTYPE_TEXT.fullmatch(text):
        raise ProtocolError(f"tensor {name!r} has dtype {text[:20]!r}; a batch holds numbers, such as '<f4'")
    try:
        return np.dtype(text)
    except TypeError:
        raise ProtocolError(f"tensor {name!r} has dtype {text!r}, which this machine does not know") from None
