"""Samples that are trees: mappings, tuples and lists of arrays and numbers, nested as one likes (R47).

Owns `leaves` and `row_leaves`. Invariant: the leaves come in the order of the tree (a mapping's keys as they stand in
the sample), named by their path (R47): {"image": a, "meta": {"id": b}} -> "image", "meta.id"; a tuple's parts are "0",
"1", …, and a namedtuple's have the names of its fields.

A lone array or number is one leaf, named by the caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.collate.collator import SlotError
from loader_service.contract.layout import CARRIED, is_carried

__all__ = ["INDICES", "arrays_of_one_kind", "leaves", "row_leaves"]

INDICES = "indices"
"""The tensor that every collator adds: the dataset indices of the rows."""
_ALWAYS_CARRIED = frozenset("?bBhHiIlLqQefdFD")
"""Characters of dtypes that need no closer look."""


def leaves(sample: Any, name: str) -> dict[str, NDArray[Any]]:
    """Find the arrays of a sample.

    Args:
        sample: a tree, or a lone array or number.
        name: that of a lone leaf.

    Returns:
        Path -> array of each leaf.

    Raises:
        ValueError: two leaves of one path, or one with the batch's own name "indices".
        TypeError: a leaf that no batch carries.
    """
    found: dict[str, NDArray[Any]] = {}
    _collect(sample, "", name, found)
    if INDICES in found:
        raise ValueError(f"the sample has a part named {INDICES!r}, which is the batch's own; rename it")
    return found


def row_leaves(row: int, sample: Any, name: str) -> dict[str, NDArray[Any]]:
    """Find the arrays of the sample of one row, as `leaves` does. Raises SlotError."""
    try:
        return leaves(sample, name)
    except (TypeError, ValueError) as error:
        raise SlotError(row, error) from error


def arrays_of_one_kind(samples: Sequence[Any]) -> list[list[NDArray[Any]]] | None:
    """Look at all samples at once: the usual case, in which nothing has to be looked at one by one.

    Returns:
        The arrays of each part, in the order of the tree, where every sample is an array, or a flat dict or tuple of
        arrays, of the same parts, dtypes and shapes, with at least one axis; else None.
    """
    if not samples:
        return None
    kind = type(samples[0])
    if {*map(type, samples)} != {kind}:
        return None
    if kind is dict:
        keys = list(samples[0])
        if any(list(sample) != keys for sample in samples):
            return None
        columns = [[sample[key] for sample in samples] for key in keys]
    elif kind is tuple:
        if len({*map(len, samples)}) != 1:
            return None
        columns = [list(column) for column in zip(*samples, strict=True)]
    elif kind is np.ndarray:
        columns = [list(samples)]
    else:
        return None
    return columns if all(map(_is_of_one_kind, columns)) else None


def _is_of_one_kind(column: list[Any]) -> bool:
    if {*map(type, column)} != {np.ndarray}:
        return False
    dtype, shape = column[0].dtype, column[0].shape
    return bool(shape) and all(array.dtype == dtype and array.shape == shape for array in column)


def _collect(part: Any, path: str, name: str, found: dict[str, NDArray[Any]]) -> None:
    if isinstance(part, Mapping):
        children = [(str(key), child) for key, child in part.items()]
    elif isinstance(part, tuple) and hasattr(part, "_fields"):  # a namedtuple
        children = list(zip(map(str, part._fields), part, strict=True))
    elif isinstance(part, tuple | list):
        children = [(str(place), child) for place, child in enumerate(part)]
    else:
        path = path or name
        if path in found:
            raise ValueError(f"the sample has two parts named {path!r}; rename one")
        found[path] = _array(part, path)
        return
    for key, child in children:
        _collect(child, f"{path}.{key}" if path else key, name, found)


def _array(part: Any, path: str) -> NDArray[Any]:
    if isinstance(part, np.ma.MaskedArray):
        raise TypeError(f"part {path!r} is a masked array, and a batch has no masks; give part.filled(…)")
    array = np.asarray(part)
    if array.dtype.char not in _ALWAYS_CARRIED and not is_carried(array.dtype):
        raise TypeError(f"part {path!r} is {type(part).__name__} of {array.dtype}; {CARRIED}")
    return array
