"""Sequences of different lengths, padded to one (R49, R50).

Owns `PadCollator`. Fails with SlotError where samples differ in more than the length of their sequences.

    padded length Lp = max L_i rounded up to a multiple of `multiple`
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.buffers import scratch
from loader_service.contract.checks import MAX_N, checked_int, checked_number, checked_text, set_fields, shown
from loader_service.contract.collate.collator import BatchContext, Padding, SlotError
from loader_service.contract.collate.tree import INDICES, leaves, row_leaves
from loader_service.contract.fused import compiles
from loader_service.contract.fused.rows import pad_rows
from loader_service.contract.layout import Layout, align
from loader_service.errors import ArgumentError

__all__ = ["PadCollator"]

_Leaves = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class PadCollator:
    """Pads each sequence along its first axis: tokens for language models, features of speech, and the like (R49).

    Tensors: for each leaf of shape [L_i, ...] one [B, Lp, ...] in its dtype, filled up with its pad value, and
    NAME_lengths int32 [B]; numbers are stacked, [B]; indices int64 [B]. Leaves are named as by StackCollator. Each part
    has its own Lp.

    Args:
        multiple: Lp is a multiple of it; at least 1.
        pad_value: what all parts are filled up with, or a mapping from names of parts to theirs; a part that it does
            not name is filled up with 0. A part's dtype must be able to hold it (R50): bool holds False and True only.
        name: that of a sample which is a lone sequence.

    Raises:
        ArgumentError: an argument outside its range.

    >>> PadCollator(multiple=8, pad_value={"ids": 50256, "mask": False})
    PadCollator(multiple=8, pad_value={'ids': 50256, 'mask': False}, name='tokens')
    """

    multiple: int = 1
    pad_value: float | Mapping[str, float] = 0
    name: str = "tokens"
    pads: ClassVar[Padding] = "lengths"

    def __post_init__(self) -> None:
        multiple = checked_int("multiple", self.multiple, 1, MAX_N)
        pad_value = _checked_pad_value(self.pad_value)
        set_fields(self, multiple=multiple, pad_value=pad_value, name=checked_text("name", self.name))

    def plan(self, samples: Sequence[Any], context: BatchContext) -> Layout:
        """Plan the layout of `samples`.

        Raises:
            SlotError: a sample that differs from the first in more than its lengths.
            ArgumentError: a pad value that a part's dtype cannot hold, or one for a part that there is not.
        """
        first = row_leaves(0, samples[0], self.name) if samples else leaves(context.example, self.name)
        found = [_checked(row, sample, self.name, first) for row, sample in enumerate(samples)]
        if isinstance(self.pad_value, dict) and not self.pad_value.keys() <= first.keys():
            unknown = sorted(self.pad_value.keys() - first.keys())
            raise ArgumentError(f"pad_value names the parts {unknown}; those of a sample are {list(first)}")
        tensors: list[tuple[str, Any, tuple[int, ...]]] = []
        for path, array in first.items():
            if array.ndim == 0:
                tensors.append((path, array.dtype, (len(samples),)))
                continue
            _check_holds(array.dtype, self._value(path), path)
            longest = max((len(sample[path]) for sample in found), default=0)
            shape = (len(samples), align(longest, self.multiple), *array.shape[1:])
            tensors += [(path, array.dtype, shape), (f"{path}_lengths", np.int32, (len(samples),))]
        return Layout.plan([*tensors, (INDICES, np.int64, (len(samples),))])

    def write(self, samples: Sequence[Any], context: BatchContext, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Fill `tensors` (views of the planned layout, any old content)."""
        tensors[INDICES][:] = context.indices
        found = [leaves(sample, self.name) for sample in samples]
        for path, example in found[0].items() if found else ():
            arrays = [parts[path] for parts in found]
            if example.ndim == 0:
                tensors[path][:] = arrays
                continue
            tensors[f"{path}_lengths"][:] = [len(array) for array in arrays]
            write = _write_compiled if compiles() else _write_rows
            write(arrays, self._value(path), tensors[path])

    def _value(self, path: str) -> float:
        """The number that the part `path` is filled up with."""
        return self.pad_value.get(path, 0) if isinstance(self.pad_value, Mapping) else self.pad_value


def _write_rows(arrays: Sequence[NDArray[Any]], pad_value: float, tensor: NDArray[Any]) -> None:
    for row, array in zip(tensor, arrays, strict=True):
        row[: len(array)] = array
        row[len(array) :] = pad_value


def _write_compiled(arrays: Sequence[NDArray[Any]], pad_value: float, tensor: NDArray[Any]) -> None:
    """The same by one kernel, out of a block into which the arrays are copied."""
    if not tensor.size:
        return
    dtype = tensor.dtype
    sizes = np.array([array.nbytes for array in arrays], np.int64)
    block = scratch("sequences", (int(sizes.sum()),), np.uint8)
    np.concatenate([array.reshape(-1) for array in arrays], out=block.view(dtype), casting="no")
    pad = np.full(1, pad_value, dtype).view(np.uint8)
    rows = tensor.reshape(-1).view(np.uint8).reshape(len(arrays), -1)  # [B, Lp, …] -> [B, bytes]
    pad_rows(block, np.cumsum(sizes) - sizes, sizes, pad, rows)


def _checked_pad_value(pad_value: Any) -> float | dict[str, float]:
    if not isinstance(pad_value, Mapping):
        return checked_number("pad_value", pad_value)
    return {
        checked_text("a part of pad_value", path): checked_number(f"pad_value[{path!r}]", value)
        for path, value in pad_value.items()
    }


def _check_holds(dtype: np.dtype[Any], value: float, path: str) -> None:
    """Refuse what numpy would change without a word: 0.5 to 0, 7 to True, 70000 in float16 to infinity."""
    if not _holds(dtype, value):
        instead = {path: False if dtype.kind == "b" else 0}
        raise ArgumentError(
            f"pad_value {shown(value)} cannot stand in part {path!r}, which is {dtype}; give each one that can, as "
            f"pad_value={instead} does"
        )


def _holds(dtype: np.dtype[Any], value: float) -> bool:
    if dtype.kind == "b":
        return value in (0, 1)
    if isinstance(value, bool):
        return False
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return math.isfinite(value) and value == int(value) and int(limits.min) <= value <= int(limits.max)
    try:
        with np.errstate(all="ignore"):
            held = complex(np.array(float(value)).astype(dtype)).real
    except OverflowError:  # an int beyond all floats
        return False
    if math.isfinite(value):
        return math.isfinite(held) and (value != 0 or held == 0)
    return held == value or (math.isnan(held) and math.isnan(value))


def _kinds(found: _Leaves) -> dict[str, tuple[Any, ...]]:
    """The properties that must agree: dtype, number of axes, and all axes but the first."""
    return {path: (array.dtype, array.ndim, array.shape[1:]) for path, array in found.items()}


def _checked(row: int, sample: Any, name: str, first: _Leaves) -> _Leaves:
    found = row_leaves(row, sample, name)
    if _kinds(found) != _kinds(first):
        described = [
            {path: f"{array.dtype}{list(array.shape)}" for path, array in one.items()} for one in (found, first)
        ]
        problem = f"the sample is {described[0]} and the first is {described[1]}; only the lengths may differ"
        raise SlotError(row, ValueError(problem))
    return found
