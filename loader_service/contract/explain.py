"""Origin of the rows of a batch: the way to the sample behind a loss spike.

Owns `Explanation`. Invariant: it is computed from the step alone; no sample is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.rng import STREAM_AUGMENTATION, STREAM_TRANSFORM, derive_slots

__all__ = ["Explanation", "Rows"]


@dataclass(frozen=True, slots=True)
class Rows:
    """Dataset indices of a batch, int64 [B], and the source of each, int64 [B], where there are several."""

    indices: NDArray[np.int64]
    sources: NDArray[np.int64] | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """One batch: its place in the run and, for each slot, the dataset index, the source and the derived keys.

    transform_keys, augmentation_keys: uint64 [B], the keys of streams 0 and 1; `SampleRng(key)` gives their numbers.
    """

    step: int
    epoch: int
    step_in_epoch: int
    rows: Rows
    transform_keys: NDArray[np.uint64]
    augmentation_keys: NDArray[np.uint64]

    @classmethod
    def of(cls, seed: int, step: int, epoch: int, step_in_epoch: int, rows: Rows) -> Self:
        """The explanation of the batch at (epoch, step_in_epoch) whose rows are known."""
        slots = np.arange(len(rows.indices), dtype=np.uint64)
        keys = [
            derive_slots(seed, epoch, step_in_epoch, slots, stream)
            for stream in (STREAM_TRANSFORM, STREAM_AUGMENTATION)
        ]
        return cls(step, epoch, step_in_epoch, rows, *keys)

    def table(self) -> list[dict[str, int | None]]:
        """One row a slot, as plain values."""
        sources = [None] * len(self.rows.indices) if self.rows.sources is None else self.rows.sources.tolist()
        columns = (self.rows.indices.tolist(), sources, self.transform_keys.tolist(), self.augmentation_keys.tolist())
        names = ("slot", "index", "source", "transform_key", "augmentation_key")
        return [dict(zip(names, (slot, *row), strict=True)) for slot, row in enumerate(zip(*columns, strict=True))]
