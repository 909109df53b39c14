"""Things that are left when they should be gone.

Owns `leaks_at_rest` (of a daemon whose consumers have left) and `leaks_after_end` (of daemons that have ended).
Invariant: things that go away by themselves a moment later are waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.processes import ResourceUsage, processes_with_environment, resource_usage
from benchmarks.soak.daemon_runner import ENVIRONMENT_MARK, DaemonProcess
from benchmarks.soak.streams import CHILD_COMMAND
from benchmarks.soak.workload import MAX_AT_REST_BYTES, PREFETCH, TUNED, WORKERS
from loader_client import Client

__all__ = ["leaks_after_end", "leaks_at_rest"]

_DEADLINE_S = 10.0
_SLACK = 2
"""Descriptors and threads that a process makes once, when it first needs them."""


def leaks_at_rest(client: Client, before: ResourceUsage, directory: Path) -> tuple[ResourceUsage | None, list[str]]:
    """Measure the daemon once `client` is its only client again.

    Args:
        client: The only client that is left.
        before: The daemon's resources when that was so before, with the settings of the configuration.
        directory: The directory of the soak, by which its processes are recognised.

    Returns:
        The daemon's resources now, and a line for each thing that it still has.
    """
    client.status()  # finds the daemon that runs now
    client.tune(None, **TUNED)
    left = _wait_until_none(lambda: list(_daemon_leaks(client.status(), before, directory)))
    return resource_usage(client.daemon_pid), left


def leaks_after_end(directory: Path, sockets: Path, daemons: list[DaemonProcess]) -> list[str]:
    """List processes, segments and files of `daemons`, all of which have ended."""
    return _wait_until_none(lambda: list(_system_leaks(directory, sockets, daemons)))


def _daemon_leaks(status: dict[str, Any], before: ResourceUsage, directory: Path) -> Iterator[str]:
    if status["clients"] != 1 or status["consumers"]:
        yield f"{status['clients']} clients instead of one, with the consumers {status['consumers']}"
    for stream in status["streams"]:
        if stream["segments"] > PREFETCH or stream["lanes"]:
            yield f"{stream['segments']} segments instead of {PREFETCH}, and the lanes {stream['lanes']}"
    if [worker["state"] for worker in status["workers"]] != ["ready"] * WORKERS:
        yield f"the workers {status['workers']} instead of {WORKERS} that are ready"
    if status["memory_bytes"] > MAX_AT_REST_BYTES:
        yield f"{status['memory_bytes']} bytes of segments instead of {MAX_AT_REST_BYTES}: rings of an outlier's size"
    children = [pid for pid, command in _processes(directory) if command.split() == CHILD_COMMAND]
    if len(children) > WORKERS:
        yield f"{len(children)} processes of a dataset instead of one for each worker: {children}"
    now = resource_usage(status["pid"])
    grown = 0 if now is None else max(now.descriptors - before.descriptors, now.threads - before.threads)
    if now is None or grown > _SLACK:
        yield f"the daemon at rest has {now}; before it had {before}"


def _system_leaks(directory: Path, sockets: Path, daemons: list[DaemonProcess]) -> Iterator[str]:
    for pid, command in _processes(directory):
        yield f"process {pid}: {command}"
    for path in sorted(Path("/dev/shm").glob("lsv-*")):
        if any(path.name.startswith(f"{daemon.identity}-") for daemon in daemons):
            yield f"segment {path}"
    for path in sorted(sockets.iterdir()):
        yield f"file {path}"


def _processes(directory: Path) -> Iterator[tuple[int, str]]:
    return processes_with_environment(ENVIRONMENT_MARK, str(directory))


def _wait_until_none(find: Callable[[], list[str]]) -> list[str]:
    """Call `find` until it finds nothing, or the deadline has passed; what it found last."""
    deadline = time.monotonic() + _DEADLINE_S
    while (found := find()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found
