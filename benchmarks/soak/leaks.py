"""What is left when it should be gone.

Owns `at_rest` (a daemon whose consumers have left) and `left_behind` (after its end). Invariant: what ends by itself a
moment later is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.soak.daemon_runner import MARK, Life
from benchmarks.soak.setting import PREFETCH, TUNED, WORKERS
from benchmarks.soak.vitals import Vitals, processes_with, vitals
from loader_client import Client

__all__ = ["at_rest", "left_behind"]

_DEADLINE_S = 10.0
_SLACK = 2
"""Descriptors and threads that a process makes once, when it first needs them."""


def at_rest(client: Client, before: Vitals) -> tuple[Vitals | None, list[str]]:
    """The daemon's vitals now that `client` is its only client, and what it still has that it should not have.

    before: its vitals when that was so before, with the settings of the configuration.
    """
    client.status()  # finds the daemon that is there now
    client.tune(None, **TUNED)
    left = _wait(lambda: list(_unrest(client.status(), before)))
    return vitals(client.daemon_pid), left


def _unrest(status: dict[str, Any], before: Vitals) -> Iterator[str]:
    if status["clients"] != 1 or status["consumers"]:
        yield f"{status['clients']} clients instead of one, with the consumers {status['consumers']}"
    for stream in status["streams"]:
        if stream["segments"] > PREFETCH or stream["lanes"]:
            yield f"{stream['segments']} segments instead of {PREFETCH}, and the lanes {stream['lanes']}"
    if [worker["state"] for worker in status["workers"]] != ["ready"] * WORKERS:
        yield f"the workers {status['workers']} instead of {WORKERS} that are ready"
    now = vitals(status["pid"])
    grown = 0 if now is None else max(now.descriptors - before.descriptors, now.threads - before.threads)
    if now is None or grown > _SLACK:
        yield f"the daemon at rest has {now}; before it had {before}"


def left_behind(directory: Path, sockets: Path, lives: list[Life]) -> list[str]:
    """Processes, segments and files of the daemons `lives`, all of which have ended."""
    return _wait(lambda: list(_left(directory, sockets, lives)))


def _left(directory: Path, sockets: Path, lives: list[Life]) -> Iterator[str]:
    for pid, command in processes_with(MARK, str(directory)):
        yield f"process {pid}: {command}"
    for path in sorted(Path("/dev/shm").glob("lsv-*")):
        if any(path.name.startswith(f"{life.identity}-") for life in lives):
            yield f"segment {path}"
    for path in sorted(sockets.iterdir()):
        yield f"file {path}"


def _wait(left: Callable[[], list[str]]) -> list[str]:
    deadline = time.monotonic() + _DEADLINE_S
    while (found := left()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found
