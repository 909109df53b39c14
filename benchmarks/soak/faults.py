"""Faults, injected when they are due.

Owns `FaultInjector`. Invariant: a fault that finds no target is tried again until it does, so at the end every fault of
the schedule was injected. A worker is killed only if it is a child of the soak's daemon, by a pidfd, which names that
process and no later one of the same pid.
"""

from __future__ import annotations

import heapq
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from benchmarks.processes import parent_pid
from benchmarks.soak.consumer_pool import ConsumerPool
from benchmarks.soak.daemon_runner import DaemonRunner
from benchmarks.soak.digest_checker import DigestChecker
from benchmarks.soak.helper_processes import HelperProcesses
from benchmarks.soak.schedule import Fault, FaultKind
from benchmarks.soak.shm_filler import ShmFiller
from benchmarks.soak.workload import MEMORY_LIMITS
from loader_client import Client
from loader_service.errors import MemoryLimitError, ServiceClosedError, SharedMemoryError

__all__ = ["FaultInjector", "Targets"]

_FILLED_S = 2.0
_APART_S = 0.2
"""Least seconds between faults: those that wait for a daemon are not injected all at once when it is back."""


@dataclass(frozen=True, slots=True)
class Targets:
    """The parts of a soak that faults are injected into, and the checker that counts what they cause."""

    daemon: DaemonRunner
    consumers: ConsumerPool
    helpers: HelperProcesses
    shm: ShmFiller
    client: Client
    checker: DigestChecker


class FaultInjector:
    """Injects the faults of `schedule`, whose times count from the injector's construction.

    Attributes:
        done: Number of faults injected, by kind.
    """

    def __init__(self, schedule: list[Fault], seed: int, targets: Targets) -> None:
        self.done: Counter[FaultKind] = Counter()
        self._rng = random.Random(f"faults {seed}")
        self._targets = targets
        start_s = time.monotonic()
        self._due = [(start_s + fault.at_s, fault.kind) for fault in schedule]
        self._not_before_s = start_s
        self._reversals: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    @property
    def pending(self) -> int:
        """Number of faults that are still to be injected, to be reversed, or that have not ended."""
        return len(self._due) + len(self._reversals) + self._targets.helpers.running

    def act(self) -> None:
        """Inject the next fault that is due, and reverse those that have lasted long enough."""
        now = time.monotonic()
        while self._reversals and self._reversals[0][0] <= now:
            heapq.heappop(self._reversals)[2]()
        if now < self._not_before_s:
            return
        for fault in self._due:
            if fault[0] > now:
                return
            if self._inject(fault[1]):
                self.done[fault[1]] += 1
                self._due.remove(fault)
                self._not_before_s = now + _APART_S
                return

    def reverse_all(self) -> None:
        """Reverse all faults that last, now. Idempotent."""
        while self._reversals:
            heapq.heappop(self._reversals)[2]()

    def _inject(self, kind: FaultKind) -> bool:
        """Inject a fault; False where there was no target for it."""
        targets, rng = self._targets, self._rng
        actions: dict[FaultKind, Callable[[], bool]] = {
            FaultKind.KILL_WORKER: self._kill_worker,
            FaultKind.KILL_CONSUMER: lambda: targets.consumers.kill_one(rng),
            FaultKind.STOP_CONSUMER: self._stop_consumer,
            FaultKind.KILL_DAEMON: lambda: targets.daemon.send(signal.SIGKILL),
            FaultKind.END_DAEMON: lambda: targets.daemon.send(signal.SIGTERM),
            FaultKind.TUNE_WORKERS: lambda: self._tune(workers=rng.randint(1, 3)),
            FaultKind.TUNE_PREFETCH: lambda: self._tune(prefetch=rng.choice([5, 8, 13])),
            FaultKind.TUNE_MEMORY: lambda: self._tune(memory_limit=rng.choice(list(MEMORY_LIMITS.values()))),
            FaultKind.SLOW_CONSUMER: lambda: self._start_helper("slow_consumer"),
            FaultKind.FLOOD: lambda: self._start_helper("flooder"),
            FaultKind.FILL_SHM: self._fill_shm,
        }
        return actions[kind]()

    def _reverse_after(self, delay_s: float, reverse: Callable[[], None]) -> None:
        heapq.heappush(self._reversals, (time.monotonic() + delay_s, next(self._order), reverse))

    def _kill_worker(self) -> bool:
        """Kill a worker that is ready: after three that die before they are, the daemon gives one up, rightly."""
        daemon = self._targets.daemon.running
        if daemon is None or not daemon.ready:
            return False
        try:
            workers = self._targets.client.status()["workers"]
        except ServiceClosedError:
            return False
        pids = [worker["pid"] for worker in workers if worker["state"] == "ready"]
        return bool(pids) and _kill_child(daemon.process.pid, self._rng.choice(pids))

    def _stop_consumer(self) -> bool:
        place_id = self._targets.consumers.stop_one(self._rng)
        if place_id is None:
            return False
        self._reverse_after(self._rng.uniform(0.5, 3.0), lambda: self._targets.consumers.resume(place_id))
        return True

    def _tune(self, **settings: int) -> bool:
        """Change settings; a refusal for lack of memory is promised, and noted."""
        try:
            self._targets.client.status()  # finds the daemon again if another one runs
            self._targets.client.tune(None, **settings)
        except ServiceClosedError:
            return False
        except (MemoryLimitError, SharedMemoryError) as error:
            self._targets.checker.notes[f"tune refused {type(error).__name__}"] += 1
        return True

    def _start_helper(self, name: str) -> bool:
        self._targets.helpers.start(name)
        return True

    def _fill_shm(self) -> bool:
        shm = self._targets.shm
        if not shm.full:
            shm.fill()
            self._reverse_after(_FILLED_S, shm.clear)
        return True


def _kill_child(parent: int, pid: int) -> bool:
    """Send SIGKILL to `pid` if it is a child of `parent`; False where it is not, or is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if parent_pid(pid) != parent:
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True
