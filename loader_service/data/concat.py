"""Several datasets as one.

Owns `ConcatDataset`. Invariant: the samples of dataset k lie at [start[k], start[k] + len(dataset k)), in order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import index as as_index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.sample import Dataset
from loader_service.errors import ArgumentError

__all__ = ["ConcatDataset"]


class ConcatDataset:
    """Datasets one behind the other; `sizes` is what a MixingSampler asks for. Raises ArgumentError for none at all.

    >>> both = ConcatDataset([[10, 11], [20, 21, 22]])
    >>> both[2], both.sizes
    (20, (2, 3))
    """

    def __init__(self, datasets: Sequence[Dataset[Any]]) -> None:
        if not datasets:
            raise ArgumentError("there are no datasets to put together; give at least one")
        self.datasets = list(datasets)
        self.sizes = tuple(len(dataset) for dataset in self.datasets)
        self._ends = list(accumulate(self.sizes))
        if all(hasattr(dataset, "widths") for dataset in self.datasets):
            self.widths = self._widths

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int, /) -> Any:
        """The sample at 0 <= index < len(self). Raises ArgumentError."""
        source, offset = self.locate(index)
        return self.datasets[source][offset]

    def locate(self, index: int) -> tuple[int, int]:
        """Which dataset an index belongs to, and its place there. Raises ArgumentError."""
        index = as_index(index)
        if not 0 <= index < len(self):
            raise ArgumentError(f"index is {index}; the dataset's indices lie in [0, {len(self)})")
        source = bisect_right(self._ends, index)
        return source, index - (self._ends[source] - self.sizes[source])

    def _widths(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The widths of the samples at `indices`, int64 [N]; as `widths` only where all datasets tell theirs."""
        widths = np.empty(len(indices), np.int64)
        sources = np.searchsorted(self._ends, indices, side="right")
        for source in np.unique(sources).tolist():
            rows = sources == source
            start = self._ends[source] - self.sizes[source]
            dataset: Any = self.datasets[source]
            widths[rows] = dataset.widths(indices[rows] - start)
        return widths
