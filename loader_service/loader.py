"""The same stream in one process, without workers, sockets or shared memory: the reference and the debugger.

Owns `Loader`. Invariant (R9): it yields exactly the batches, the errors and the end that a consumer of the service
gets; where a platform has no processes or no shared memory, everything runs this way.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from loader_service.contract.batch import Batch
from loader_service.contract.buffers import BufferPool
from loader_service.contract.checks import checked_span, checked_step, shown
from loader_service.contract.shards import Shard
from loader_service.contract.stream import Stream
from loader_service.errors import ArgumentError, BuildError, ConsumerClosedError

__all__ = ["Loader"]


class Loader:
    """Iterates over a stream, each batch built when it is asked for.

    The memory of batches is pooled: it is used again after the last array over it has died, never before. An exception
    while step g is built comes at g as BuildError and ends the iteration, as in the service (R8).

    Args:
        stream: what to read.
        start_step: the first step, in [0, 2^63).
        stop_step: iteration ends before it; None: never.
        shard: (rank, world size), to read only a rank's rows.

    Raises:
        ArgumentError: an argument is none of these.

    >>> from loader_service.data import synthetic_lines
    >>> [batch.step for batch in Loader(synthetic_lines(count=8, batch_size=4), start_step=1, stop_step=3)]
    [1, 2]
    """

    def __init__(
        self, stream: Stream, start_step: int = 0, stop_step: int | None = None, *, shard: tuple[int, int] = (0, 1)
    ) -> None:
        if not isinstance(stream, Stream):
            raise ArgumentError(f"stream is {shown(stream)}; it must be a loader_service.Stream")
        checked = Shard.of(shard)
        self.next_step, self.stop_step = checked_span(start_step, stop_step)
        self.stream = stream
        self._shard, self._pool = (checked.rank, checked.world), BufferPool()
        self._ended: str | None = None

    def __repr__(self) -> str:
        state = self._ended or f"next step {self.next_step}"
        return f"Loader({self.stream!r}, {state})"

    @property
    def closed(self) -> bool:
        """True once it takes no more steps: it was closed, or a build failed."""
        return self._ended is not None

    def get(self, step: int) -> Batch:
        """Build the batch at global step `step`; iteration goes on behind it.

        Raises:
            BuildError: it could not be built. The loader takes no more steps, until `reopen`.
            ConsumerClosedError: it takes no more steps.
            ArgumentError: `step` is none.
        """
        step = checked_step(step)
        if self._ended is not None:
            raise ConsumerClosedError(f"this loader takes no more steps: {self._ended}")
        try:
            batch = self.stream.build_into(step, self._pool.allocate, self._shard)
        except BuildError:
            self._ended = f"it ended at step {step}, whose build failed"
            raise
        self.next_step = step + 1
        return batch

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """Build the batch of `next_step`; at stop_step the loader closes itself and iteration ends."""
        if self.stop_step is not None and self.next_step >= self.stop_step:
            self.close()
            raise StopIteration
        return self.get(self.next_step)

    def reopen(self) -> None:
        """Go on at `next_step`: after a BuildError, to read on elsewhere with `get`, or to try once more."""
        self._ended = None

    def close(self) -> None:
        """Take no more steps. Idempotent. Arrays that are alive stay valid."""
        self._ended = self._ended or "it was closed"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
