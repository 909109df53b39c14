"""The worker processes: started, watched, started again.

Owns `Supervisor`. Invariant: a worker that ends, for whatever reason, is noticed (pidfd, or the end of its
connection), its tasks are reported lost, and another takes its place after a backoff; one that never gets READY
three times in a row is given up, and one that is at one step, or at its start, for too long is killed. Children are
spawned, never forked, each in a process group of its own, so that Ctrl-C in a terminal reaches the daemon alone.
"""

from __future__ import annotations

import logging
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from itertools import count as counter

from loader_service.daemon.ports import EventSource, StartEvents, WorkerEvents
from loader_service.daemon.workers.crashes import Crash
from loader_service.daemon.workers.messages import (
    Build,
    Built,
    Failed,
    Start,
    Started,
    StartFailed,
    ToWorker,
    Verified,
    Verify,
    decode_from_worker,
    encode,
)
from loader_service.daemon.workers.process_group import GroupLeader
from loader_service.daemon.workers.watchdog import Timeouts, Watchdog
from loader_service.daemon.workers.worker_process import EXIT_S, MAX_FAILED_STARTS, WorkerProcess
from loader_service.daemon.workers.worker_thread import WorkerThread
from loader_service.errors import FactoryError, ProtocolError

__all__ = ["Supervisor"]

_log = logging.getLogger("loader_service.supervisor")
_AHEAD = 2
"""Tasks that a worker has at once: the one under build and the next, so that it never waits for a message."""
_BURST = 32
"""Broadcasts sent to a worker at work each time it ends a step: it reads them soon, so its connection never fills."""
_MAX_BACKOFF_S = 5.0


