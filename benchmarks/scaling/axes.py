"""Axes: what is varied, one thing at a time, and the case that each value makes.

Owns `Axis` and `AXES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import Case, Role

__all__ = ["AXES", "Axis"]

_LINES = "loader_service.data:synthetic_lines"
_BLOCKS, _NUMBERS = "benchmarks.scaling.blocks:blocks", "benchmarks.scaling.blocks:numbers"
_KIB, _MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class Axis:
    """One thing that grows.

    Attributes:
        name: On the command line.
        title: On the picture.
        values: In ascending order.
        case: Makes the case of one value.
    """

    name: str
    title: str
    values: Sequence[int]
    case: Callable[[int], Case]


def _case(
    name: str,
    *,
    factory: str = _LINES,
    args: dict[str, Any] | None = None,
    workers: int = 1,
    consumers: int = 1,
    prefetch: int = 8,
    start_step: int | str = "live",
) -> Case:
    """A daemon with one stream, and its consumers."""

    def roles(directory: Path) -> list[Role]:
        endpoint = f"ipc://{directory}/daemon.sock"
        served = {"endpoint": endpoint, "workers": workers, "directory": str(directory), "prefetch": prefetch}
        read = {"endpoint": endpoint, "start_step": start_step, "tensor": "images" if factory == _LINES else "block"}
        return [
            Role("serve", {**served, "factory": factory, "args": args or {}}, consumes=False),
            *(Role("read", {**read, "consumer": number}) for number in range(consumers)),
        ]

    return Case(name, name, roles, group="lines" if factory == _LINES else "blocks")


def _prefetch_of(batch_bytes: int) -> int:
    """Slots of a ring: fewer of the largest batches, for they take gigabytes."""
    return 8 if batch_bytes < 64 * _MIB else 3


AXES = {
    axis.name: axis
    for axis in (
        Axis("consumers", "consumers of one stream", (1, 2, 4, 8, 16), lambda n: _case(f"{n} consumers", consumers=n)),
        Axis("workers", "workers", (1, 2, 4), lambda n: _case(f"{n} workers", workers=n)),
        Axis(
            "batch",
            "bytes of a batch",
            tuple(16 * _KIB << shift for shift in range(0, 15, 2)),
            lambda n: _case(f"{n} bytes", factory=_BLOCKS, args={"batch_bytes": n}, prefetch=_prefetch_of(n)),
        ),
        Axis("prefetch", "slots of the ring", (1, 2, 4, 8, 16, 32), lambda n: _case(f"prefetch {n}", prefetch=n)),
        Axis(
            "samples",
            "samples of the dataset",
            tuple(10**power for power in range(3, 13, 3)),
            lambda n: _case(f"{n} samples", factory=_NUMBERS, args={"count": n}),
        ),
        Axis(
            "start",
            "first step",
            tuple(10**power for power in range(0, 13, 3)),
            lambda n: _case(f"from step {n}", factory=_NUMBERS, args={"count": 10**9}, start_step=n),
        ),
    )
}
"""By name."""
