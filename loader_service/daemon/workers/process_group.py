"""A process with a group of its own, whose members end with it.

Owns `GroupLeader`. Invariant: the group is killed while its leader is dead and not yet waited for, when the kernel
gives its number to no other process. A process that a dataset starts is a member, unless it begins a session or a group
of its own: see `workers.orphans`.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from contextlib import suppress
from typing import Any

from loader_service.wire.process import open_pidfd

__all__ = ["GroupLeader"]


class GroupLeader(subprocess.Popen[bytes]):
    """`subprocess.Popen` in a process group of its own; `kill` and the end of the process end all of the group."""

    def __init__(self, command: list[str], **options: Any) -> None:
        super().__init__(command, process_group=0, **options)

    def poll(self) -> int | None:
        """Return the exit code, None while the process lives."""
        if self.returncode is None and self._has_ended(0):
            self._kill_group()
        return super().poll()

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once the process has ended. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not self._has_ended(timeout):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self._kill_group()
        return super().wait()

    def kill(self) -> None:
        """Kill all of the group, at once and without waiting. Idempotent."""
        if self.returncode is None:
            self._kill_group()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):  # macOS: of a group of dead processes only
            os.killpg(self.pid, signal.SIGKILL)

    def _has_ended(self, timeout_s: float | None) -> bool:
        """Wait for the end, without taking the exit code; where that cannot be done, by taking it."""
        pidfd = open_pidfd(self.pid)
        if pidfd is None:
            with suppress(subprocess.TimeoutExpired):
                super().wait(timeout_s)
            return self.returncode is not None
        try:
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            return bool(poller.poll(None if timeout_s is None else timeout_s * 1000))
        finally:
            os.close(pidfd)
