"""Every option of the daemon, declared once.

Owns `ServerConfig`, `StreamConfig` and `PipelineConfig`: names, types, ranges (`Range`) and defaults, which
`config.checker` reads; and how a size is written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any

from loader_service.daemon.config.checker import Range
from loader_service.errors import ConfigurationError

__all__ = ["PIPELINE_FACTORY", "PipelineConfig", "ServerConfig", "StreamConfig", "parse_bytes"]

_SIZE = re.compile(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*(?:([kKMGT])(i?))?B?\s*")
_PREFIXES = ["", "K", "M", "G", "T"]
_DAY_S = 86_400

PIPELINE_FACTORY = "loader_service.data.pskd:pipeline_stream"
"""The factory of a stream that is given as a pipeline."""


def parse_bytes(value: int | str) -> int:
    """Read a size in bytes: a number, or text such as "512MiB" or "4 GB". Raises ConfigurationError.

    >>> parse_bytes("1.5KiB"), parse_bytes("2MB"), parse_bytes(64)
    (1536, 2000000, 64)
    """
    if isinstance(value, int):
        return value
    match = _SIZE.fullmatch(value)
    if match is None:
        raise ConfigurationError(f"size is {value!r}; write a number of bytes, or text such as '512MiB' or '4GB'")
    number, prefix, binary = match.groups(default="")
    return int(Decimal(number) * (1024 if binary else 1000) ** _PREFIXES.index(prefix.upper()))


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The table `[server]`.

    Attributes:
        endpoint: `ipc://` and the absolute path of the socket; empty for the user's default.
        workers: processes that build, 0 to 1024; 0 builds in the daemon's own process, in one thread, which no time
            limit can end and which a crash of a dataset takes down with the daemon.
        memory_limit: of all segments together; 0 for no limit but the machine's.
        start_timeout_s: until all workers are ready, and later until a restarted one is; a day at most.
        import_paths: directories in which factories are looked for, besides Python's own path.
        evict_after_s: for so long a consumer may hold others up before it is evicted; 0 for ever.
        heartbeat_s: between two pings of a client whose process cannot be seen from here.
        build_timeout_s: a worker that is at one step for longer is hung: its Python stack is logged, it is killed, and
            the step is built again. 0 (the default) for no limit, since only the user knows how long a step may take.
        compiled: "auto" builds with compiled kernels where numba is installed (extra `fast`), "on" always, "off" never;
            the bytes are the same.
        group: whose members may read batches too (`server.permissions`); empty for this user alone.
    """

    endpoint: str = ""
    workers: Annotated[int, Range(0, 1024)] = 2
    memory_limit: int | str = 0
    start_timeout_s: Annotated[float, Range(0, _DAY_S, above=True)] = 120.0
    import_paths: list[str] = field(default_factory=list)
    evict_after_s: Annotated[float, Range(0, 1e6)] = 0.0
    heartbeat_s: Annotated[float, Range(0.01, _DAY_S)] = 2.0
    build_timeout_s: Annotated[float, Range(0, _DAY_S)] = 0.0
    group: str = ""
    compiled: str = "auto"

    @property
    def memory_limit_bytes(self) -> int:
        return parse_bytes(self.memory_limit)


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """A table `[streams.NAME]`.

    Attributes:
        factory: "module:callable"; each worker calls it with `args`, and it returns a Stream.
        args: plain values.
        prefetch: the number of slots of a ring, 1 to 65536.
        slot_bytes: the size of a slot at start; 0 to measure the stream's first batch.
        max_lanes: rings that have consumers at the same time; 0 for as many as memory allows.
        verify: N, to build every Nth step a second time in another worker and to fail it where the bytes differ; 0
            for none.
    """

    factory: str
    args: dict[str, Any] = field(default_factory=dict)
    prefetch: Annotated[int, Range(1, 65536)] = 8
    slot_bytes: int | str = 0
    max_lanes: Annotated[int, Range(0, 65536)] = 0
    verify: Annotated[int, Range(0, 2**31)] = 0

    @property
    def initial_slot_bytes(self) -> int:
        return parse_bytes(self.slot_bytes)


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """The keys of `[streams.NAME]` that stand for `factory` and `args` where a stream is given as a pipeline.

    Attributes:
        pipeline: "stream FILE |> shuffle(seed = 7) |> batch(B = 32) |> take(100)"; FILE is looked for in the
            configuration's directory.
        names: of the tensors of a tuple.
    """

    pipeline: str
    names: list[str] = field(default_factory=list)

    def factory(self, directory: str) -> dict[str, Any]:
        """The same stream as the keys `factory` and `args`."""
        args = {"pipeline": self.pipeline, "names": self.names, "directory": directory}
        return {"factory": PIPELINE_FACTORY, "args": args}
