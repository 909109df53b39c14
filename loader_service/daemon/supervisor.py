"""The worker processes: started, watched, started again.

Owns `Supervisor`. Invariant: a worker that ends, for whatever reason, is noticed (pidfd, or the end of its
connection), its tasks are reported lost, and another takes its place after a backoff; one that never gets READY
three times in a row is given up. Children are spawned, never forked, each in a process group of its own, so that
Ctrl-C in a terminal reaches the daemon alone.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Protocol

from loader_service.daemon.loop import Loop
from loader_service.daemon.messages import (
    Build,
    Built,
    Failed,
    FromWorker,
    Start,
    Started,
    StartFailed,
    ToWorker,
    decode_from_worker,
    encode,
)
from loader_service.wire.process import open_pidfd

__all__ = ["Supervisor", "Watcher", "Worker"]

_log = logging.getLogger("loader_service.supervisor")
_AHEAD = 2
"""Tasks that a worker has at once: the one under build and the next, so that it never waits for a message."""
_BURST = 32
"""Broadcasts sent to a worker at work each time it ends a step: it reads them soon, so its connection never fills."""
_EXIT_S = 1.0
_MAX_FAILED_STARTS = 3
_MAX_BACKOFF_S = 5.0


@dataclass(slots=True, eq=False)
class Worker:
    """One place for a worker and the process in it.

    tasks: assigned and not finished, in order; later: broadcasts that wait until it reads again; deaths: since the
    daemon started; streak: since the last success; leaving: it ends when its tasks have, and nobody takes its place.
    """

    number: int
    process: subprocess.Popen[bytes] | None = None
    connection: Connection | None = None
    pidfd: int | None = None
    ready: bool = False
    tasks: list[int] = field(default_factory=list)
    later: deque[ToWorker] = field(default_factory=deque)
    built: int = 0
    deaths: int = 0
    streak: int = 0
    failed_starts: int = 0
    leaving: bool = False

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    def report(self) -> dict[str, Any]:
        """For `status`, as plain values."""
        return {
            "worker": self.number,
            "pid": self.pid,
            "state": "leaving" if self.leaving else "ready" if self.ready else "starting",
            "tasks": len(self.tasks),
            "built": self.built,
            "deaths": self.deaths,
        }


class Watcher(Protocol):
    """Who is told what the workers do."""

    def worker_said(self, worker: Worker, message: FromWorker) -> None: ...
    def worker_died(self, worker: Worker, tasks: list[int], how: str) -> None: ...
    def workers_gone(self, how: str) -> None: ...


class Supervisor:
    """`count` workers; number i is told `start(i)` first."""

    def __init__(self, loop: Loop, watcher: Watcher, count: int, start: Callable[[int], Start]) -> None:
        self._loop, self._watcher, self._start = loop, watcher, start
        self.workers = [Worker(number) for number in range(count)]
        self._dismissed: list[subprocess.Popen[bytes]] = []
        self._stopping = False

    def spawn_all(self) -> None:
        for worker in self.workers:
            self._spawn(worker)

    def next_free(self) -> Worker | None:
        """The ready worker with the fewest tasks, if it can take one more."""
        ready = [one for one in self.workers if one.ready and not one.leaving and len(one.tasks) < _AHEAD]
        return min(ready, key=lambda worker: len(worker.tasks), default=None)

    def assign(self, worker: Worker, build: Build) -> None:
        worker.tasks.append(build.task)
        self.send(worker, build)

    def send(self, worker: Worker, message: ToWorker) -> None:
        """Send one message; a worker that is gone is noticed by its pidfd, so the failure says nothing new."""
        with suppress(OSError):
            if worker.connection is not None:
                worker.connection.send_bytes(encode(message))

    def broadcast(self, message: ToWorker) -> None:
        """Send to all that are ready; to one at work as it ends its steps, for it reads nothing meanwhile."""
        for worker in self.workers:
            if worker.ready:
                worker.later.append(message)
                self._send_later(worker, 0)

    def resize(self, count: int) -> None:
        """Have `count` workers: new ones are started; those too many end as soon as they have done their tasks."""
        staying = [worker for worker in self.workers if not worker.leaving]
        staying.sort(key=lambda worker: worker.failed_starts >= _MAX_FAILED_STARTS)  # those given up go first
        for worker in staying[count:]:
            worker.leaving = True
            self._dismiss_if_done(worker)
        first = max((worker.number for worker in self.workers), default=-1) + 1
        for number in range(first, first + count - len(staying)):
            self.workers.append(Worker(number))
            self._spawn(self.workers[-1])

    def give_up(self, worker: Worker, how: str) -> None:
        """Let nobody take this worker's place."""
        worker.failed_starts = _MAX_FAILED_STARTS
        self._end(worker, how)

    def stop(self, timeout_s: float) -> None:
        """End all workers: by closing their connections, after `timeout_s` seconds by SIGKILL."""
        self._stopping = True
        for worker in self.workers:
            self._disconnect(worker)
        deadline = self._loop.clock() + timeout_s
        for process in [*self._dismissed, *(worker.process for worker in self.workers)]:
            if process is not None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.01, deadline - self._loop.clock()))
                process.kill()
                process.wait()

    def _spawn(self, worker: Worker) -> None:
        if self._stopping or worker not in self.workers:
            return
        try:
            self._launch(worker)
        except OSError as error:  # no process, descriptor or memory to be had
            self._end(worker, f"worker {worker.number} cannot be started: {error}")

    def _launch(self, worker: Worker) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "loader_service.daemon.worker", str(theirs.fileno())]
        with ours, theirs:
            worker.process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, process_group=0
            )
            worker.connection = Connection(ours.detach())
        worker.pidfd = open_pidfd(worker.process.pid)
        worker.ready, worker.tasks, worker.later = False, [], deque()
        self._loop.watch(worker.connection.fileno(), lambda: self._read(worker))
        if worker.pidfd is not None:
            self._loop.watch(worker.pidfd, lambda: self._drain(worker))
        self.send(worker, self._start(worker.number))

    def _read(self, worker: Worker) -> None:
        """One message; the loop comes again while there are more."""
        try:
            assert worker.connection is not None  # it is watched only while it is open
            message = decode_from_worker(worker.connection.recv_bytes())
        except (EOFError, OSError):
            self._end(worker, self._reap(worker))
            return
        if isinstance(message, Built | Failed):
            worker.tasks.remove(message.task)
            self._send_later(worker, _BURST)
            if isinstance(message, Built):
                worker.built, worker.streak = worker.built + 1, 0
        elif isinstance(message, Started):
            worker.ready, worker.failed_starts = True, 0
        elif isinstance(message, StartFailed):
            worker.failed_starts = _MAX_FAILED_STARTS  # the same code would fail again
        self._watcher.worker_said(worker, message)
        self._dismiss_if_done(worker)

    def _dismiss_if_done(self, worker: Worker) -> None:
        """A leaving worker without tasks hears the end of its connection, and ends."""
        if worker.leaving and not worker.tasks and worker in self.workers:
            self._disconnect(worker)
            self._remove(worker)

    def _remove(self, worker: Worker) -> None:
        self.workers.remove(worker)
        if worker.process is not None:
            self._dismissed.append(worker.process)
        self._reap_dismissed()

    def _reap_dismissed(self) -> None:
        self._dismissed = [process for process in self._dismissed if process.poll() is None]
        if self._dismissed and not self._stopping:
            self._loop.after(_EXIT_S, self._reap_dismissed)

    def _send_later(self, worker: Worker, limit: int) -> None:
        """Send the oldest `limit` of what waits, all to a worker that is idle."""
        for _ in range(min(limit, len(worker.later)) if worker.tasks else len(worker.later)):
            self.send(worker, worker.later.popleft())

    def _drain(self, worker: Worker) -> None:
        """The process has ended: read what it said before, then take note of its end."""
        while worker.connection is not None and worker.connection.poll(0):
            self._read(worker)
        if worker.connection is not None:
            self._end(worker, self._reap(worker))

    def _reap(self, worker: Worker) -> str:
        assert worker.process is not None  # spawned together with its connection
        try:
            how = _told(worker.process.wait(_EXIT_S))
        except subprocess.TimeoutExpired:  # it lives on, of no more use
            worker.process.kill()
            worker.process.wait()
            how = "closed its connection"
        return f"worker {worker.number} (pid {worker.process.pid}) {how}"

    def _end(self, worker: Worker, how: str) -> None:
        tasks, worker.tasks = worker.tasks, []
        worker.deaths, worker.streak = worker.deaths + 1, worker.streak + 1
        worker.failed_starts += not worker.ready
        self._disconnect(worker)
        _log.warning("%s%s", how, f"; {len(tasks)} steps are built again" if tasks else "")
        self._watcher.worker_died(worker, tasks, how)
        if worker.leaving:
            self._remove(worker)
        elif worker.failed_starts < _MAX_FAILED_STARTS:
            self._loop.after(self._backoff_s(worker), lambda: self._spawn(worker))
        elif all(one.failed_starts >= _MAX_FAILED_STARTS for one in self.workers if not one.leaving):
            self._watcher.workers_gone(how)

    @staticmethod
    def _backoff_s(worker: Worker) -> float:
        return min(0.1 * 2.0 ** min(worker.streak - 1, 10), _MAX_BACKOFF_S)

    def _disconnect(self, worker: Worker) -> None:
        worker.ready = False
        if worker.connection is not None:
            self._loop.unwatch(worker.connection.fileno())
            worker.connection.close()
            worker.connection = None
        if worker.pidfd is not None:
            self._loop.unwatch(worker.pidfd)
            os.close(worker.pidfd)
            worker.pidfd = None


def _told(code: int) -> str:
    """How a process ended, by its exit code."""
    if code >= 0:
        return f"ended with exit code {code}"
    known = -code in {number.value for number in signal.Signals}  # not all real-time signals have a name
    return f"was killed by {signal.Signals(-code).name if known else f'signal {-code}'}"
