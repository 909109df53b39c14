"""Time that consumers cost each other: who makes others wait, since when, and what follows.

Owns `Fairness` and `Limits`. Invariant: only one for whom somebody waits *now* is told to leave: because it stands at
the base of a lane (a blocker), or because what it leases stands where a step is demanded and there is no memory for
another segment (a memory blocker). It needs no clock, only how much time has passed in which state.

    blocked_others_s of a consumer:  +1 a second while another consumer cannot go on because of it
                                     -1/4 a second while nobody in its lane waits for anybody, never below 0
    it is split off when that reaches patience_s

So a consumer that stands still is split off after patience_s, and one for which others wait more than a fifth of the
time is split off in the end, however short each wait; one for which they wait less never is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from loader_service.sharing.consumer import Consumer
from loader_service.sharing.lane import Lane
from loader_service.sharing.lane_table import LaneTable

__all__ = ["Fairness", "Limits", "blockers", "waiting_for_others"]

_FORGIVEN = 0.25
"""Seconds forgiven in a second in which nobody waits: 0.2 * 1 = 0.8 * 0.25, so a fifth of the time is forgiven."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one stream.

    Args:
        max_lanes: lanes with consumers, 0 for any number.
        evict_after_s: seconds for which others wait for a consumer before it is put out, 0 for never.
    """

    max_lanes: int = 0
    evict_after_s: float = 0.0


def waiting_for_others(lane: Lane) -> list[Consumer]:
    """Return the members who cannot go on because the window ends before the step that they want."""
    return [
        member
        for member in lane.members.values()
        if member.demanded and member.wanted is not None and not lane.can_come(member.wanted)
    ]


def blockers(lane: Lane) -> list[Consumer]:
    """Return the members for whom others wait: at the base, and not because their own step is being built."""
    waiting = waiting_for_others(lane)
    if not waiting:
        return []
    return [
        member
        for member in lane.members.values()
        if member.cursor == lane.base and any(one is not member for one in waiting) and not _is_served(lane, member)
    ]


def _is_served(lane: Lane, member: Consumer) -> bool:
    """Return whether its own step is being built: it cannot go on without it, or it holds nothing but its place."""
    waits = member.demanded or member.cursor == member.position
    return waits and member.wanted is not None and lane.can_come(member.wanted)


class Fairness:
    """Account of the time that the consumers of `lanes` cost each other."""

    def __init__(self, lanes: LaneTable, consumers: dict[int, Consumer], evict_after_s: float) -> None:
        self._lanes, self._consumers, self.evict_after_s = lanes, consumers, evict_after_s

    def pass_time(self, elapsed_s: float) -> Iterator[tuple[Consumer, str]]:
        """Account for `elapsed_s` seconds in which all was as it is.

        Yields:
            (consumer, why it is evicted; empty where it is split off), one by one. Each is to be acted on before the
            next is asked for.
        """
        blocking = self.blocking()
        self._count(elapsed_s, blocking)
        for consumer in blocking.values():
            if consumer.consumer_id not in self.blocking():  # another has left, and nobody waits for this one any more
                continue
            blocked_s = consumer.blocked_others_s
            if blocked_s >= consumer.options.policy.limit_s and self._can_split(consumer):
                yield consumer, ""
            elif self.evict_after_s and blocked_s >= self.evict_after_s:
                yield consumer, f"others waited {blocked_s:.1f} s for it, and evict_after_s is {self.evict_after_s}"

    def due_s(self) -> float | None:
        """Return in how many seconds somebody leaves if nothing happens, None where nobody does."""
        limits = [(one, limit_s) for one in self.blocking().values() for limit_s in self._limits_s(one)]
        return min((max(0.0, limit_s - one.blocked_others_s) for one, limit_s in limits), default=None)

    def blocking(self) -> dict[int, Consumer]:
        """Return those for whom somebody waits now, by their ids."""
        at_base = [member for lane in self._lanes.lanes.values() for member in blockers(lane)]
        return {one.consumer_id: one for one in at_base + self._memory_blockers()}

    def _count(self, elapsed_s: float, blocking: dict[int, Consumer]) -> None:
        for consumer in blocking.values():
            consumer.blocked_others_s += elapsed_s
        for lane in self._lanes.lanes.values():
            if not waiting_for_others(lane):
                for member in lane.members.values():
                    if member.consumer_id not in blocking:
                        member.blocked_others_s = max(0.0, member.blocked_others_s - _FORGIVEN * elapsed_s)

    def _memory_blockers(self) -> list[Consumer]:
        """Return those whose leased segments stand where a step is demanded, with no memory for another.

        They have left that lane, and are in none or in another: no split helps.
        """
        pool = self._lanes.pool
        lacking = {
            segment
            for lane in self._lanes.lanes.values()
            for step in lane.demands()
            if pool.is_kept(segment := lane.ring.of(step).segment) and not pool.could_take(1)
        }
        if not lacking:
            return []
        return [one for one in self._consumers.values() if not lacking.isdisjoint(one.leases.values())]

    def _limits_s(self, consumer: Consumer) -> list[float]:
        """Return the values of `blocked_others_s` at which something happens to a consumer."""
        evict = [self.evict_after_s] if self.evict_after_s else []
        return evict + ([consumer.options.policy.limit_s] if self._can_split(consumer) else [])

    def _can_split(self, consumer: Consumer) -> bool:
        lane = self._lanes.of(consumer)
        if consumer.options.policy.waits or lane is None or consumer not in blockers(lane):
            return False
        return self._lanes.could_leave(lane, consumer)
