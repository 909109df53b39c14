"""Settings that can change while the daemon runs: the change itself, in the parts that follow it.

Owns `apply_settings` and `ring_limits`. Invariant: a change that is refused has changed nothing. Fails with
ArgumentError and MemoryLimitError.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from loader_service.daemon.broker.stream_state import StreamState
from loader_service.daemon.config.load import Config
from loader_service.daemon.config.options import StreamConfig
from loader_service.daemon.server.shared_memory import SharedMemoryAllocator
from loader_service.errors import LoaderServiceError
from loader_service.sharing.fairness import Limits

__all__ = ["ResizableWorkers", "apply_settings", "ring_limits"]


class ResizableWorkers(Protocol):
    """The workers, as far as their number goes."""

    def resize(self, count: int) -> None:
        """Have `count` workers."""
        ...


def ring_limits(config: Config, stream: StreamConfig) -> Limits:
    """Return the limits of a stream's rings."""
    return Limits(stream.max_lanes, config.server.evict_after_s)


def apply_settings(
    config: Config, streams: Iterable[StreamState], workers: ResizableWorkers, allocator: SharedMemoryAllocator
) -> None:
    """Let the daemon's parts follow `config`, which differs from the running one in such settings only."""
    served = list(streams)
    before, allocator.limit_bytes = allocator.limit_bytes, config.server.memory_limit_bytes
    done: list[tuple[StreamState, int]] = []
    try:
        for stream in served:
            done.append((stream, stream.lanes.prefetch))
            stream.lanes.retune(config.streams[stream.name].prefetch)
    except LoaderServiceError:
        allocator.limit_bytes = before
        for stream, prefetch in done:
            stream.lanes.retune(prefetch)
        raise
    for stream in served:
        limits = ring_limits(config, config.streams[stream.name])
        stream.lanes.rings.max_lanes, stream.lanes.fairness.evict_after_s = limits.max_lanes, limits.evict_after_s
    workers.resize(config.server.workers)
