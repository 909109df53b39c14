"""What one sample of a container is made of: a tree of tensors.

Owns `Leaf`, `Tuple`, `Record`, `Enc` and `idx_width`. Invariant: leaves are stored in the order of the tree, row-major,
one behind the other without gaps. A sample in Python is the same tree: a numpy array for a leaf, a tuple for a tuple, a
dict for a record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from loader_service.contract.checks import checked_int
from loader_service.errors import DataError

__all__ = [
    "MAX_DIMENSIONS",
    "Enc",
    "Layout",
    "Leaf",
    "Record",
    "Tuple",
    "check_arrays",
    "fold",
    "idx_width",
    "leaves",
    "sample_dtype",
    "unfold",
]

MAX_DIMENSIONS = 31
"""Of one tensor: numpy 1.26 has 32, and a batch needs one for its samples."""
_MAX_BOUND = 2**64 - 1


class Enc(IntEnum):
    """How the elements of a real leaf are stored; the number is the one in a file of version 2."""

    F64 = 0
    F32 = 1
    BF16 = 2


_REALS: dict[Enc, np.dtype[Any]] = {Enc.F64: np.dtype("<f8"), Enc.F32: np.dtype("<f4"), Enc.BF16: np.dtype("<u2")}


def idx_width(n: int) -> int:
    """The bytes of an `idx[n]` element: the smallest of 1, 2, 4, 8 that hold n - 1; 1 <= n < 2^64.

    >>> [idx_width(n) for n in (1, 256, 257, 2**32, 2**32 + 1)]
    [1, 1, 2, 4, 8]
    """
    checked_int("the bound of an idx", n, 1, _MAX_BOUND)
    return next(width for width in (1, 2, 4, 8) if n - 1 < 1 << (8 * width))


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor. bound: N of an `idx[N]`, None for a real; shape: its dimensions. Raises ArgumentError."""

    bound: int | None
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.bound is not None:
            checked_int("the bound of an idx", self.bound, 1, _MAX_BOUND)
        checked_int("a tensor's number of dimensions", len(self.shape), 0, MAX_DIMENSIONS)
        for length in self.shape:
            checked_int("a dimension", length, 0, 2**63 - 1)

    @property
    def size(self) -> int:
        """Its number of elements."""
        return math.prod(self.shape)

    def dtype(self, enc: Enc) -> np.dtype[Any]:
        """How one element is stored; bf16 as the upper half of a float32, uint16."""
        return _REALS[enc] if self.bound is None else np.dtype(f"<u{idx_width(self.bound)}")


@dataclass(frozen=True, slots=True)
class Tuple:
    """Parts one behind the other."""

    parts: tuple[Layout, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """Named parts one behind the other; no type's text says one, a caller does (`Reader.with_layout`)."""

    fields: tuple[tuple[str, Layout], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.fields]
        if len(set(names)) != len(names):
            raise DataError("E9005", f"a record has the fields {names}; each needs a name of its own")


Layout = Leaf | Tuple | Record


def leaves(layout: Layout) -> Iterator[Leaf]:
    """The leaves in storage order."""
    if isinstance(layout, Leaf):
        yield layout
        return
    parts = layout.parts if isinstance(layout, Tuple) else [part for _, part in layout.fields]
    for part in parts:
        yield from leaves(part)


def sample_dtype(found: Sequence[Leaf], encodings: Sequence[Enc]) -> np.dtype[Any]:
    """One sample as a packed structure: leaf i is field "i", a flat array of its elements. Below 2 GiB, as numpy's."""
    pairs = enumerate(zip(found, encodings, strict=True))
    return np.dtype([(str(place), leaf.dtype(enc), (leaf.size,)) for place, (leaf, enc) in pairs])


def check_arrays(found: Iterable[Leaf]) -> None:
    """Raises DataError E9005 for a leaf that no array can hold: one of no elements may have a dimension of 2^62."""
    for place, leaf in enumerate(found):
        if math.prod(length or 1 for length in leaf.shape) >= 2**48:
            raise DataError("E9005", f"leaf {place} has the shape {list(leaf.shape)}, more than an array can hold")


def fold(layout: Layout, values: Iterator[Any]) -> Any:
    """The tree of `layout` with one of `values` at each leaf, in storage order."""
    if isinstance(layout, Leaf):
        return next(values)
    if isinstance(layout, Tuple):
        return tuple(fold(part, values) for part in layout.parts)
    return {name: fold(part, values) for name, part in layout.fields}


def unfold(layout: Layout, sample: Any, path: str = "sample") -> Iterator[Any]:
    """What stands at the leaves of a sample, in storage order. Raises DataError E9005 for another tree."""
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
        yield from unfold(part, value, inner)