class Supervisor:
    """`count` workers, each told `start(worker_id)` first.

    Args:
        loop: the daemon's event loop.
        start_events: who is told how workers start, and that none is left.
        count: how many workers.
        start: the first message to a worker.
        timeouts: of starts and builds; None for none.
    """

    def __init__(
        self,
        loop: EventSource,
        start_events: StartEvents,
        count: int,
        start: Callable[[int], Start],
        timeouts: Timeouts | None = None,
    ) -> None:
        self._loop, self._start_events, self._start = loop, start_events, start
        self._timeouts = timeouts or Timeouts()
        self._watchdog = Watchdog(loop, self)
        self._worker_ids = counter()
        self.events: WorkerEvents | None = None
        """The listener to what becomes of tasks; set before the first one is assigned."""
        self.workers = [WorkerProcess(next(self._worker_ids)) for _ in range(count)]
        if not count:
            self.workers.append(WorkerThread(next(self._worker_ids)))
        self._dismissed: list[GroupLeader] = []
        self._stopping = False

    def spawn_all(self) -> None:
        """Start every worker."""
        for worker in self.workers:
            self._spawn(worker)

    # --- the broker's `Workers` ----------------------------------------------------------------------------

    def next_free(self, but: int | None = None) -> int | None:
        """Return the ready worker with the fewest tasks, if it can take one more; never `but`."""
        free = None
        for one in self.workers:
            if one.ready and not one.leaving and one.number != but and len(one.tasks) < _AHEAD:
                free = one if free is None or len(one.tasks) < len(free.tasks) else free
        return None if free is None else free.number

    def has_others(self, worker_id: int) -> bool:
        """Return whether some other worker is ready, however busy it is."""
        return any(one.ready and not one.leaving and one.number != worker_id for one in self.workers)

    def assign(self, worker_id: int, task: Build | Verify) -> None:
        """Give the worker one more task."""
        worker = self._worker(worker_id)
        worker.tasks.append(task.task)
        if len(worker.tasks) == 1:
            self._watch(worker, self._timeouts.build_s)
        self._send(worker, task)

    def send(self, worker_id: int, message: ToWorker) -> None:
        """Send one message."""
        self._send(self._worker(worker_id), message)

    def broadcast(self, message: ToWorker) -> None:
        """Send to all that are ready; to one at work as it ends its steps, for it reads nothing meanwhile."""
        for worker in self.workers:
            if worker.ready:
                worker.later.append(message)
                self._send_later(worker, 0)

    # --- how many, and the end -----------------------------------------------------------------------------

    def resize(self, count: int) -> None:
        """Have `count` workers: new ones are started; those too many end as soon as they have done their tasks.

        Zero is one thread of this process.
        """
        kind, wanted = (WorkerProcess, count) if count else (WorkerThread, 1)
        staying = [worker for worker in self.workers if not worker.leaving and worker.is_process == kind.is_process]
        staying.sort(key=lambda worker: worker.given_up)  # those given up go first
        for worker in [one for one in self.workers if not one.leaving and one not in staying[:wanted]]:
            worker.leaving = True
            self._dismiss_if_done(worker)
        for _ in range(wanted - len(staying)):
            self.workers.append(kind(next(self._worker_ids)))
            self._spawn(self.workers[-1])

    def give_up(self, worker_id: int, how: str) -> None:
        """Let nobody take this worker's place."""
        worker = self._worker(worker_id)
        worker.failed_starts = MAX_FAILED_STARTS
        self._end(worker, Crash(how))

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
                with suppress(subprocess.TimeoutExpired):  # else the kernel cannot end it
                    process.wait(EXIT_S)

    # --- within ------------------------------------------------------------------------------------------

    def _worker(self, worker_id: int) -> WorkerProcess:
        return next(worker for worker in self.workers if worker.number == worker_id)

    def _send(self, worker: WorkerProcess, message: ToWorker) -> None:
        """Send one message; a worker that is gone is noticed by its pidfd, so the failure says nothing new."""
        with suppress(OSError):
            if worker.connection is not None:
                worker.connection.send_bytes(encode(message))

    def _watch(self, worker: WorkerProcess, limit_s: float) -> None:
        """Let the watchdog end the worker after `limit_s` seconds; a thread of this process cannot be ended."""
        self._watchdog.begin(worker, limit_s if worker.is_process else 0.0)

    def _build_here(self, error: OSError) -> None:
        """No process could be started, so far: one thread of this process takes the place of all workers."""
        _log.warning("no worker process can be started (%s); the daemon builds in its own process", error)
        self.workers[:] = [WorkerThread(self.workers[0].number)]
        self._spawn(self.workers[0])

    def _spawn(self, worker: WorkerProcess) -> None:
        if self._stopping or worker not in self.workers:
            return
        try:
            connection = worker.launch()
        except OSError as error:  # no process, descriptor or memory to be had
            worker.process = None
            self._end(worker, Crash(f"worker {worker.number} cannot be started: {error}"))
            is_hopeless = worker.is_process and worker.streak >= MAX_FAILED_STARTS
            if is_hopeless and not any(one.served or one.process for one in self.workers):
                self._build_here(error)
            return
        self._loop.watch(connection.fileno(), lambda: self._read(worker))
        if worker.pidfd is not None:
            self._loop.watch(worker.pidfd, lambda: self._drain(worker))
        if worker.output_fd is not None:
            self._loop.watch(worker.output_fd, lambda: self._read_output(worker))
        self._watch(worker, self._timeouts.start_s)
        self._send(worker, self._start(worker.number))

    def _read_output(self, worker: WorkerProcess) -> None:
        if worker.output_fd is not None and not worker.read_output():
            self._loop.unwatch(worker.output_fd)

    def _read(self, worker: WorkerProcess) -> None:
        """Read one message and pass it on; the loop comes again while there are more."""
        try:
            assert worker.connection is not None  # it is watched only while it is open
            message = decode_from_worker(worker.connection.recv_bytes())
        except (EOFError, OSError, ProtocolError):  # what is no message is as good as a hang-up
            self._end(worker, self._reap(worker))
            return
        if isinstance(message, Started):
            self._started(worker, message)
        elif isinstance(message, StartFailed):
            if not worker.served:
                worker.failed_starts = MAX_FAILED_STARTS  # the same code would fail again
            self._start_events.start_failed(worker.number, message.error)
        elif self.events is not None:
            if isinstance(message, Built | Failed | Verified):
                self._task_ended(worker, message)
            self.events.worker_said(worker.number, message)
        self._dismiss_if_done(worker)

    def _started(self, worker: WorkerProcess, message: Started) -> None:
        worker.ready, worker.served, worker.failed_starts = True, True, 0
        self._watchdog.end(worker)
        try:
            self._start_events.worker_started(worker.number, message.streams)
        except FactoryError as error:
            self._start_events.start_failed(worker.number, error.to_record())
            self.give_up(worker.number, error.message)
        else:
            if self.events is not None:
                self.events.worker_ready(worker.number)

    def _task_ended(self, worker: WorkerProcess, message: Built | Failed | Verified) -> None:
        worker.tasks.remove(message.task)
        if worker.tasks:
            self._watch(worker, self._timeouts.build_s)
        else:
            self._watchdog.end(worker)
        self._send_later(worker, _BURST)
        if isinstance(message, Built):
            worker.built, worker.streak = worker.built + 1, 0

    def _dismiss_if_done(self, worker: WorkerProcess) -> None:
        """A leaving worker without tasks hears the end of its connection, and ends."""
        if worker.leaving and not worker.tasks and worker in self.workers:
            self._disconnect(worker)
            self._remove(worker)

    def _remove(self, worker: WorkerProcess) -> None:
        self.workers.remove(worker)
        if worker.process is not None:
            self._dismissed.append(worker.process)
        self._reap_dismissed()

    def _reap_dismissed(self) -> None:
        self._dismissed = [process for process in self._dismissed if process.poll() is None]
        if self._dismissed and not self._stopping:
            self._loop.after(EXIT_S, self._end_dismissed)

    def _end_dismissed(self) -> None:
        """Kill whoever was dismissed and is still there, with a thread that does not end, say."""
        for process in self._dismissed:
            process.kill()
        self._reap_dismissed()

    def _send_later(self, worker: WorkerProcess, limit: int) -> None:
        """Send the oldest `limit` of what waits, all to a worker that is idle."""
        for _ in range(min(limit, len(worker.later)) if worker.tasks else len(worker.later)):
            self._send(worker, worker.later.popleft())

    def _drain(self, worker: WorkerProcess) -> None:
        """The process has ended: read what it said before, then take note of its end."""
        while worker.connection is not None and worker.connection.poll(0):
            self._read(worker)
        if worker.connection is not None:
            self._end(worker, self._reap(worker))

    @staticmethod
    def _reap(worker: WorkerProcess) -> Crash:
        return Crash(worker.ended(), worker.stack(), bool(worker.hung))

    def _end(self, worker: WorkerProcess, crash: Crash) -> None:
        tasks, worker.tasks = worker.tasks, []
        worker.deaths, worker.streak = worker.deaths + 1, worker.streak + 1
        worker.crashes.append(crash)
        worker.failed_starts += not worker.ready and not (worker.served and _passes(worker))
        self._disconnect(worker)
        stack = f"\n{crash.stack}" if crash.stack and not crash.hung else ""  # that of one that hung is in the log
        again = f"; {len(tasks)} steps are built again" if tasks else ""
        _log.warning("%s%s%s", crash.how, again, stack, extra={"worker": worker.number, "pid": worker.pid})
        if self.events is not None:
            self.events.worker_died(worker.number, tasks, crash)
        if worker.leaving:
            self._remove(worker)
        elif not worker.given_up:
            self._loop.after(self._backoff_s(worker), lambda: self._spawn(worker))
        elif all(one.given_up for one in self.workers if not one.leaving):
            self._start_events.workers_gone(crash.how)

    @staticmethod
    def _backoff_s(worker: WorkerProcess) -> float:
        return min(0.1 * 2.0 ** min(worker.streak - 1, 10), _MAX_BACKOFF_S)

    def _disconnect(self, worker: WorkerProcess) -> None:
        self._watchdog.end(worker)
        if worker.connection is not None:
            self._loop.unwatch(worker.connection.fileno())
        for fd in (worker.pidfd, worker.output_fd):
            if fd is not None:
                self._loop.unwatch(fd)
        worker.close()

    # --- the watchdog's events -----------------------------------------------------------------------------

    def hung(self, worker: WorkerProcess, elapsed_s: float, stack: str) -> None:
        """Take note that the worker is killed now; its end is noticed like any other."""
        what = f"at one step (build_timeout_s = {self._timeouts.build_s:g})" if worker.ready else "at its start"
        worker.hung = f"hung: it was {what} for {elapsed_s:.1f} s, and was killed by SIGKILL"
        where = f"; where it hung:\n{stack}" if stack else "; it gave no stack: stopped, or blocked in the kernel"
        _log.error("%s %s%s", worker.name, worker.hung, where, extra={"worker": worker.number, "pid": worker.pid})

    def unkillable(self, worker: WorkerProcess) -> None:
        """The kernel does not end it, as over a dead network drive: another takes its place.

        SIGKILL is pending, so it runs no more code, and writes no segment, whenever the kernel lets it go.
        """
        if worker.process is not None:
            self._dismissed.append(worker.process)
            self._reap_dismissed()
        self._end(worker, Crash(f"{worker.name} {worker.hung}, of which it has not ended yet", worker.stack(), True))


def _passes(worker: WorkerProcess) -> bool:
    """Return whether what ended a start is no fault of the code's: no process to be had, or killed by somebody else."""
    return worker.process is None or (worker.process.returncode == -signal.SIGKILL and not worker.hung)
