"""Who is to blame when a consumer waits for another, and since when.

Owns `Fairness` and `Limits`. Invariant: only one for whom somebody waits *now* is told to leave: because it
stands at the
base of a lane, or because what it leases stands where a step is demanded and there is no memory for another segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from loader_service.sharing.consumer import Consumer
from loader_service.sharing.lane_set import LaneSet
from loader_service.sharing.pace import seconds_until

__all__ = ["Fairness", "Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """max_lanes: lanes with consumers, 0 for any number; evict_after_s: seconds of debt, 0 for never."""

    max_lanes: int = 0
    evict_after_s: float = 0.0


class Fairness:
    """The debts of the consumers in `rings`; see `sharing.pace` for what a debt is."""

    def __init__(self, rings: LaneSet, consumers: dict[int, Consumer], evict_after_s: float) -> None:
        self._rings, self._consumers, self.evict_after_s = rings, consumers, evict_after_s

    def pass_time(self, elapsed_s: float) -> Iterator[tuple[int, str]]:
        """All was as it is for `elapsed_s` seconds: (consumer, why it is evicted; empty: it is split), one by one.

        Each is to be acted on before the next is asked for.
        """
        blamed, hoarders = self._blamed(), self._hoarders()
        for lane in self._rings.lanes.values():
            lane.pass_time(elapsed_s, hoarders)
        for name in hoarders:
            if self._consumers[name].lane is None:
                self._consumers[name].debt_s += elapsed_s
        for name in blamed:
            if name not in self._blamed():  # another has left, and nobody waits for this one any more
                continue
            debt_s = self._debt_s(name)
            if debt_s >= self._consumers[name].terms.pace.limit_s and self._can_split(name):
                yield name, ""
            elif self.evict_after_s and debt_s >= self.evict_after_s:
                yield name, f"others waited {debt_s:.1f} s for it, and evict_after_s is {self.evict_after_s}"

    def due_s(self) -> float | None:
        """In how many seconds somebody will be overdue, if nothing happens; None: nobody will."""
        dues = [
            seconds_until(self._debt_s(name), limit_s) for name in self._blamed() for limit_s in self._limits_s(name)
        ]
        return min(dues, default=None)

    def _blamed(self) -> list[int]:
        in_lanes = [name for lane in self._rings.lanes.values() for name in lane.blamed()]
        return list(dict.fromkeys(in_lanes + self._hoarders()))

    def _hoarders(self) -> list[int]:
        """Those whose leased segments stand where a step is demanded, with no memory for another.

        They have left that lane, and are in none or in another: no split helps.
        """
        pool = self._rings.pool
        lacking = {
            segment
            for lane in self._rings.lanes.values()
            for step in lane.demands()
            if pool.leased(segment := lane.ring.of(step).segment) and not pool.could_take(1)
        }
        return [
            name for name, known in self._consumers.items() if lacking and not lacking.isdisjoint(known.leases.values())
        ]

    def _debt_s(self, name: int) -> float:
        known = self._consumers[name]
        return known.debt_s if known.lane is None else known.lane.members[name].debt_s

    def _limits_s(self, name: int) -> list[float]:
        """The debts at which something happens to one who is to blame."""
        evict = [self.evict_after_s] if self.evict_after_s else []
        return evict + ([self._consumers[name].terms.pace.limit_s] if self._can_split(name) else [])

    def _can_split(self, name: int) -> bool:
        known = self._consumers[name]
        if known.terms.pace.waits or known.lane is None or name not in known.lane.blamed():
            return False
        return self._rings.could_leave(known.lane, known.lane.members[name])
