"""Sequences of different lengths, padded to one.

Owns `PadCollator`. Fails with SlotError where samples differ in more than the length of their sequences.

    padded length Lp = max L_i rounded up to a multiple of `multiple`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from loader_service.core.collate.collator import BatchContext, SlotError
from loader_service.core.collate.tree import INDICES, leaves
from loader_service.core.layout import Layout, align
from loader_service.errors import ArgumentError

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
    pads_widths: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.multiple < 1:
            raise ArgumentError(f"multiple is {self.multiple}; it must be at least 1")

    def plan(self, samples: Sequence[Any], context: BatchContext) -> Layout:
        """The layout of `samples`. Raises SlotError."""
        first = leaves(samples[0] if samples else context.example, self.name)
        found = [_checked(row, sample, self.name, first) for row, sample in enumerate(samples)]
        tensors: list[tuple[str, Any, tuple[int, ...]]] = []
        for path, array in first.items():
            if array.ndim == 0:
                tensors.append((path, array.dtype, (len(samples),)))
                continue
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


def _kinds(found: _Leaves) -> dict[str, tuple[Any, ...]]:
    """What must agree: dtype, number of axes, and all axes but the first."""
    return {path: (array.dtype, array.ndim, array.shape[1:]) for path, array in found.items()}


def _checked(row: int, sample: Any, name: str, first: _Leaves) -> _Leaves:
    try:
        found = leaves(sample, name)
    except (TypeError, ValueError) as error:
        raise SlotError(row, error) from error
    if _kinds(found) != _kinds(first):
        described = [
            {path: f"{array.dtype}{list(array.shape)}" for path, array in one.items()} for one in (found, first)
        ]
        problem = f"the sample is {described[0]} and the first is {described[1]}; only the lengths may differ"
        raise SlotError(row, ValueError(problem))
    return found
