"""Sequences of different lengths, padded to one (R49, R50).

Owns `PadCollator`. Fails with SlotError where samples differ in more than the length of their sequences.

    padded length Lp = max L_i rounded up to a multiple of `multiple`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.checks import MAX_N, checked_int, set_fields
from loader_service.contract.collate.collator import BatchContext, Padding, SlotError
from loader_service.contract.collate.tree import INDICES, leaves, row_leaves
from loader_service.contract.layout import Layout, align

__all__ = ["PadCollator"]

_Leaves = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class PadCollator:
    """Pads each sequence along its first axis: tokens for language models, features of speech, and the like.

    Tensors: for each leaf of shape [L_i, ...] one [B, Lp, ...] in its dtype, filled up with pad_value, and
    NAME_lengths int32 [B]; numbers are stacked, [B]; indices int64 [B]. Leaves are named as by StackCollator; name:
    that of a sample which is a lone sequence. Each part has its own Lp. Raises ArgumentError.
    """

    multiple: int = 1
    pad_value: float = 0
    name: str = "tokens"
    pads: ClassVar[Padding] = "lengths"

    def __post_init__(self) -> None:
        set_fields(self, multiple=checked_int("multiple", self.multiple, 1, MAX_N))

    def plan(self, samples: Sequence[Any], context: BatchContext) -> Layout:
        """The layout of `samples`. Raises SlotError, and ValueError for a pad_value that a part's dtype cannot hold."""
        first = row_leaves(0, samples[0], self.name) if samples else leaves(context.example, self.name)
        found = [_checked(row, sample, self.name, first) for row, sample in enumerate(samples)]
        tensors: list[tuple[str, Any, tuple[int, ...]]] = []
        for path, array in first.items():
            if array.ndim == 0:
                tensors.append((path, array.dtype, (len(samples),)))
                continue
            _check_pad_value(self.pad_value, path, array.dtype)
            longest = max((len(sample[path]) for sample in found), default=0)
            shape = (len(samples), align(longest, self.multiple), *array.shape[1:])
            tensors += [(path, array.dtype, shape), (f"{path}_lengths", np.int32, (len(samples),))]
        return Layout.plan([*tensors, (INDICES, np.int64, (len(samples),))])

    def write(self, samples: Sequence[Any], context: BatchContext, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Fill `tensors` (views of the planned layout, any old content)."""
        tensors[INDICES][:] = context.indices
        for row, sample in enumerate(samples):
            for path, array in leaves(sample, self.name).items():
                if array.ndim == 0:
                    tensors[path][row] = array
                    continue
                tensors[path][row, : len(array)] = array
                tensors[path][row, len(array) :] = self.pad_value
                tensors[f"{path}_lengths"][row] = len(array)


def _check_pad_value(pad_value: float, path: str, dtype: np.dtype[Any]) -> None:
    """numpy would cut 0.5 to 0 without a word."""
    if dtype.kind not in "iu":
        return
    limits = np.iinfo(dtype)
    if not (float(pad_value).is_integer() and limits.min <= pad_value <= limits.max):
        raise ValueError(f"pad_value {pad_value} cannot stand in part {path!r}, which is {dtype}; give one that can")


def _kinds(found: _Leaves) -> dict[str, tuple[Any, ...]]:
    """What must agree: dtype, number of axes, and all axes but the first."""
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
