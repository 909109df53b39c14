"""The rows of a global batch that one rank reads (R60 to R63).

Owns `Shard`: which rows, and where they lie in the batch's tensors. Invariant: the shards of all ranks cover the rows
in order, for every world size and batch size; their slots, and so their random numbers, are those of the global batch.

    shard r of R of a batch of B rows: [floor(r·B/R), floor((r+1)·B/R))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from loader_service.contract.checks import checked_int, set_fields, shown
from loader_service.contract.layout import WHOLE, Layout, TensorSpec
from loader_service.errors import ArgumentError

__all__ = ["MAX_WORLD_SIZE", "Shard"]

MAX_WORLD_SIZE = 2**31


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank r of world size R, 0 <= r < R. Raises ArgumentError.

    >>> [Shard(rank, 3).rows(8) for rank in range(3)]
    [range(0, 2), range(2, 5), range(5, 8)]
    """

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        world = checked_int("world size", self.world, 1, MAX_WORLD_SIZE)
        set_fields(self, rank=checked_int("rank", self.rank, 0, world - 1), world=world)

    @classmethod
    def of(cls, shard: tuple[int, int]) -> Shard:
        """The shard that a pair (rank, world size) names. Raises ArgumentError.

        >>> Shard.of((1, 4))
        Shard(rank=1, world=4)
        """
        if not isinstance(shard, tuple | list) or len(shard) != 2:
            raise ArgumentError(f"shard is {shown(shard)}; it must be (rank, world size)")
        return cls(*shard)

    def rows(self, batch_size: int) -> range:
        """Find the rows of this rank in a batch of `batch_size` rows, an integer of at least 0; there may be none.

        Raises:
            ArgumentError: `batch_size` is none.
        """
        batch_size = checked_int("batch_size", batch_size, 0)
        return range(self.rank * batch_size // self.world, (self.rank + 1) * batch_size // self.world)

    def cut(self, layout: Layout, tensors: Mapping[str, NDArray[Any]], batch_size: int) -> dict[str, NDArray[Any]]:
        """Cut the rank's rows out of a global batch of `batch_size` rows, as views. Raises ArgumentError.

        A tensor of which the batch's layout says that it is whole is given whole.
        """
        if self.world == 1:
            return dict(tensors)
        rows = self.rows(batch_size)
        return {spec.name: _part(spec, tensors, rows, batch_size) for spec in layout.tensors}


def _part(spec: TensorSpec, tensors: Mapping[str, NDArray[Any]], rows: range, batch_size: int) -> NDArray[Any]:
    tensor = tensors[spec.name]
    if spec.rows == WHOLE:
        return tensor
    if spec.lengths is not None:
        lengths = tensors[spec.lengths]
        if lengths.shape != (batch_size,) or lengths.dtype.kind not in "iu" or spec.shape[:1] != (int(lengths.sum()),):
            raise ArgumentError(
                f"tensor {spec.name!r} has the shape {list(spec.shape)}, and {spec.lengths!r} does not say how long "
                f"each of its {batch_size} rows is; it must hold integers, [{batch_size}], of that sum"
            )
        start = int(lengths[: rows.start].sum())
        return tensor[start : start + int(lengths[rows.start : rows.stop].sum())]
    if spec.shape[:1] != (batch_size,):
        raise ArgumentError(
            f"tensor {spec.name!r} has the shape {list(spec.shape)} in a batch of {batch_size} rows, and cannot be cut "
            "for a rank; let the collator say in Layout.plan how its rows lie: ragged(NAME), or WHOLE"
        )
    return tensor[rows.start : rows.stop]
