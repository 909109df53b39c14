"""Timing of functions side by side.

Owns `Case` and `run`. Invariant: the cases of one run take turns, round by round, so that a machine whose speed drifts
slows them all alike. The result of a case is the median of its rounds, and its ratio to the first case of its group.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Case", "Result", "print_results", "run"]


@dataclass(frozen=True, slots=True)
class Case:
    """A function to be timed.

    Attributes:
        group: Cases of one group are compared with each other.
        name: Name in the table.
        act: The function.
        items: Number of items that one call handles.
        unit: Name of an item.
    """

    group: str
    name: str
    act: Callable[[], object]
    items: int
    unit: str


@dataclass(frozen=True, slots=True)
class Result:
    """The median of a case's rounds: seconds for one call."""

    case: Case
    seconds: float

    @property
    def rate(self) -> float:
        """Items a second."""
        return self.case.items / self.seconds


def run(cases: list[Case], rounds: int) -> list[Result]:
    """Call each case once to warm up, then once in each round."""
    for case in cases:
        case.act()
    taken: list[list[float]] = [[] for _ in cases]
    for _ in range(rounds):
        for times, case in zip(taken, cases, strict=True):
            start = time.perf_counter()
            case.act()
            times.append(time.perf_counter() - start)
    return [Result(case, statistics.median(times)) for case, times in zip(cases, taken, strict=True)]


def print_results(results: list[Result]) -> None:
    """Print a line for each result: its rate, the time of a call, its rate over that of its group's first case."""
    first: dict[str, Result] = {}
    for result in results:
        base = first.setdefault(result.case.group, result)
        print(
            f"{result.case.group:<14}{result.case.name:<38}{result.rate:>14,.0f} {result.case.unit}/s"
            f"{result.seconds * 1e3:>12.3f} ms{result.rate / base.rate:>8.2f}x"
        )
