"""Whether two builds of one step are the same batch, and where they differ.

Owns `differences`. Invariant: an empty list says that names, dtypes, shapes and every byte of every tensor are the
same; what lies between the tensors does not count. Bytes are compared, not numbers: NaN is itself, -0.0 is not 0.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["differences"]

_Tensors = Mapping[str, NDArray[Any]]


def differences(first: _Tensors, second: _Tensors) -> list[str]:
    """In words, one text for each tensor that differs, in the order of the first build.

    >>> differences({"x": np.array([1, 2, 3])}, {"x": np.array([1, 5, 4])})
    ["tensor 'x': 2 of 3 elements differ, the first at [1]: 2, then 5"]
    """
    found = [
        f"tensor {name!r}: {_difference(first.get(name), second.get(name))}"
        for name in [*first, *(name for name in second if name not in first)]
        if not _same(first.get(name), second.get(name))
    ]
    if not found and list(first) != list(second):
        return [f"the order of the tensors: {list(first)}, then {list(second)}"]
    return found


def _same(one: NDArray[Any] | None, other: NDArray[Any] | None) -> bool:
    if one is None or other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return bool(np.array_equal(_bytes(one), _bytes(other)))


def _difference(one: NDArray[Any] | None, other: NDArray[Any] | None) -> str:
    if one is None or other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
        return f"{_words(one)}, then {_words(other)}"
    unlike = (_bytes(one) != _bytes(other)).any(axis=1)  # bool [elements]
    place = np.unravel_index(int(unlike.argmax()), one.shape)
    with np.errstate(all="ignore"):  # a signalling NaN is no reason to warn
        values = f"{one[place]}, then {other[place]}"
    where = [int(coordinate) for coordinate in place]
    return f"{int(unlike.sum())} of {unlike.size} elements differ, the first at {where}: {values}"


def _bytes(tensor: NDArray[Any]) -> NDArray[np.uint8]:
    """uint8 [elements, bytes of one], without a copy where the tensor is contiguous."""
    flat = np.ascontiguousarray(tensor).reshape(-1)  # [...] -> [elements]
    return flat.view(np.uint8).reshape(flat.size, tensor.dtype.itemsize)


def _words(tensor: NDArray[Any] | None) -> str:
    return "nothing" if tensor is None else f"{tensor.dtype}{list(tensor.shape)}"
