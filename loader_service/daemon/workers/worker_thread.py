"""A worker in the daemon's own process, for `workers = 0` and for machines where no process can be started.

Owns `WorkerThread`. Invariant: it does the same work over the same kind of connection as a worker process, and so
builds the same bytes. What a process gives is missing: a step that hangs cannot be ended, a crash of a dataset ends the
daemon, and what a dataset prints goes where the daemon's output goes.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from multiprocessing.connection import Connection
from threading import Thread

from loader_service.daemon.workers.worker_process import EXIT_S, WorkerProcess

__all__ = ["WorkerThread"]


class WorkerThread(WorkerProcess):
    """One place for a worker, and the thread in it."""

    is_process = False
    __slots__ = ("_thread",)

    @property
    def pid(self) -> int | None:
        return os.getpid()

    @property
    def name(self) -> str:
        """Name for logs."""
        return f"worker {self.number} (a thread of the daemon)"

    def launch(self) -> Connection:
        """Start a thread in this place, which then waits for its first message. Raises OSError."""
        from loader_service.daemon.workers.main import run_worker  # only here does the daemon build

        def work() -> None:
            with end:
                run_worker(end)

        self.ready, self.hung, self.tasks, self.later = False, "", [], deque()
        ours, theirs = socket.socketpair()
        self.connection, end = Connection(ours.detach()), Connection(theirs.detach())
        self._thread = Thread(target=work, name=f"loader-service-worker-{self.number}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            end.close()
            raise OSError(str(error)) from error
        return self.connection

    def ended(self) -> str:
        """Wait for the thread, which has ended or hung up, and say so."""
        self._thread.join(EXIT_S)
        return f"{self.name} ended"
