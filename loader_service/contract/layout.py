"""The place of each tensor of a batch in one block of memory (R67 to R69).

Owns `TensorSpec`, `Layout`, the words for how rows lie in a tensor, and the types that a batch carries. Invariant:
offsets are multiples of 64, in the order of the tensors, without overlap, and `nbytes` covers the last one (R67). A
layout from another process is checked by `Layout.from_wire` before any view is made over it.

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

from loader_service.contract.checks import checked_int, checked_sequence, checked_text, shown
from loader_service.errors import ArgumentError, ProtocolError

__all__ = [
    "ALIGNMENT",
    "CARRIED",
    "EACH_ROW",
    "WHOLE",
    "Layout",
    "TensorSpec",
    "align",
    "carried_dtype",
    "dtype_text",
    "is_carried",
    "ragged",
]

ALIGNMENT = 64
EACH_ROW = "each"
"""The first axis of the tensor is the rows of the batch."""
WHOLE = "whole"
"""The tensor belongs to the batch as a whole: every rank gets all of it."""
_RAGGED = "ragged:"
_MAX_DIMENSIONS = 32
_MAX_NBYTES = 2**48
_NUMBERS = re.compile(r"[<>|](?:b1|[iu][1248]|f[248]|c8|c16)")
"""The types of numpy's own that a batch carries. A longdouble differs from machine to machine, and has bytes that
nobody writes."""
_ML_TYPES = frozenset(
    {
        "bfloat16",
        "float8_e3m4",
        "float8_e4m3",
        "float8_e4m3b11fnuz",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    }
)
"""Those of the package ml_dtypes, by name: numpy's own text for them does not tell them apart."""
CARRIED = (
    "a batch holds numbers only: bool, bfloat16, float8, and numpy's int, float and complex types but longdouble; "
    "convert it in the dataset or in a transform"
)
"""The end of a message about another type."""


