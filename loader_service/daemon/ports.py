"""Ports: the interfaces through which the parts of the daemon meet.

Owns the protocols `Timer`, `EventSource`, `Workers` and `WorkerEvents`. Invariant: no part of the daemon names the
class of another that it only calls; a test puts a plain object in its place. A worker is known by its `worker_id`, an
integer that no other worker of this daemon has had.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from loader_service.daemon.workers.crashes import Crash
from loader_service.daemon.workers.messages import (
    Build,
    Built,
    Explained,
    Failed,
    Need,
    StreamFacts,
    ToWorker,
    Verified,
    Verify,
)

__all__ = ["EventSource", "StartEvents", "TaskMessage", "Timer", "WorkerEvents", "Workers"]

TaskMessage = Explained | Need | Built | Verified | Failed
"""A message of a worker about one of its tasks."""


class Timer(Protocol):
    """The clock and the timers of the daemon's event loop."""

    def clock(self) -> float:
        """Return the time in seconds, of a clock that cannot jump."""
        ...

    def after(self, delay_s: float, handler: Callable[[], None], /) -> None:
        """Call `handler` once, `delay_s` seconds from now."""
        ...


class EventSource(Timer, Protocol):
    """The daemon's event loop: timers, and descriptors that become readable."""

    def watch(self, source: int, handler: Callable[[], None], /) -> None:
        """Call `handler` whenever the descriptor `source` is readable."""
        ...

    def unwatch(self, source: int, /) -> None:
        """Forget `source`; do so before it is closed. Idempotent."""
        ...


class Workers(Protocol):
    """The workers as the broker sees them: who can take a task, and the way to each."""

    def next_free(self, but: int | None = None) -> int | None:
        """Return the ready worker with the fewest tasks, if it can take one more; never `but`."""
        ...

    def has_others(self, worker_id: int) -> bool:
        """Return whether a worker other than this one is ready, however busy it is."""
        ...

    def assign(self, worker_id: int, task: Build | Verify) -> None:
        """Give the worker one more task."""
        ...

    def send(self, worker_id: int, message: ToWorker) -> None:
        """Send a message to the worker; nothing happens where it is gone, for its end is reported."""
        ...

    def broadcast(self, message: ToWorker) -> None:
        """Send a message to every ready worker."""
        ...


class WorkerEvents(Protocol):
    """The broker as the supervisor sees it: who is told what became of the tasks."""

    def worker_said(self, worker_id: int, message: TaskMessage) -> None:
        """Take a worker's word on one of its tasks."""
        ...

    def worker_died(self, worker_id: int, task_ids: list[int], crash: Crash) -> None:
        """Take note that a worker ended; of its tasks the first was under way, the others only waited."""
        ...

    def worker_ready(self, worker_id: int) -> None:
        """Take note that one more worker can be given tasks."""
        ...


class StartEvents(Protocol):
    """The service as the supervisor sees it: who is told how workers start, and that none is left."""

    def worker_started(self, worker_id: int, facts: list[StreamFacts]) -> None:
        """Take note of the streams that a worker has made. Raises FactoryError where they are not the known ones."""
        ...

    def start_failed(self, worker_id: int, error: dict[str, object]) -> None:
        """Take note of the record of the error for which a worker could not make its streams."""
        ...

    def workers_gone(self, how: str) -> None:
        """Take note that every worker is gone and none can be started."""
        ...
