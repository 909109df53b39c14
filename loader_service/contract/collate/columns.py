"""The samples of a batch as columns: one array for each part, with the rows along its first axis.

Owns `Columns`, which a dataset's `read_rows` may return instead of a list of samples, and `RowsOfBlock`, a part whose
rows are copied out of a block of memory, such as a mapped file, when the batch is written and not before. Invariant:
columns are a sequence of the samples that they stand for, so every collator can read them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.buffers import scratch
from loader_service.contract.collate.collator import SlotError
from loader_service.contract.collate.tree import INDICES, row_leaves
from loader_service.contract.fused import compiles
from loader_service.contract.fused.rows import gather_rows
from loader_service.errors import ArgumentError

__all__ = ["Columns", "Kind", "RowsOfBlock"]

Kind = tuple[str, np.dtype[Any], tuple[int, ...]]
"""Path, dtype and shape of a part."""

Verify = Callable[[NDArray[Any]], None]
"""Looks at the rows of a part once they are read, [B, ...]. Raises SlotError for the first that is wrong."""


@dataclass(frozen=True, slots=True, eq=False)
class RowsOfBlock:
    """Rows of one dtype and shape that begin at given bytes of a block.

    Args:
        block: uint8 [V], contiguous.
        starts: int64 [B], of each row's first byte.
        dtype, shape: of one row as it stands in the batch.
        verify: looks at what was read, before it is converted.
        stored: the dtype in the block, where it is another.

    Raises:
        ArgumentError: a block of another kind, or rows that do not lie in it.
    """

    block: NDArray[np.uint8]
    starts: NDArray[np.int64]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    verify: Verify | None = None
    stored: np.dtype[Any] | None = None

    def __post_init__(self) -> None:
        if self.block.dtype != np.uint8 or self.block.ndim != 1 or not self.block.flags.c_contiguous:
            raise ArgumentError(
                f"a block is {self.block.dtype}{list(self.block.shape)}; it must be contiguous uint8 [V]"
            )
        if self.starts.dtype != np.int64 or self.starts.ndim != 1:
            raise ArgumentError(f"starts are {self.starts.dtype}{list(self.starts.shape)}; they must be int64 [B]")
        last = len(self.block) - self.row_bytes
        if len(self.starts) and not 0 <= int(self.starts.min()) <= int(self.starts.max()) <= last:
            raise ArgumentError(
                f"rows of {self.row_bytes} bytes begin in [{self.starts.min()}, {self.starts.max()}]; "
                f"the block has {len(self.block)} bytes"
            )

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def row_bytes(self) -> int:
        return (self.stored or self.dtype).itemsize * prod(self.shape)

    def read(self) -> NDArray[Any]:
        """All rows in memory of their own, [B, *shape]. Raises SlotError."""
        rows = np.empty((len(self), *self.shape), self.dtype)
        self.write(rows)
        return rows

    def write(self, rows: NDArray[Any]) -> None:
        """Fill `rows`, [B, *shape], contiguous, of the same dtype. Raises SlotError."""
        if self.stored in (None, self.dtype):
            self._copy(rows)
            return
        stored = scratch("rows of a block", rows.shape, self.stored)
        self._copy(stored)
        np.copyto(rows, stored, casting="unsafe")  # `verify` has seen that the values fit

    def _copy(self, rows: NDArray[Any]) -> None:
        size = self.row_bytes
        if rows.size:
            as_bytes = rows.reshape(-1).view(np.uint8).reshape(len(self), size)  # [B, *shape] -> [B, bytes]
            if compiles():
                gather_rows(self.block, np.ascontiguousarray(self.starts), as_bytes)
            else:
                windows = (len(self.block) - size + 1, size)  # a row at every byte: a view of overlapping rows
                as_bytes[...] = np.ndarray(windows, np.uint8, self.block.data, 0, (1, 1))[self.starts]
        if self.verify is not None:
            self.verify(rows)


@dataclass(frozen=True, slots=True, eq=False)
class Columns(Sequence[Any]):
    """B samples as one tree: dicts, tuples and lists whose leaves are arrays [B, ...] or `RowsOfBlock`.

    Raises:
        ArgumentError: a leaf of another length.

    >>> Columns({"x": np.array([[1, 2], [3, 4]])}, 2)[1]
    {'x': array([3, 4])}
    """

    tree: Any
    size: int

    def __post_init__(self) -> None:
        for leaf in _leaves(self.tree):
            if len(leaf) != self.size:
                raise ArgumentError(f"a column has {len(leaf)} rows; the others have {self.size}")

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, row: int, /) -> Any: ...
    @overload
    def __getitem__(self, row: slice, /) -> Sequence[Any]: ...
    def __getitem__(self, row: int | slice, /) -> Any:
        """The sample of one row; of a slice, a list of them. Raises SlotError."""
        if isinstance(row, slice):
            return [self[one] for one in range(*row.indices(len(self)))]
        place = range(self.size)[row]  # negative places count from the end; outside is IndexError
        return _mapped(self.tree, lambda leaf: _row(leaf, place))

    def kinds(self, name: str) -> tuple[Kind, ...]:
        """Path, dtype and shape of each part of a sample, in the order of the tree; `name` is that of a lone one.

        Nothing is read. Raises SlotError for names that a batch cannot have.
        """
        if type(self.tree) is dict and all(type(leaf) is RowsOfBlock for leaf in self.tree.values()):
            found = tuple((str(key), leaf.dtype, leaf.shape) for key, leaf in self.tree.items())
            if INDICES not in self.tree and len({path for path, _, _ in found}) == len(found):
                return found
        parts = row_leaves(0, _mapped(self.tree, _example), name)
        return tuple((path, array.dtype, array.shape) for path, array in parts.items())

    def leaves(self) -> list[NDArray[Any] | RowsOfBlock]:
        """The columns in the order of the tree."""
        return _leaves(self.tree)


def _example(leaf: Any) -> NDArray[Any]:
    if isinstance(leaf, RowsOfBlock):
        return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
    return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape[1:])


def _row(leaf: Any, row: int) -> Any:
    if not isinstance(leaf, RowsOfBlock):
        return leaf[row]
    try:
        return replace(leaf, starts=leaf.starts[row : row + 1]).read()[0]
    except SlotError as error:
        raise SlotError(row, error.cause) from error


def _leaves(tree: Any) -> list[Any]:
    found: list[Any] = []
    _mapped(tree, found.append)
    return found


def _mapped(tree: Any, act: Callable[[Any], Any]) -> Any:
    """The same tree with `act(leaf)` in the place of each leaf."""
    if isinstance(tree, Mapping):
        return {key: _mapped(child, act) for key, child in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(_mapped(child, act) for child in tree))
    if isinstance(tree, tuple | list):
        return type(tree)(_mapped(child, act) for child in tree)
    return act(tree)
