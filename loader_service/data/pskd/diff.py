"""Comparing two containers value for value.

Owns `diff` and `Diff`. Invariant: numbers are compared, whatever their encodings: 0.5 as f64 equals 0.5 as bf16, 0.0
equals -0.0, and NaN equals NaN. Files whose `params` type does not tell its layout are compared byte for byte behind
their headers. Memory is bounded, however large the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader_service.data.pskd.convert import Progress, open_reader, row_ranges
from loader_service.data.pskd.layout import Leaf, flatten, leaves
from loader_service.data.pskd.reader import Reader

__all__ = ["Diff", "Difference", "diff"]

_CHUNK_BYTES = 1 << 22

_Where = Callable[[list[int]], str]


@dataclass(frozen=True, slots=True)
class Difference:
    """Two values that differ.

    Attributes:
        where: Sample, leaf and element, or the byte behind the headers.
        first, second: The values.
    """

    where: str
    first: Any
    second: Any


@dataclass(frozen=True, slots=True)
class Diff:
    """The differences of two containers.

    Attributes:
        headers: One line for each difference of the headers.
        first: The first values that differ.
        count: Number of values that differ.
        largest: Largest absolute difference; infinite where one of two values is NaN.
    """

    headers: tuple[str, ...]
    first: tuple[Difference, ...]
    count: int
    largest: int | float

    @property
    def same(self) -> bool:
        """True if type, count and all values agree."""
        return not self.headers and not self.count


def diff(
    left: Path,
    right: Path,
    type_text: str | None = None,
    limit: int = 10,
    progress: Progress = lambda done, total: None,
) -> Diff:
    """Compare two containers.

    Where the leaves of the types differ, no values are compared; where the counts differ, those of the shorter file.

    Args:
        left, right: The files.
        type_text: The type of `params` files.
        limit: Largest number of values in `Diff.first`.
        progress: Called now and then.

    Raises:
        DataError, FileAccessError: As `Reader`.
    """
    pair = open_reader(left, type_text), open_reader(right, type_text)
    headers = _header_differences(*pair)
    layouts = [reader.header.layout for reader in pair]
    if layouts[0] is not None and layouts[1] is not None:
        found = [[(leaf.shape, leaf.bound is None) for leaf in leaves(layout)] for layout in layouts if layout]
        values = _values(*pair, progress) if found[0] == found[1] else iter(())
    else:
        values = _bytes(*pair, progress) if layouts == [None, None] else iter(())
    first: list[Difference] = []
    count = 0
    largest: int | float = 0
    for where, one, other in values:
        wrong = _differ(one, other)
        if wrong.any():
            for place in np.argwhere(wrong)[: limit - len(first)].tolist():
                first.append(Difference(where(place), one[tuple(place)].item(), other[tuple(place)].item()))
            count += int(np.count_nonzero(wrong))
            largest = max(largest, _distance(one[wrong], other[wrong]))
    return Diff(tuple(headers), tuple(first), count, largest)


def _header_differences(left: Reader, right: Reader) -> list[str]:
    one, other = left.header, right.header
    differences = []
    if one.layout != other.layout or (one.layout is None and one.type_text != other.type_text):
        differences.append(f"type: {one.type_text} and {other.type_text}")
    if one.layout is None and one.encodings != other.encodings:
        differences.append(f"encodings: {one.encodings} and {other.encodings}")
    if one.count != other.count:
        differences.append(f"samples: {one.count} and {other.count}")
    sizes = [reader.path.stat().st_size - reader.header.nbytes for reader in (left, right)]
    if one.layout is None and other.layout is None and sizes[0] != sizes[1]:
        differences.append(f"bytes behind the header: {sizes[0]} and {sizes[1]}")
    return differences


def _values(left: Reader, right: Reader, progress: Progress) -> Iterator[tuple[_Where, NDArray[Any], NDArray[Any]]]:
    """Read both files leaf by leaf, some samples at a time: a namer of elements, and both arrays [n, *shape]."""
    layouts = left.header.layout, right.header.layout
    assert layouts[0] is not None
    assert layouts[1] is not None
    found: list[Leaf] = list(leaves(layouts[0]))
    common = min(len(left), len(right)) if any(leaf.size for leaf in found) else 0
    for start, stop in row_ranges(common, found):
        rows = np.arange(start, stop)
        sides = zip(flatten(layouts[0], left.read(rows)), flatten(layouts[1], right.read(rows)), strict=True)
        for leaf, (one, other) in enumerate(sides):
            yield _element(start, leaf), one, other
        progress(stop, common)


def _element(start: int, leaf: int) -> _Where:
    return lambda place: f"sample {start + place[0]}, leaf {leaf}, element {place[1:]}"


def _bytes(left: Reader, right: Reader, progress: Progress) -> Iterator[tuple[_Where, NDArray[Any], NDArray[Any]]]:
    """Read the bytes behind the headers; a byte that only the longer file has is a difference of lengths alone."""
    sides = [np.memmap(reader.path, np.uint8, "r")[reader.header.nbytes :] for reader in (left, right)]
    common = min(map(len, sides))
    for start in range(0, common, _CHUNK_BYTES):
        one, other = (side[start : start + _CHUNK_BYTES] for side in sides)
        size = min(len(one), len(other))
        yield _byte(start), one[:size], other[:size]
        progress(start + size, common)


def _byte(start: int) -> _Where:
    return lambda place: f"byte {start + place[0]} behind the header"


def _differ(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    wrong: NDArray[np.bool_] = (one != other) & ~((one != one) & (other != other))
    return wrong


def _distance(one: NDArray[Any], other: NDArray[Any]) -> int | float:
    """Find the largest |one - other| of values that differ; exact for integers, which are unsigned."""
    if one.dtype.kind == "u":
        return int((np.maximum(one, other) - np.minimum(one, other)).max())
    with np.errstate(over="ignore", invalid="ignore"):
        apart = np.abs(one.astype(np.float64) - other.astype(np.float64))
    return float(np.where(np.isnan(apart), np.inf, apart).max())
