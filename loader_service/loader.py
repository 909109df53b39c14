"""The same stream in one process, without workers, sockets or shared memory: the reference and the debugger.

Owns `Loader`. Invariant (R4, R9): it yields exactly the batches that the service yields; where a platform has no
processes or no shared memory, everything runs this way.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from loader_service.contract.batch import Batch
from loader_service.contract.buffers import BufferPool
from loader_service.contract.checks import checked_span, checked_step
from loader_service.contract.shards import Shard
from loader_service.contract.stream import Stream

__all__ = ["Loader"]


class Loader:
    """Iterates over `stream` from start_step to stop_step (None: without end), each batch built when it is asked for.

    shard: (rank, world size), to read only a rank's rows. The memory of batches is pooled: it is used again after the
    last array over it has died, never before. An exception while step g is built comes at g as BuildError.

    >>> from loader_service.data import synthetic_lines
    >>> [batch.step for batch in Loader(synthetic_lines(count=8, batch_size=4), start_step=1, stop_step=3)]
    [1, 2]
    """

    def __init__(
        self, stream: Stream, start_step: int = 0, stop_step: int | None = None, *, shard: tuple[int, int] = (0, 1)
    ) -> None:
        Shard.of(shard)  # a wrong one is told here
        self.next_step, self.stop_step = checked_span(start_step, stop_step)
        self.stream = stream
        self._shard, self._pool = shard, BufferPool()

    def get(self, step: int) -> Batch:
        """The batch at global step `step`; iteration goes on behind it. Raises BuildError."""
        step = checked_step(step)
        batch = self.stream.build_into(step, self._pool.allocate, self._shard)
        self.next_step = step + 1
        return batch

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self.stop_step is not None and self.next_step >= self.stop_step:
            raise StopIteration
        return self.get(self.next_step)

    def close(self) -> None:
        """Nothing to do: here for code that also runs with a consumer of the service. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
