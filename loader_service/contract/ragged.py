"""The line images of a batch in one block of memory: values and where each image begins.

Owns `RaggedImages`, which a dataset's `read_rows` or `__getitems__` may return instead of a list of samples. Invariant:
it is a sequence of `ImageSample`, so every collator can read it; one that knows it reads the block without a Python
object for each image. Fails with ArgumentError, which names the row that does not lie in its block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.fused import compiles
from loader_service.contract.fused.checks import first_outside
from loader_service.contract.sample import ImageSample
from loader_service.errors import ArgumentError

__all__ = ["RaggedImages"]


@dataclass(frozen=True, slots=True, eq=False)
class RaggedImages(Sequence[ImageSample]):
    """B line images of one height, each contiguous in `values`, with their targets and labels.

    Args:
        values: float32 [V], the block; nothing is copied out of it before a batch is written.
        starts, widths: int64 [B], of each image: its first value in the block, its width; it has
            channels · height · width values, planar.
        channels, height: of all images.
        targets: int32 [T]; target_starts, target_lengths: int64 [B], where each row's target lies in it.
        labels: int32 [B].

    Raises:
        ArgumentError: an array of another dtype, shape or length, or rows that do not lie in their block.

    >>> two = RaggedImages(
    ...     np.arange(6, dtype=np.float32), np.array([0, 2]), np.array([1, 2]), 1, 2,
    ...     np.array([7], np.int32), np.array([0, 0]), np.array([1, 0]), np.zeros(2, np.int32),
    ... )
    >>> two[1].image
    array([[[2., 3.],
            [4., 5.]]], dtype=float32)
    """

    values: NDArray[np.float32]
    starts: NDArray[np.int64]
    widths: NDArray[np.int64]
    channels: int
    height: int
    targets: NDArray[np.int32]
    target_starts: NDArray[np.int64]
    target_lengths: NDArray[np.int64]
    labels: NDArray[np.int32]

    def __post_init__(self) -> None:
        count = len(self.starts)
        _check_array("values", self.values, np.float32, None)
        _check_array("targets", self.targets, np.int32, None)
        _check_array("labels", self.labels, np.int32, count)
        for name in ("starts", "widths", "target_starts", "target_lengths"):
            _check_array(name, getattr(self, name), np.int64, count)
        if not (
            isinstance(self.channels, int) and isinstance(self.height, int) and min(self.channels, self.height) >= 0
        ):
            raise ArgumentError(
                f"channels are {self.channels!r} and height {self.height!r}; both must be integers >= 0"
            )
        _check_rows("image", self.starts, self.widths, self.channels * self.height, len(self.values))
        _check_rows("target", self.target_starts, self.target_lengths, 1, len(self.targets))

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, row: int, /) -> ImageSample: ...
    @overload
    def __getitem__(self, row: slice, /) -> Sequence[ImageSample]: ...
    def __getitem__(self, row: int | slice, /) -> Any:
        """The sample of one row, as views of the blocks; of a slice, the rows of it in the same blocks."""
        if isinstance(row, slice):
            return self._rows(row)
        start, width = int(self.starts[row]), int(self.widths[row])
        first, length = int(self.target_starts[row]), int(self.target_lengths[row])
        image = self.values[start : start + self.channels * self.height * width]
        shaped = image.reshape(self.channels, self.height, width)  # [C·H·W] -> [C, H, W]
        return ImageSample(shaped, self.targets[first : first + length], int(self.labels[row]))

    def _rows(self, rows: slice) -> RaggedImages:
        names = ("starts", "widths", "target_starts", "target_lengths", "labels")
        some: dict[str, Any] = {name: np.ascontiguousarray(getattr(self, name)[rows]) for name in names}
        return replace(self, **some)


def _check_array(name: str, array: Any, dtype: type[np.generic], count: int | None) -> None:
    fits = isinstance(array, np.ndarray) and array.dtype == dtype and array.ndim == 1 and array.flags.c_contiguous
    if not fits or (count is not None and len(array) != count):
        found = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
        wanted = f"{np.dtype(dtype)} [{'N' if count is None else count}]"
        raise ArgumentError(f"{name} is {found}; it must be a contiguous {wanted}")


def _check_rows(what: str, starts: NDArray[np.int64], sizes: NDArray[np.int64], unit: int, limit: int) -> None:
    """Raise ArgumentError for the first row that does not lie in its block."""
    row = first_outside(starts, sizes, unit, limit) if compiles() else _first_outside(starts, sizes, unit, limit)
    if row >= 0:
        raise ArgumentError(
            f"the {what} of row {row} begins at {starts[row]} and has {sizes[row]} · {unit} elements; "
            f"its block has {limit}"
        )


def _first_outside(starts: NDArray[np.int64], sizes: NDArray[np.int64], unit: int, limit: int) -> int:
    """`first_outside` in numpy: four reductions where all is well."""
    if not len(starts):
        return -1
    largest, room = int(np.maximum.reduce(sizes)), limit // unit if unit else limit
    inside = int(np.minimum.reduce(starts)) >= 0 and int(np.minimum.reduce(sizes)) >= 0
    if inside and (largest <= room or not unit) and int(np.maximum.reduce(starts)) <= limit - largest * unit:
        return -1  # the usual case: even the widest image would fit behind the last
    outside = (starts < 0) | (starts > limit) | (sizes < 0) | (sizes > (limit - starts) // max(unit, 1)) & (unit > 0)
    return int(np.argmax(outside)) if outside.any() else -1
