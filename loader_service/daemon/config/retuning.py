"""Settings that can change while the daemon runs, because no byte of any batch depends on them.

Owns `retuned` (checks, as the configuration file is checked) and `apply`. Invariant: a change that is refused has
changed nothing. Fails with ConfigurationError, UnknownStreamError, ArgumentError, MemoryLimitError.
"""

from __future__ import annotations

from typing import Any

from loader_service.daemon.broker.stream_state import StreamState
from loader_service.daemon.config.load import Config
from loader_service.daemon.config.options import StreamConfig
from loader_service.daemon.server.shared_memory import SharedMemoryAllocator
from loader_service.daemon.workers.supervisor import Supervisor
from loader_service.errors import ConfigurationError, LoaderServiceError, UnknownStreamError
from loader_service.sharing.fairness import Limits

__all__ = ["OF_A_STREAM", "OF_THE_SERVER", "apply", "limits_of", "retuned"]

OF_THE_SERVER = ("workers", "memory_limit", "evict_after_s")
OF_A_STREAM = ("prefetch", "max_lanes")
_SOURCE = "set"


def retuned(config: Config, stream: str, settings: dict[str, Any]) -> Config:
    """The configuration with these settings; those of streams are for `stream`, or for each where it is empty."""
    unknown = [name for name in settings if name not in OF_THE_SERVER + OF_A_STREAM]
    if unknown or not settings:
        wrong = f"{', '.join(unknown[:8])} cannot be changed on a running daemon" if unknown else "no setting is given"
        raise ConfigurationError(
            f"{_SOURCE}: {wrong}; what can be changed: {', '.join(OF_THE_SERVER)}, and of streams "
            f"{', '.join(OF_A_STREAM)}"
        )
    if stream and stream not in config.streams:
        raise UnknownStreamError(f"there is no stream {stream!r}; this daemon serves {', '.join(config.streams)}")
    plain = config.to_mapping()
    plain["server"] |= {name: value for name, value in settings.items() if name in OF_THE_SERVER}
    for name in [stream] if stream else config.streams:
        plain["streams"][name] |= {key: value for key, value in settings.items() if key in OF_A_STREAM}
    return Config.of(plain, source=_SOURCE)


def apply(config: Config, served: list[StreamState], supervisor: Supervisor, allocator: SharedMemoryAllocator) -> None:
    """Let the daemon's parts follow a configuration that differs in such settings only."""
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
        limits = limits_of(config, config.streams[stream.name])
        stream.lanes.rings.max_lanes, stream.lanes.debts.evict_after_s = limits.max_lanes, limits.evict_after_s
    supervisor.resize(config.server.workers)


def limits_of(config: Config, stream: StreamConfig) -> Limits:
    """The limits of a stream's lanes."""
    return Limits(stream.max_lanes, config.server.evict_after_s)
