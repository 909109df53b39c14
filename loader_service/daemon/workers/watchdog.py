"""Workers that are at one thing for too long: asked for their stack, then killed.

Owns `Watchdog`. Invariant: a worker's time counts from the moment it began what it does now; one that ends that in
time, or while it is asked for its stack, goes on. One timer for each worker, however many steps it builds; two while
the timer of its start still runs.

    overdue -> signal; faulthandler writes the stack without the worker's help, also in C code that holds the GIL
            -> the stack is there, or a second has passed -> killed -> it has ended, or the kernel cannot end it
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from loader_service.daemon.ports import Timer

__all__ = ["Timeouts", "WatchedProcess", "Watchdog", "WatchdogEvents"]

_log = logging.getLogger("loader_service.watchdog")
_LOOK_S = 0.05
"""A stack that has not grown for so long is complete."""
_STACK_S = 1.0
"""The time that a worker has for its stack: one that is stopped, or blocked in the kernel, gives none."""
_KILL_S = 5.0
"""A process that is there so long after SIGKILL is one that the kernel cannot end."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits of time, in seconds; 0 for none.

    Attributes:
        build_s: for one step.
        start_s: from the start of a worker until it is ready.
    """

    build_s: float = 0.0
    start_s: float = 0.0


class WatchedProcess(Protocol):
    """A worker as the watchdog sees it."""

    @property
    def name(self) -> str:
        """Name for logs."""
        ...

    def ask_for_stack(self) -> None:
        """Let the worker write its stack."""
        ...

    def forget_stack(self) -> None:
        """Forget what it has written: it is of no later crash."""
        ...

    def stack(self) -> str:
        """Return what it has written so far."""
        ...

    def kill(self) -> None:
        """Kill it, without waiting for its end."""
        ...


_Worker = TypeVar("_Worker", bound=WatchedProcess)
_Reported = TypeVar("_Reported", bound=WatchedProcess, contravariant=True)


class WatchdogEvents(Protocol[_Reported]):
    """The supervisor as the watchdog sees it."""

    def hung(self, worker: _Reported, elapsed_s: float, stack: str) -> None:
        """Take note that the worker is killed now, after `elapsed_s` seconds, and where it was."""
        ...

    def unkillable(self, worker: _Reported) -> None:
        """Take note that the kernel has not ended the worker."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Watch:
    since_s: float
    limit_s: float


class Watchdog(Generic[_Worker]):
    """Watch over what each worker has under way, and since when."""

    def __init__(self, timer: Timer, watcher: WatchdogEvents[_Worker]) -> None:
        self._timer, self._watcher = timer, watcher
        self._watches: dict[_Worker, _Watch] = {}
        self._armed: dict[_Worker, float] = {}  # when its timer goes off, which may be too early, never too late

    def begin(self, worker: _Worker, limit_s: float) -> None:
        """Take note that the worker begins something new, for which it has `limit_s` seconds; 0: for ever."""
        self._watches.pop(worker, None)
        if limit_s:
            self._watches[worker] = _Watch(self._timer.clock(), limit_s)
            if self._armed.get(worker, math.inf) > self._timer.clock() + limit_s:
                self._arm(worker, limit_s)

    def end(self, worker: _Worker) -> None:
        """Take note that the worker has nothing to do, or is no more. Idempotent."""
        self._watches.pop(worker, None)

    def _arm(self, worker: _Worker, delay_s: float) -> None:
        self._armed[worker] = at = self._timer.clock() + delay_s
        self._timer.after(delay_s, lambda: self._check(worker, at))

    def _check(self, worker: _Worker, at: float) -> None:
        if self._armed.get(worker) != at:
            return  # an earlier timer was wanted meanwhile
        del self._armed[worker]
        watch = self._watches.get(worker)
        if watch is None:
            return
        left_s = watch.since_s + watch.limit_s - self._timer.clock()
        if left_s > 0:
            self._arm(worker, left_s)
        else:
            worker.ask_for_stack()
            deadline = self._timer.clock() + _STACK_S
            self._timer.after(_LOOK_S, lambda: self._look(worker, watch, "", deadline))

    def _look(self, worker: _Worker, watch: _Watch, seen: str, deadline: float) -> None:
        now = self._timer.clock()
        if self._watches.get(worker) is not watch:
            worker.forget_stack()
            _log.warning("%s was done after more than %s s, before it was killed", worker.name, watch.limit_s)
            return
        stack = worker.stack()
        if (stack and stack == seen) or now >= deadline:
            self._watcher.hung(worker, now - watch.since_s, stack)
            worker.kill()
            self._timer.after(_KILL_S, lambda: self._check_ended(worker, watch))
        else:
            self._timer.after(_LOOK_S, lambda: self._look(worker, watch, stack, deadline))

    def _check_ended(self, worker: _Worker, watch: _Watch) -> None:
        if self._watches.get(worker) is watch:
            self._watcher.unkillable(worker)
