"""What a stream asks of a collator, and what a collator may know of its batch.

Owns the `Collator` protocol, `BatchContext` and `SlotError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.layout import Layout

__all__ = ["BatchContext", "Collator", "Padding", "SlotError"]

Padding = Literal["nothing", "widths", "lengths"]

Sample_contra = TypeVar("Sample_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class BatchContext:
    """Where a batch, or a rank's rows of it, stand: all that a collator may depend on besides the samples.

    indices: dataset indices of the rows, int64 [B]; first_slot: the slot of the first row in the global batch;
    example: a sample of the global batch, where there are no rows; least_width: the width that the global batch
    needs, 0 where only these rows count.
    """

    seed: int
    epoch: int
    step_in_epoch: int
    indices: NDArray[np.int64]
    first_slot: int = 0
    example: Any = None
    least_width: int = 0

    @property
    def slots(self) -> NDArray[np.uint64]:
        """The slots of the rows in the global batch, uint64 [B]."""
        return np.arange(self.first_slot, self.first_slot + len(self.indices), dtype=np.uint64)


class SlotError(Exception):
    """What a collator raises for one sample: `row` is its place among the samples, `cause` what is wrong."""

    def __init__(self, row: int, cause: Exception) -> None:
        super().__init__(f"row {row}: {cause}")
        self.row, self.cause = row, cause


class Collator(Protocol[Sample_contra]):
    """Plans a layout for a batch of samples, then writes them into views of that layout.

    pads: what it fills up to that of the largest sample: "widths" (of images; never less than `context.least_width`, so
    that a dataset's `widths` are worth asking for), "lengths" (of sequences), or "nothing".
    """

    @property
    def pads(self) -> Padding: ...

    def plan(self, samples: Sequence[Sample_contra], context: BatchContext) -> Layout: ...
    def write(
        self, samples: Sequence[Sample_contra], context: BatchContext, tensors: Mapping[str, NDArray[Any]]
    ) -> None: ...
