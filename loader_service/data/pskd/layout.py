"""The tree of tensors that one sample of a container is made of.

Owns `Leaf`, `Tuple`, `Record`, `Enc` and `idx_width`. Invariant: leaves are stored in the order of the tree, row-major,
one behind the other without gaps (R80). A sample in Python is the same tree: a numpy array for a leaf, a tuple for a
tuple, a dict for a record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import EnumType, IntEnum
from typing import Any

import numpy as np

from loader_service.contract.checks import checked_int, checked_sequence, checked_text, set_fields, shown
from loader_service.errors import ArgumentError, DataError

__all__ = [
    "MAX_DIMENSIONS",
    "Enc",
    "Layout",
    "Leaf",
    "Record",
    "Tuple",
    "check_arrays",
    "checked_encodings",
    "checked_layout",
    "flatten",
    "idx_width",
    "leaves",
    "unflatten",
]

MAX_DIMENSIONS = 31
"""The most dimensions of one tensor: numpy 1.26 has 32, and a batch needs one for its samples."""
_MAX_BOUND = 2**64 - 1


class _EncType(EnumType):
    def __call__(cls, value: Any, *names: Any, **options: Any) -> Any:
        """Look an encoding up by its number; a bool or a float is none, though it may be equal to one."""
        number = checked_int("the encoding", value)
        if not 0 <= number <= 2:
            raise DataError("E9002", f"the encoding {shown(number)} is unknown; 0 is f64, 1 f32, 2 bf16")
        return super().__call__(number, *names, **options)


class Enc(IntEnum, metaclass=_EncType):
    """Encodings of the elements of a real leaf (R82); the number is the one in a file of version 2."""

    F64 = 0
    F32 = 1
    BF16 = 2


_REALS: dict[Enc, np.dtype[Any]] = {Enc.F64: np.dtype("<f8"), Enc.F32: np.dtype("<f4"), Enc.BF16: np.dtype("<u2")}


def checked_encodings(name: str, values: Sequence[Enc]) -> tuple[Enc, ...]:
    """`values` as encodings. Raises ArgumentError where one is no integer, DataError E9002 for an unknown one."""
    return tuple(map(Enc, checked_sequence(name, values, checked_int)))


def idx_width(n: int) -> int:
    """Tell the bytes of an element of `idx[n]`: the smallest of 1, 2, 4, 8 that hold n - 1 (R81).

    Args:
        n: 1 <= n < 2^64.

    Raises:
        ArgumentError: If n lies outside.

    >>> [idx_width(n) for n in (1, 256, 257, 2**32, 2**32 + 1)]
    [1, 1, 2, 4, 8]
    """
    bound = checked_int("the bound of an idx", n, 1, _MAX_BOUND)
    return next(width for width in (1, 2, 4, 8) if bound - 1 < 1 << (8 * width))


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor of a sample.

    Attributes:
        bound: N of an `idx[N]`, 1 <= N < 2^64; None for a real.
        shape: Its dimensions, at most 31, each in [0, 2^63).

    Raises:
        ArgumentError: If bound or shape lies outside.
    """

    bound: int | None
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.bound is not None:
            set_fields(self, bound=checked_int("the bound of an idx", self.bound, 1, _MAX_BOUND))
        set_fields(self, shape=checked_sequence("shape", self.shape, _checked_length))
        checked_int("a tensor's number of dimensions", len(self.shape), 0, MAX_DIMENSIONS)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def dtype(self, enc: Enc) -> np.dtype[Any]:
        """The dtype of a stored element; that of bf16 is uint16, the upper half of a float32."""
        return _REALS[enc] if self.bound is None else np.dtype(f"<u{idx_width(self.bound)}")


def _checked_length(name: str, value: Any) -> int:
    return checked_int(name, value, 0, 2**63 - 1)


@dataclass(frozen=True, slots=True)
class Tuple:
    """Parts one behind the other. Raises ArgumentError where one is no layout."""

    parts: tuple[Layout, ...]

    def __post_init__(self) -> None:
        set_fields(self, parts=checked_sequence("parts", self.parts, checked_layout))


@dataclass(frozen=True, slots=True)
class Record:
    """Named parts one behind the other: no text of a type has one, a caller gives it (`Reader.with_layout`).

    Attributes:
        fields: Pairs of a name and a layout.

    Raises:
        ArgumentError: If a field is no such pair.
        DataError: E9005 if two fields have the same name.
    """

    fields: tuple[tuple[str, Layout], ...]

    def __post_init__(self) -> None:
        set_fields(self, fields=checked_sequence("fields", self.fields, _checked_field))
        names = [name for name, _ in self.fields]
        if len(set(names)) != len(names):
            raise DataError("E9005", f"a record has the fields {names}; each needs a name of its own")


Layout = Leaf | Tuple | Record


def checked_layout(name: str, value: Any) -> Layout:
    """`value` as a layout. Raises ArgumentError."""
    if not isinstance(value, Leaf | Tuple | Record):
        raise ArgumentError(f"{name} is {shown(value)}; it must be a Leaf, a Tuple or a Record")
    return value


def _checked_field(name: str, value: Any) -> tuple[str, Layout]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ArgumentError(f"{name} is {shown(value)}; a field is a pair of a name and a layout")
    return checked_text(f"the name of {name}", value[0]), checked_layout(f"the layout of {name}", value[1])


def leaves(layout: Layout) -> Iterator[Leaf]:
    """List the leaves in the order in which they are stored."""
    if isinstance(layout, Leaf):
        yield layout
        return
    parts = layout.parts if isinstance(layout, Tuple) else [part for _, part in layout.fields]
    for part in parts:
        yield from leaves(part)


def check_arrays(found: Iterable[Leaf]) -> None:
    """Check that an array can hold each leaf: one of no elements may have a dimension of 2^62.

    Raises:
        DataError: E9005 for a leaf that is too large.
    """
    for place, leaf in enumerate(found):
        if math.prod(length or 1 for length in leaf.shape) >= 2**48:
            raise DataError("E9005", f"leaf {place} has the shape {list(leaf.shape)}, more than an array can hold")


def unflatten(layout: Layout, values: Iterator[Any]) -> Any:
    """Make the tree of `layout` with one of `values` at each leaf, in storage order."""
    if isinstance(layout, Leaf):
        return next(values)
    if isinstance(layout, Tuple):
        return tuple(unflatten(part, values) for part in layout.parts)
    return {name: unflatten(part, values) for name, part in layout.fields}


def flatten(layout: Layout, sample: Any, path: str = "sample") -> Iterator[Any]:
    """List the values at the leaves of a sample, in storage order.

    Args:
        layout: The tree that the sample must be.
        sample: The sample.
        path: Name of the sample, for the error.

    Raises:
        DataError: E9005 if the sample is another tree.
    """
    if isinstance(layout, Leaf):
        yield sample
        return
    if isinstance(layout, Tuple):
        if not isinstance(sample, tuple | list) or len(sample) != len(layout.parts):
            raise DataError("E9005", f"{path} is no tuple of {len(layout.parts)} parts, as its type says")
        parts = [(f"{path}[{place}]", part, sample[place]) for place, part in enumerate(layout.parts)]
    else:
        names = [name for name, _ in layout.fields]
        if not isinstance(sample, dict) or set(sample) != set(names):
            raise DataError("E9005", f"{path} is no dict of the fields {names}, as its layout says")
        parts = [(f"{path}.{name}", part, sample[name]) for name, part in layout.fields]
    for inner, part, value in parts:
        yield from flatten(part, value, inner)
