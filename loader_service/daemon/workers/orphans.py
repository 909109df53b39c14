"""Processes that datasets started and left: they become the daemon's, and end with it (Linux).

Owns `adopt`, `reap_orphans` and `end_orphans`. Invariant: nothing that a dataset started outlives the daemon's orderly
end, also what began a session of its own. A daemon that is a process of its own calls `adopt`; in any other process,
whose children are not the daemon's, nothing here does anything.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path

__all__ = ["adopt", "end_orphans", "reap_orphans"]

_SET_CHILD_SUBREAPER = 36
_KILL_S = 1.0
_adopting = False


def adopt() -> None:
    """Become the parent of orphans of all descendants (prctl(2), PR_SET_CHILD_SUBREAPER)."""
    global _adopting
    if sys.platform == "linux":
        _adopting = ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def reap_orphans(own: Iterable[int]) -> None:
    """Take the exit codes of adopted processes that have ended; `own`: the pids of children that others wait for."""
    for pid in _orphans(own):
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def end_orphans(own: Iterable[int]) -> None:
    """Kill all adopted processes, and those that become ours by that."""
    deadline = time.monotonic() + _KILL_S
    known = set(own)
    while (pids := _orphans(known)) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        reap_orphans(known)
        time.sleep(0.005)


def _orphans(own: Iterable[int]) -> list[int]:
    if not _adopting:
        return []
    known = {*own, getattr(resource_tracker._resource_tracker, "_pid", None)}
    children: list[int] = []
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            children += map(int, path.read_text().split())
    return [pid for pid in children if pid not in known]
