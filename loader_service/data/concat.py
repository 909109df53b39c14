"""Several datasets as one.

Owns `ConcatDataset`. Invariant: the samples of dataset k lie at [start[k], start[k] + len(dataset k)), in order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loader_service.contract.checks import checked_index, checked_indices, checked_sequence, shown
from loader_service.contract.sample import Dataset
from loader_service.errors import ArgumentError

__all__ = ["ConcatDataset"]


class ConcatDataset:
    """Datasets one behind the other.

    Args:
        datasets: At least one; their lengths are taken now.

    Attributes:
        datasets: The datasets, as a list.
        sizes: Their lengths, which a MixingSampler takes.

    Raises:
        ArgumentError: If there are none, or one of them has no length or no samples by index.

    Where all datasets tell the widths of their samples (`widths`), so does this one.

    >>> both = ConcatDataset([[10, 11], [20, 21, 22]])
    >>> both[2], both.sizes
    (20, (2, 3))
    """

    def __init__(self, datasets: Sequence[Dataset[Any]]) -> None:
        self.datasets = list(checked_sequence("datasets", datasets, _checked_dataset))
        if not self.datasets:
            raise ArgumentError("there are no datasets to put together; give at least one")
        self.sizes = tuple(len(dataset) for dataset in self.datasets)
        self._ends = list(accumulate(self.sizes))
        if all(hasattr(dataset, "widths") for dataset in self.datasets):
            self.widths = self._widths

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int, /) -> Any:
        """Read the sample at 0 <= index < len(self). Raises ArgumentError."""
        source, offset = self.locate(index)
        return self.datasets[source][offset]

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def locate(self, index: int) -> tuple[int, int]:
        """Find the sample at `index`.

        Returns:
            The place of its dataset in `datasets`, and its index in that dataset.

        Raises:
            ArgumentError: If the index does not lie in [0, len(self)).
        """
        index = checked_index(index, len(self))
        source = bisect_right(self._ends, index)
        return source, index - (self._ends[source] - self.sizes[source])

    def _widths(self, indices: ArrayLike) -> NDArray[np.int64]:
        """The widths of the samples at `indices`, in pixels, int64 [N]; it is `widths` where all datasets have one."""
        wanted = checked_indices("indices", indices, len(self))  # [N]
        widths = np.empty(len(wanted), np.int64)
        sources = np.searchsorted(self._ends, wanted, side="right")  # [N]
        for source in np.unique(sources).tolist():
            rows = sources == source
            start = self._ends[source] - self.sizes[source]
            dataset: Any = self.datasets[source]
            widths[rows] = dataset.widths(wanted[rows] - start)
        return widths


def _checked_dataset(name: str, value: Any) -> Dataset[Any]:
    try:
        len(value)
        found: Dataset[Any] | None = value if hasattr(type(value), "__getitem__") else None
    except TypeError:  # it has no length; an array of no dimensions tells so when it is asked
        found = None
    if found is None:
        raise ArgumentError(f"{name} is {shown(value)}; a dataset has `__len__` and `__getitem__`")
    return found
