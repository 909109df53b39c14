"""Samples of one fixed shape, stacked (R48).

Owns `StackCollator`. Fails with SlotError where a sample has other parts, shapes or dtypes than the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.checks import checked_text, set_fields
from loader_service.contract.collate.collator import BatchContext, Padding, SlotError
from loader_service.contract.collate.columns import Columns, Kind, RowsOfBlock
from loader_service.contract.collate.tree import INDICES, arrays_of_one_kind, leaves, row_leaves
from loader_service.contract.layout import Layout

__all__ = ["StackCollator"]


@dataclass(frozen=True)
class StackCollator:
    """Stacks arrays, numbers, and nested mappings, tuples and lists of them, along a new first axis (R48).

    Tensors: one [B, ...] for each leaf, in the sample's dtype, named by its path ("image", "meta.id", "0"), and indices
    int64 [B].

    Args:
        name: that of a sample which is a lone array or number.

    Raises:
        ArgumentError: `name` is no text.
    """

    name: str = "data"
    pads: ClassVar[Padding] = "nothing"

    def __post_init__(self) -> None:
        set_fields(self, name=checked_text("name", self.name))

    def plan(self, samples: Sequence[Any], context: BatchContext) -> Layout:
        """Plan the layout of `samples`. Raises SlotError where a sample does not fit the first."""
        if isinstance(samples, Columns):
            return _layout(samples.kinds(self.name), len(samples))
        first = row_leaves(0, samples[0], self.name) if samples else leaves(context.example, self.name)
        expected = {path: (array.dtype, array.shape) for path, array in first.items()}
        if arrays_of_one_kind(samples) is None:
            for row, sample in enumerate(samples):
                _check(row, sample, self.name, expected)
        return _layout(tuple((path, dtype, shape) for path, (dtype, shape) in expected.items()), len(samples))

    def write(self, samples: Sequence[Any], context: BatchContext, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Fill `tensors` (views of the planned layout, any old content). Raises SlotError."""
        tensors[INDICES][:] = context.indices
        if isinstance(samples, Columns):
            paths = (path for path in tensors if path != INDICES)
            for path, column in zip(paths, samples.leaves(), strict=True):
                _write_column(column, tensors[path])
            return
        arrays = arrays_of_one_kind(samples)
        if arrays is None:
            for row, sample in enumerate(samples):
                for path, array in leaves(sample, self.name).items():
                    tensors[path][row] = array
            return
        for path, parts in zip((path for path in tensors if path != INDICES), arrays, strict=True):
            length, *rest = parts[0].shape
            np.concatenate(parts, out=tensors[path].reshape(len(parts) * length, *rest))  # [B, L, …] -> [B · L, …]


@lru_cache(maxsize=256)
def _layout(kinds: tuple[Kind, ...], count: int) -> Layout:
    tensors = [(path, dtype, (count, *shape)) for path, dtype, shape in kinds]
    return Layout.plan([*tensors, (INDICES, np.int64, (count,))])


def _write_column(column: NDArray[Any] | RowsOfBlock, tensor: NDArray[Any]) -> None:
    if isinstance(column, RowsOfBlock):
        column.write(tensor)
    else:
        tensor[...] = column


def _check(row: int, sample: Any, name: str, expected: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> None:
    found = {path: (array.dtype, array.shape) for path, array in row_leaves(row, sample, name).items()}
    if found == expected:
        return
    if list(found) != list(expected):
        problem = f"the sample has the parts {list(found)} and the first has {list(expected)}"
    else:
        path = next(path for path in found if found[path] != expected[path])
        (dtype, shape), (first_dtype, first_shape) = found[path], expected[path]
        problem = f"part {path!r} is {dtype}{list(shape)} and the first sample's is {first_dtype}{list(first_shape)}"
    raise SlotError(row, ValueError(f"{problem}; all samples of a batch must agree"))
