"""The protocol of collators, and what a collator may know of its batch.

Owns `Collator`, `BatchContext` and `SlotError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.checks import checked_int, shown
from loader_service.contract.layout import Layout
from loader_service.errors import ArgumentError

__all__ = ["BatchContext", "Collator", "Padding", "SlotError"]

Padding = Literal["nothing", "widths", "lengths"]

Sample_contra = TypeVar("Sample_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class BatchContext:
    """The place of a batch, or of a rank's rows of it: all that a collator may depend on besides the samples.

    Attributes:
        seed: the stream's.
        epoch: counted from 0.
        step_in_epoch: in [0, S).
        indices: dataset indices of the rows, int64 [B].
        first_slot: the slot of the first row in the global batch.
        example: a sample of the global batch, where there are no rows.
        least_width: the width that the global batch needs, in columns; 0 where only these rows count.
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
    """Raised by a collator for one sample; the stream makes a BuildError of it that names slot and dataset index (R39).

    Args:
        row: the sample's place among the samples.
        cause: what is wrong with it.

    Raises:
        ArgumentError: `row` is no integer, or `cause` no exception.
    """

    def __init__(self, row: int, cause: Exception) -> None:
        self.row, self.cause = checked_int("row", row), cause
        if not isinstance(cause, Exception):
            raise ArgumentError(f"cause is {shown(cause)}; it must be an exception, such as ValueError(text)")
        super().__init__(self.row, cause)

    def __str__(self) -> str:
        return f"row {self.row}: {self.cause}"


class Collator(Protocol[Sample_contra]):
    """The two steps from samples to the bytes of a batch; write a class with these to make batches of your own."""

    @property
    def pads(self) -> Padding:
        """The parts that are filled up to the size of the largest sample.

        "widths" (of images; never less than `context.least_width`, so that a dataset's `widths` are worth asking for),
        "lengths" (of sequences), or "nothing".
        """
        ...

    def plan(self, samples: Sequence[Sample_contra], context: BatchContext) -> Layout:
        """Plan the tensors of the batch, without a random number and without writing.

        Args:
            samples: in the order of the rows; none where a rank has no rows.
            context: the batch's place.

        Raises:
            SlotError: a sample does not fit the others.
        """
        ...

    def write(
        self, samples: Sequence[Sample_contra], context: BatchContext, tensors: Mapping[str, NDArray[Any]]
    ) -> None:
        """Write every byte of every tensor (R65).

        Args:
            samples: those that were planned. They are let go afterwards.
            context: the same.
            tensors: writeable views of the planned layout, by name, with any content.

        Raises:
            SlotError: a sample cannot be written.
        """
        ...
