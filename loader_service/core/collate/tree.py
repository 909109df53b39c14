"""Samples that are trees: dicts, tuples and lists of arrays and numbers, nested as one likes.

Owns `leaves`. Invariant: the leaves come in the order of the tree (a dict's keys as they stand in the sample), named by
their path: {"image": a, "meta": {"id": b}} -> "image", "meta.id"; a tuple's parts are "0", "1", …

A lone array or number is one leaf, named by the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["INDICES", "leaves"]

INDICES = "indices"
"""The tensor that every collator adds: the dataset indices of the rows."""


def leaves(sample: Any, name: str) -> dict[str, NDArray[Any]]:
    """Path -> array of each leaf of `sample`; `name` is that of a lone leaf. Raises TypeError, ValueError."""
    found: dict[str, NDArray[Any]] = {}
    _collect(sample, "", name, found)
    if INDICES in found:
        raise ValueError(f"the sample has a part named {INDICES!r}, which is the batch's own; rename it")
    return found


def _collect(part: Any, path: str, name: str, found: dict[str, NDArray[Any]]) -> None:
    if isinstance(part, Mapping):
        children = [(str(key), child) for key, child in part.items()]
    elif isinstance(part, tuple | list):
        children = [(str(place), child) for place, child in enumerate(part)]
    else:
        found[path or name] = _array(part, path or name)
        return
    for key, child in children:
        _collect(child, f"{path}.{key}" if path else key, name, found)


def _array(part: Any, path: str) -> NDArray[Any]:
    array = np.asarray(part)
    if array.dtype.kind not in "biufc":
        raise TypeError(f"part {path!r} is {type(part).__name__} of {array.dtype}; a batch holds numbers only")
    return array
