"""Every option of the daemon, declared once.

Owns `ServerConfig`, `StreamConfig` and `PipelineConfig`, with the ranges of their values, and how a size is written.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any

import msgspec

from loader_service.errors import ConfigurationError

__all__ = ["PipelineConfig", "ServerConfig", "StreamConfig", "parse_bytes"]

_SIZE = re.compile(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*(?:([kKMGT])(i?))?B?\s*")
_PREFIXES = ["", "K", "M", "G", "T"]


def parse_bytes(value: int | str) -> int:
    """A size in bytes: a number, or text such as "512MiB" or "4 GB". Raises ConfigurationError.

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


class ServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[server]`.

    endpoint: `ipc://` and an absolute path, empty for the user's default; workers: processes, 1 to 1024;
    group: whose members may read batches too, empty for this user alone (see `daemon.access`);
    memory_limit: of all segments together, 0 for none but the machine's; start_timeout_s: until all workers are
    ready, and later until one is that was started again, a day at most; build_timeout_s: after so long at one step a
    worker counts as hung: its Python stack is logged, it is killed, and the step is built again, a day at most, 0 for
    never, the default: only the user knows how long a step may take, and too low a limit would fail steps that are
    merely slow; import_paths: where factories are looked for besides Python's own path; evict_after_s: seconds
    for which a consumer may hold others up before it is put out, 0 for ever; heartbeat_s: how often a client whose
    process cannot be seen is asked whether it is there.
    """

    endpoint: str = ""
    workers: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 2
    memory_limit: int | str = 0
    start_timeout_s: Annotated[float, msgspec.Meta(gt=0, le=86400)] = 120.0
    import_paths: list[str] = []
    evict_after_s: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0
    heartbeat_s: Annotated[float, msgspec.Meta(ge=0.01, le=86400)] = 2.0
    build_timeout_s: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 0.0
    group: str = ""

    @property
    def memory_limit_bytes(self) -> int:
        return parse_bytes(self.memory_limit)


class StreamConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[streams.NAME]`.

    factory: "module:callable", called in each worker with `args`, plain values, returns a Stream; prefetch: P, the
    slots of a ring, 1 to 65536; slot_bytes: the size of a slot at start, 0 to measure the stream's first batch;
    max_lanes: rings with consumers at once, 0 for what memory allows; verify: N, every Nth step is built a second time
    by another worker, and fails where the bytes differ, 0 for none.
    """

    factory: str
    args: dict[str, Any] = {}
    prefetch: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 8
    slot_bytes: int | str = 0
    max_lanes: Annotated[int, msgspec.Meta(ge=0, le=65536)] = 0
    verify: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0

    @property
    def initial_slot_bytes(self) -> int:
        return parse_bytes(self.slot_bytes)


class PipelineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[streams.NAME]` with a pipeline instead of a factory.

    pipeline: "stream FILE |> shuffle(seed = 7) |> batch(B = 32) |> take(100)", FILE from the configuration's directory;
    names: of the tensors of a tuple; prefetch, slot_bytes, max_lanes, verify: as for StreamConfig.
    """

    pipeline: str
    names: list[str] = []
    prefetch: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 8
    slot_bytes: int | str = 0
    max_lanes: Annotated[int, msgspec.Meta(ge=0, le=65536)] = 0
    verify: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0

    def expanded(self, directory: str) -> dict[str, Any]:
        """The same stream as a table with a factory."""
        args = {"pipeline": self.pipeline, "names": self.names, "directory": directory}
        factory = "loader_service.data.pskd:pipeline_stream"
        same = {name: getattr(self, name) for name in ("prefetch", "slot_bytes", "max_lanes", "verify")}
        return {"factory": factory, "args": args} | same
