"""Faults, done when they are due.

Owns `Injector`. Invariant: a fault that finds nobody to be done to is tried again until it can be done, so at the end
each of the plan has been; a worker is only killed if it is a child of our daemon's, by a descriptor that names that
process and no later one.
"""

from __future__ import annotations

import heapq
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from itertools import count

from benchmarks.soak.consumer_pool import Crowd
from benchmarks.soak.daemon_runner import Keeper
from benchmarks.soak.digest_checker import Ledger
from benchmarks.soak.plan import Fault, Kind
from benchmarks.soak.setting import RINGS
from benchmarks.soak.shm_filler import Room
from benchmarks.soak.vitals import parent_of
from loader_client import Client
from loader_service.errors import MemoryLimitError, ServiceClosedError, SharedMemoryError

__all__ = ["Injector"]

_FILLED_S = 2.0
_APART_S = 0.2
"""What could not be done while the daemon was gone is not all done at once when it is back."""


class Injector:
    """Those of `plan`, whose times count from now. done: how many of each kind."""

    def __init__(
        self, plan: list[Fault], seed: int, keeper: Keeper, crowd: Crowd, room: Room, client: Client, ledger: Ledger
    ) -> None:
        self.done: Counter[Kind] = Counter()
        self._rng = random.Random(f"faults {seed}")
        self._keeper, self._crowd, self._room, self._client, self._ledger = keeper, crowd, room, client, ledger
        start_s = time.monotonic()
        self._due = [(start_s + fault.at_s, fault.kind) for fault in plan]
        self._not_before_s = start_s
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    @property
    def pending(self) -> int:
        """How many are still to be done, or to be taken back."""
        return len(self._due) + len(self._later)

    def act(self) -> None:
        """Do what is due, and take back what has lasted long enough."""
        now = time.monotonic()
        while self._later and self._later[0][0] <= now:
            heapq.heappop(self._later)[2]()
        if now < self._not_before_s:
            return
        for fault in self._due:
            if fault[0] > now:
                return
            if self._do(fault[1]):
                self.done[fault[1]] += 1
                self._due.remove(fault)
                self._not_before_s = now + _APART_S
                return

    def undo(self) -> None:
        """Take everything back now."""
        while self._later:
            heapq.heappop(self._later)[2]()

    def _do(self, kind: Kind) -> bool:
        act: Callable[[], bool] = {
            Kind.KILL_WORKER: self._kill_worker,
            Kind.KILL_CONSUMER: lambda: self._crowd.kill(self._rng),
            Kind.STOP_CONSUMER: self._stop_consumer,
            Kind.KILL_DAEMON: lambda: self._keeper.send(signal.SIGKILL),
            Kind.END_DAEMON: lambda: self._keeper.send(signal.SIGTERM),
            Kind.TUNE_WORKERS: lambda: self._tune(workers=self._rng.randint(1, 3)),
            Kind.TUNE_PREFETCH: lambda: self._tune(prefetch=self._rng.choice([5, 8, 13])),
            Kind.TUNE_MEMORY: lambda: self._tune(memory_limit=self._rng.choice(list(RINGS.values()))),
            Kind.FILL: self._fill,
        }[kind]
        return act()

    def _after(self, delay_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._later, (time.monotonic() + delay_s, next(self._order), act))

    def _kill_worker(self) -> bool:
        """One that is ready: for three that die before they are the daemon gives a worker up, and so it should."""
        life = self._keeper.life
        if life is None or not life.ready:
            return False
        try:
            pids = [worker["pid"] for worker in self._client.status()["workers"] if worker["state"] == "ready"]
        except ServiceClosedError:
            return False
        return bool(pids) and _kill_child(life.process.pid, self._rng.choice(pids))

    def _stop_consumer(self) -> bool:
        place = self._crowd.stop(self._rng)
        if place is None:
            return False
        self._after(self._rng.uniform(0.5, 3.0), lambda: self._crowd.go_on(place))
        return True

    def _tune(self, **settings: int) -> bool:
        """Where memory does not suffice it is refused, and that is as it should be."""
        try:
            self._client.status()  # finds the daemon again if it is another
            self._client.tune(None, **settings)
        except ServiceClosedError:
            return False
        except (MemoryLimitError, SharedMemoryError) as error:
            self._ledger.notes[f"tune refused {type(error).__name__}"] += 1
        return True

    def _fill(self) -> bool:
        if not self._room.full:
            self._room.fill()
            self._after(_FILLED_S, self._room.clear)
        return True


def _kill_child(parent: int, pid: int) -> bool:
    """SIGKILL for `pid`, if it is a child of `parent`."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if parent_of(pid) != parent:
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True
