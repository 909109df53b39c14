"""Which faults come when.

Owns `Kind`, `Fault` and `plan`. Invariant: a plan depends on its arguments alone, so a seed names a run's faults. All
kinds come equally often as the deck says, in random order; the daemon is left alone at the end, so that one of its
lives is long enough to show what grows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

__all__ = ["Fault", "Kind", "plan"]

_LEAST_PAUSE_S, _MOST_PAUSE_S = 0.6, 1.5
"""Mean time between faults, exponentially distributed: in runs of seconds, and of minutes."""
_FIRST_S = 1.0
_QUIET_S = 2.0
"""No fault in so many last seconds: each has its effect while the consumers still read."""
_DAEMON_SHARE = 0.6
"""Of the run's time, in which the daemon may die."""


class Kind(Enum):
    """What is done to whom."""

    KILL_WORKER = "worker killed"
    KILL_CONSUMER = "consumer killed"
    STOP_CONSUMER = "consumer stopped for a while"
    KILL_DAEMON = "daemon killed"
    END_DAEMON = "daemon ended (SIGTERM)"
    TUNE_WORKERS = "number of workers changed"
    TUNE_PREFETCH = "prefetch changed"
    TUNE_MEMORY = "memory limit changed"
    FILL = "/dev/shm filled for a while"


_OF_THE_DAEMON = (Kind.KILL_DAEMON, Kind.END_DAEMON)
_DECK = [Kind.KILL_WORKER] * 3 + [Kind.KILL_CONSUMER] * 2 + [Kind.STOP_CONSUMER] * 2
_DECK += [Kind.TUNE_WORKERS, Kind.TUNE_PREFETCH, Kind.TUNE_MEMORY, *_OF_THE_DAEMON]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, `at_s` seconds after the start."""

    at_s: float
    kind: Kind


def plan(seed: int, duration_s: float, *, fill: bool = False) -> list[Fault]:
    """The faults of a run of `duration_s` seconds, in order.

    >>> plan(1, 60.0) == plan(1, 60.0), {fault.kind for fault in plan(1, 60.0)} == set(Kind) - {Kind.FILL}
    (True, True)
    """
    return [
        fault
        for fault in _faults(random.Random(f"plan {seed}"), duration_s - _QUIET_S, fill)
        if fault.kind not in _OF_THE_DAEMON or fault.at_s <= _DAEMON_SHARE * duration_s
    ]


def _faults(rng: random.Random, until_s: float, fill: bool) -> Iterator[Fault]:
    at_s, mean_s = _FIRST_S, min(_MOST_PAUSE_S, _LEAST_PAUSE_S + until_s / 200)
    while True:
        deck = _DECK + [Kind.FILL] * fill
        rng.shuffle(deck)
        for kind in deck:
            at_s += rng.expovariate(1 / mean_s)
            if at_s > until_s:
                return
            yield Fault(at_s, kind)
