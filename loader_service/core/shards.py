"""Rows of a global batch that one rank reads.

Owns `Shard`. Invariant: the shards of all ranks cover the rows in order, for every world size and batch size; their
slots, and so their random numbers, are those of the global batch.

    shard r of R of a batch of B rows: [floor(r·B/R), floor((r+1)·B/R))
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import index

from loader_service.errors import ArgumentError

__all__ = ["Shard"]


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank r of world size R, 0 <= r < R. Raises ArgumentError.

    >>> [Shard(rank, 3).rows(8) for rank in range(3)]
    [range(0, 2), range(2, 5), range(5, 8)]
    """

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        try:
            rank, world = index(self.rank), index(self.world)
        except TypeError:
            raise ArgumentError(f"shard is ({self.rank!r}, {self.world!r}); both must be integers") from None
        if not 0 <= rank < world:
            raise ArgumentError(f"shard is ({rank}, {world}); 0 <= rank < world size must hold")
        object.__setattr__(self, "rank", rank)  # a numpy integer would overflow in `rows`
        object.__setattr__(self, "world", world)

    def rows(self, batch_size: int) -> range:
        """The rows of this rank in a batch of `batch_size` rows; may be none."""
        return range(self.rank * batch_size // self.world, (self.rank + 1) * batch_size // self.world)
