"""Workers that are at one thing for too long: found out, asked for their stack, given up.

Owns `Watchdog`. Invariant: only what a worker does now counts, from when it began that; one that ends it in time,
or while
it is being asked, goes on. One timer for each worker, however many steps it builds; two while its start's still runs.

    overdue -> signal; faulthandler writes the stack without the worker's help, also in C code that holds the GIL
            -> the stack is there, or a second has passed -> killed -> it has ended, or nothing can end it
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Watchdog", "WatchedProcess", "Timeouts"]

_log = logging.getLogger("loader_service.hangs")
_LOOK_S = 0.05
"""A stack that has not grown for so long is complete."""
_STACK_S = 1.0
"""So long a worker has for its stack: one that is stopped, or blocked in the kernel, gives none."""
_KILL_S = 5.0
"""So long after SIGKILL a process is there only if the kernel cannot end it."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """build_s: of one step; start_s: until a worker is READY; 0 for ever."""

    build_s: float = 0.0
    start_s: float = 0.0


class WatchedProcess(Protocol):
    """A worker, as far as its hanging goes. kill: at once, without waiting for its end."""

    @property
    def name(self) -> str: ...
    def ask_for_stack(self) -> None: ...
    def forget_stack(self) -> None: ...
    def stack(self) -> str: ...
    def kill(self) -> None: ...


class _Timer(Protocol):
    """The daemon's loop, as far as time goes."""

    def clock(self) -> float: ...
    def after(self, delay_s: float, handler: Callable[[], None]) -> None: ...


class _Watcher(Protocol):
    """The one who is told: `hung` right before the worker is killed, `unkillable` where it has not ended by that."""

    def hung(self, worker: Any, elapsed_s: float, stack: str) -> None: ...
    def unkillable(self, worker: Any) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class _Watch:
    since_s: float
    limit_s: float


class Watchdog:
    """Watch over what each worker has under way, and since when."""

    def __init__(self, timer: _Timer, watcher: _Watcher) -> None:
        self._timer, self._watcher = timer, watcher
        self._watches: dict[WatchedProcess, _Watch] = {}
        self._armed: dict[WatchedProcess, float] = {}  # when its timer goes off, which may be too early, never too late

    def begin(self, worker: WatchedProcess, limit_s: float) -> None:
        """The worker begins something new, for which it has `limit_s` seconds; 0: for ever."""
        self._watches.pop(worker, None)
        if limit_s:
            self._watches[worker] = _Watch(self._timer.clock(), limit_s)
            if self._armed.get(worker, math.inf) > self._timer.clock() + limit_s:
                self._arm(worker, limit_s)

    def end(self, worker: WatchedProcess) -> None:
        """The worker has nothing to do, or is no more. Idempotent."""
        self._watches.pop(worker, None)

    def _arm(self, worker: WatchedProcess, delay_s: float) -> None:
        self._armed[worker] = at = self._timer.clock() + delay_s
        self._timer.after(delay_s, lambda: self._check(worker, at))

    def _check(self, worker: WatchedProcess, at: float) -> None:
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

    def _look(self, worker: WatchedProcess, watch: _Watch, seen: str, deadline: float) -> None:
        now = self._timer.clock()
        if self._watches.get(worker) is not watch:
            worker.forget_stack()
            _log.warning("%s was done after more than %s s, before it was killed", worker.name, watch.limit_s)
            return
        stack = worker.stack()
        if (stack and stack == seen) or now >= deadline:
            self._watcher.hung(worker, now - watch.since_s, stack)
            worker.kill()
            self._timer.after(_KILL_S, lambda: self._bury(worker, watch))
        else:
            self._timer.after(_LOOK_S, lambda: self._look(worker, watch, stack, deadline))

    def _bury(self, worker: WatchedProcess, watch: _Watch) -> None:
        if self._watches.get(worker) is watch:
            self._watcher.unkillable(worker)