def align(nbytes: int, unit: int = ALIGNMENT) -> int:
    """Round `nbytes` up to a multiple of `unit`; both are integers, `unit` at least 1. Raises ArgumentError.

    >>> align(0), align(1), align(64), align(65)
    (0, 64, 64, 128)
    """
    if not type(nbytes) is type(unit) is int or unit < 1:
        nbytes, unit = checked_int("nbytes", nbytes), checked_int("unit", unit, 1)
    return -(-nbytes // unit) * unit


def ragged(lengths: str) -> str:
    """Say that the rows lie one behind the other along the tensor's first axis.

    Args:
        lengths: the name of the tensor, integers [B], that holds how long each row is.

    >>> Layout.plan([("n", "int32", [2]), ("words", "int32", [5], ragged("n"))]).tensors[1].lengths
    'n'
    """
    return _RAGGED + checked_text("lengths", lengths)


def carried_dtype(name: str, dtype: DTypeLike) -> np.dtype[Any]:
    """Check that a batch can carry tensor `name`, and give its dtype as one.

    Args:
        dtype: a bool, an integer, a float or a complex number of numpy's, longdouble and clongdouble excepted, of any
            byte order; or bfloat16 or a float8 type of the package ml_dtypes.

    Raises:
        ArgumentError: another type. An array of objects over raw memory would end the process.
    """
    try:
        made = np.dtype("O" if dtype is None else dtype)  # numpy takes None for float64
    except Exception:  # TypeError, ValueError or SyntaxError: numpy parses a text
        raise ArgumentError(f"tensor {name!r} has dtype {shown(dtype)}, which numpy does not know") from None
    if not is_carried(made):
        raise ArgumentError(f"tensor {name!r} has dtype {made}; {CARRIED}")
    return made


def is_carried(dtype: np.dtype[Any]) -> bool:
    """Tell whether a batch can carry arrays of `dtype`."""
    text = dtype_text(dtype)
    return text in _ML_TYPES or (dtype.type.__module__ == "numpy" and _NUMBERS.fullmatch(text) is not None)


def dtype_text(dtype: np.dtype[Any]) -> str:
    """The text that names `dtype` in a layout and in digests, such as "<f4" or "bfloat16" (R68)."""
    return dtype.name if dtype.type.__module__ == "ml_dtypes" and dtype.isnative else dtype.str


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a layout.

    Attributes:
        name: any text.
        dtype: one that `carried_dtype` takes.
        shape: at most 32 sizes; `rows` says what the first axis is.
        offset: bytes from the start of the batch, a multiple of 64.
        rows: EACH_ROW, WHOLE or what `ragged` gives.
    """

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
        """Bytes of its elements."""
        return self.dtype.itemsize * math.prod(self.shape)


Planned = tuple[str, DTypeLike, Sequence[int]] | tuple[str, DTypeLike, Sequence[int], str]


@dataclass(frozen=True, slots=True)
class Layout:
    """The tensors of one batch in storage order, and the bytes that they need together; `Layout.plan` makes it."""

    tensors: tuple[TensorSpec, ...]
    nbytes: int

    @classmethod
    def plan(cls, tensors: Iterable[Planned]) -> Layout:
        """Lay out tensors one behind the other.

        Args:
            tensors: (name, dtype, shape) of each, or (name, dtype, shape, rows); rows says how the batch's rows lie in
                it: EACH_ROW (the default), WHOLE, or `ragged(NAME)` of a tensor of the same batch.

        Raises:
            ArgumentError: a dtype that no batch carries, a shape of other than sizes, a name twice, or more than 2^48
                bytes.

        >>> Layout.plan([("a", "int8", [3]), ("b", "float32", [2, 2])]).nbytes
        80
        """
        specs: list[TensorSpec] = []
        end = 0
        for given in _iterated(tensors):
            spec = _planned(given, align(end))
            specs.append(spec)
            end = spec.offset + spec.nbytes
        if end > _MAX_NBYTES:
            raise ArgumentError(f"the tensors need {end} bytes; a batch has at most 2^48")
        if len({spec.name for spec in specs}) != len(specs):
            raise ArgumentError(f"a layout names a tensor twice: {[spec.name for spec in specs]}")
        _check_rows(specs)
        return cls(tuple(specs), end)

    def views(self, buffer: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """Make the arrays over `buffer`, by name; nothing is copied.

        Args:
            buffer: uint8 [>= nbytes]. Each array keeps it alive, and is writeable if it is.

        Raises:
            ArgumentError: `buffer` is another, or too short.
        """
        if not isinstance(buffer, np.ndarray) or buffer.dtype != np.uint8 or buffer.ndim != 1:
            raise ArgumentError(f"buffer is {shown(buffer)}; it must be an array of uint8 [N]")
        if buffer.size < self.nbytes or not buffer.flags.c_contiguous:
            raise ArgumentError(f"buffer has {buffer.size} bytes; the layout needs {self.nbytes}, one behind the other")
        return {spec.name: np.ndarray(spec.shape, spec.dtype, buffer, spec.offset) for spec in self.tensors}

    def to_wire(self) -> list[list[Any]]:
        """Give plain values: [name, dtype text, shape, offset, rows] for each tensor (R69)."""
        return [[spec.name, dtype_text(spec.dtype), list(spec.shape), spec.offset, spec.rows] for spec in self.tensors]

    @classmethod
    def from_wire(cls, entries: Any) -> Layout:
        """Read what `to_wire` wrote; every field is checked.

        Raises:
            ProtocolError: it is no layout, or has a type that is not known here.
        """
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


def _iterated(tensors: Iterable[Planned]) -> list[Planned]:
    try:
        if not isinstance(tensors, str | bytes | type):
            return list(tensors)
    except TypeError:  # nothing that can be iterated over
        pass
    raise ArgumentError(f"tensors is {shown(tensors)}; it must be a list of (name, dtype, shape)")


def _planned(given: Any, offset: int) -> TensorSpec:
    if not isinstance(given, tuple | list) or len(given) not in (3, 4):
        raise ArgumentError(f"a tensor is planned as {shown(given)}; it must be (name, dtype, shape[, rows])")
    name, dtype, shape, *rows = given
    name = checked_text("the name of a tensor", name)
    sizes = checked_sequence(f"the shape of tensor {name!r}", shape, _checked_size)
    if len(sizes) > _MAX_DIMENSIONS:
        raise ArgumentError(f"tensor {name!r} has {len(sizes)} dimensions; a batch holds at most {_MAX_DIMENSIONS}")
    return TensorSpec(name, carried_dtype(name, dtype), sizes, offset, *(checked_text("rows", text) for text in rows))


def _checked_size(name: str, value: Any) -> int:
    return checked_int(name, value, 0, _MAX_NBYTES)


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
    if text in _ML_TYPES:
        return _ml_dtype(name, text)
    if not _NUMBERS.fullmatch(text):
        raise ProtocolError(f"tensor {name!r} has dtype {text[:20]!r}; a batch holds numbers, such as '<f4'")
    return np.dtype(text)


def _ml_dtype(name: str, text: str) -> np.dtype[Any]:
    try:
        import ml_dtypes  # only whoever reads such a batch needs it

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, text))
    except (ImportError, AttributeError):
        raise ProtocolError(
            f"tensor {name!r} has dtype {text}, of the package ml_dtypes; install it, or a newer one, for the reader"
        ) from None
    return dtype
