"""The faults of a soak and their times.

Owns `FaultKind`, `Fault` and `fault_schedule`. Invariant: a schedule depends on its arguments alone, so a seed names
the faults of a run. The kinds come in random order with the frequencies of `_FREQUENCIES`. The daemon is not killed
near the end of a run, so that one of its processes lives long enough to show what grows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

__all__ = ["Fault", "FaultKind", "fault_schedule"]

_MIN_PAUSE_S, _MAX_PAUSE_S = 0.6, 1.5
"""Mean seconds between faults, exponentially distributed, in runs of seconds and in runs of minutes."""
_FIRST_S = 1.0
_QUIET_S = 2.0
"""Seconds at the end without a fault, so that each fault takes effect while consumers still read."""
_DAEMON_SHARE = 0.6
"""Share of the run's time, from its start, in which the daemon may be killed."""


class FaultKind(Enum):
    """Kinds of faults; the values are their descriptions for people."""

    KILL_WORKER = "worker killed"
    KILL_CONSUMER = "consumer killed"
    STOP_CONSUMER = "consumer stopped for a while"
    KILL_DAEMON = "daemon killed"
    END_DAEMON = "daemon ended (SIGTERM)"
    TUNE_WORKERS = "number of workers changed"
    TUNE_PREFETCH = "prefetch changed"
    TUNE_MEMORY = "memory limit changed"
    SLOW_CONSUMER = "slow consumer beside a fast one"
    FLOOD = "socket flooded by a stranger"
    FILL_SHM = "/dev/shm filled for a while"


_FREQUENCIES = {kind: 1 for kind in FaultKind if kind is not FaultKind.FILL_SHM}
_FREQUENCIES |= {FaultKind.KILL_WORKER: 3, FaultKind.KILL_CONSUMER: 2, FaultKind.STOP_CONSUMER: 2}
_DAEMON_KINDS = (FaultKind.KILL_DAEMON, FaultKind.END_DAEMON)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, `at_s` seconds after the start."""

    at_s: float
    kind: FaultKind


def fault_schedule(seed: int, duration_s: float, *, fill_shm: bool = False) -> list[Fault]:
    """Draw the faults of a run, in order of their times.

    Args:
        seed: Names the schedule.
        duration_s: Length of the run in seconds.
        fill_shm: Also fill /dev/shm now and then.

    >>> fault_schedule(1, 60.0) == fault_schedule(1, 60.0)
    True
    """
    return [
        fault
        for fault in _draw(random.Random(f"schedule {seed}"), duration_s - _QUIET_S, fill_shm)
        if fault.kind not in _DAEMON_KINDS or fault.at_s <= _DAEMON_SHARE * duration_s
    ]


def _draw(rng: random.Random, until_s: float, fill_shm: bool) -> Iterator[Fault]:
    at_s, mean_s = _FIRST_S, min(_MAX_PAUSE_S, _MIN_PAUSE_S + until_s / 200)
    frequencies = _FREQUENCIES | ({FaultKind.FILL_SHM: 1} if fill_shm else {})
    while True:
        kinds = [kind for kind, times in frequencies.items() for _ in range(times)]
        rng.shuffle(kinds)
        for kind in kinds:
            at_s += rng.expovariate(1 / mean_s)
            if at_s > until_s:
                return
            yield Fault(at_s, kind)
