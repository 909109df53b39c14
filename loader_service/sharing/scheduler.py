"""All consumers of one stream: who shares a ring, who gets what, who leaves whom.

Owns `RingScheduler`, the state machine that the broker drives: events and times come in, claims and answers go out. No
clock, no socket, no process. Invariants: each consumer gets exactly the steps that it asks for; a step is built once
for all consumers of a lane; what a consumer reads is never written.

    open, seek, resume, merge   one operation: join the lane whose window holds my step, else get a new one
    next step                   the lane moves along; the consumer waits for it
    split                       a consumer that is overdue (`sharing.pace`) leaves; its leased segments leave with it
    evict                       the same, but its segments are given up to it, and it must open again
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from loader_service.errors import (
    ArgumentError,
    ConsumerClosedError,
    EvictedError,
    IntegrityError,
    MemoryLimitError,
    SharedMemoryError,
)
from loader_service.sharing.consumer import Answer, Consumer, Failure, Grant
from loader_service.sharing.fairness import Fairness, Limits
from loader_service.sharing.lane import Lane, Member
from loader_service.sharing.lane_set import Claim, LaneSet
from loader_service.sharing.pace import ConsumerOptions
from loader_service.sharing.ring import SlotState
from loader_service.sharing.segment_pool import SegmentPool

__all__ = ["Passed", "RingScheduler"]


@dataclass(frozen=True, slots=True)
class Passed:
    """What came of some time: the answers that it brought, and who was evicted."""

    answers: list[tuple[int, Answer]] = field(default_factory=list)
    evicted: list[int] = field(default_factory=list)


class RingScheduler:
    """The consumers and lanes of one stream.

    prefetch: P, the slots of a ring; pool: its segments; lease_ids: where lease numbers come from, one source for
    all streams of a daemon.
    """

    def __init__(
        self, prefetch: int, pool: SegmentPool, lease_ids: Iterable[int] | None = None, limits: Limits | None = None
    ) -> None:
        limits = limits or Limits()
        self.rings = LaneSet(prefetch, pool, limits.max_lanes)
        self.consumers: dict[int, Consumer] = {}
        self.debts = Fairness(self.rings, self.consumers, limits.evict_after_s)
        self._lease_ids = iter(count() if lease_ids is None else lease_ids)

    @property
    def prefetch(self) -> int:
        return self.rings.prefetch

    @property
    def pool(self) -> SegmentPool:
        return self.rings.pool

    @property
    def lanes(self) -> dict[int, Lane]:
        return self.rings.lanes

    # --- consumers ---------------------------------------------------------------------------------------

    def open(self, consumer: int, step: int | None, terms: ConsumerOptions | None = None) -> int:
        """A new consumer whose next step is `step`, or with None where the most consumers are now: that step.

        Raises ArgumentError for its terms, and what memory raises; then it is not open.
        """
        if consumer in self.consumers:
            raise IntegrityError(f"consumer {consumer} was opened twice")
        terms = terms or ConsumerOptions()
        hold = terms.hold_in(self.prefetch)
        position = self.rings.live_step() if step is None else step
        opened = Consumer(position, terms, hold)
        self._join(consumer, opened)
        self.consumers[consumer] = opened
        return position

    def ask(self, consumer: int, step: int, *, demanded: bool = True, jumps: bool = False) -> Answer | None:
        """The consumer wants `step`: the answer if it stands ready, else None and it comes from a later event.

        demanded: it cannot go on without it, so others who keep it from being built are to blame; jumps: rather into
        another lane than to wait for what it holds itself. Raises ConsumerClosedError, EvictedError, and what memory
        raises: then the consumer is open and may ask again.
        """
        asking = self._open_one(consumer)
        lane = asking.lane
        if lane is None or (jumps and lane.is_blocked_by(consumer, step)) or not self._stays(asking, lane, step):
            lane = self._change(consumer, asking, step)
        lane.want(consumer, step, demanded)
        asking.position = step
        answer = self._answer(consumer, asking)
        self.rings.fit(lane)
        return answer

    def waits(self, consumer: int) -> bool:
        """Whether it has asked for a step and has no answer yet."""
        lane = self.consumers[consumer].lane
        return lane is not None and lane.members[consumer].wanted is not None

    def demand(self, consumer: int, step: int) -> None:
        """What the consumer asked for ahead, it now cannot go on without; one that has its answer is ignored."""
        known = self.consumers.get(consumer)
        if known is not None and known.lane is not None:
            member = known.lane.members[consumer]
            member.demanded = member.demanded or member.wanted == step

    def release(self, consumer: int, lease: int) -> None:
        """End one lease; unknown consumers and leases are ignored, for a client may repeat itself."""
        known = self.consumers.get(consumer)
        if known is not None and lease in known.leases:
            if known.lane is not None and lease in known.lane.members[consumer].leases:
                known.lane.release(consumer, lease)
                self.rings.fit(known.lane)
            self.pool.unlease(known.leases.pop(lease))
            self._forget_if_done(consumer, known)

    def close(self, consumer: int) -> None:
        """The consumer takes no more steps; what it leases stays as it is until released. Idempotent."""
        closing = self.consumers.get(consumer)
        if closing is None or closing.closed:
            return
        closing.closed = True
        self._depart(consumer, closing)
        self._forget_if_done(consumer, closing)

    def drop(self, consumer: int) -> None:
        """The consumer's client is gone: close it and end all its leases."""
        self.close(consumer)
        gone = self.consumers.get(consumer)
        for lease in list(gone.leases) if gone else ():
            self.release(consumer, lease)

    def evict(self, consumer: int, why: str) -> None:
        """Put the consumer out: what it leases is given up to it, and its next request raises EvictedError."""
        evicted = self.consumers[consumer]
        self._depart(consumer, evicted)
        evicted.evicted = f"this consumer was put out: {why}; `reopen()` it, and it goes on at its step"
        for segment in evicted.leases.values():
            self.pool.abandon(segment)
        evicted.leases.clear()
        self._forget_if_done(consumer, evicted)

    # --- time --------------------------------------------------------------------------------------------

    def pass_time(self, elapsed_s: float) -> Passed:
        """All was as it is for `elapsed_s` seconds: who is overdue leaves its lane, or is put out."""
        passed = Passed()
        for name, why in self.debts.pass_time(elapsed_s):
            if why:
                self.evict(name, why)
                passed.evicted.extend([name] if name in self.consumers else [])  # a closed one has nobody to tell
            else:
                self._split(name, passed)
        return passed

    def due_s(self) -> float | None:
        """In how many seconds somebody will be overdue, if nothing happens; None: nobody will."""
        return self.debts.due_s()

    # --- builds (claimed from `rings`) ---------------------------------------------------------------------

    def built(self, claim: Claim, content: Any) -> list[tuple[int, Answer]]:
        """The claim's step is in its segment: the answers to those who waited for it."""
        self.lanes[claim.lane_id].ring.commit(claim.step, content)
        return self._after_build(claim)

    def failed(self, claim: Claim, error: Any) -> list[tuple[int, Answer]]:
        """The claim's step cannot be built: the answers to those who waited; built again if its segment is lost."""
        if self.pool.lost(claim.placement.segment):
            self.aborted(claim)
            return []
        self.lanes[claim.lane_id].ring.fail(claim.step, error)
        return self._after_build(claim)

    def aborted(self, claim: Claim) -> None:
        """The worker of this claim is gone; the step is claimed again."""
        self.lanes[claim.lane_id].ring.abort(claim.step)
        self._after_build(claim)

    def retune(self, prefetch: int) -> None:
        """Let the rings have `prefetch` slots from now on. Raises ArgumentError, MemoryLimitError; no change then."""
        taking_part = [one for one in self.consumers.values() if not one.closed and not one.evicted]
        least = max((one.least_prefetch for one in taking_part), default=1)
        if prefetch < least:
            raise ArgumentError(f"prefetch is {prefetch}; for what open consumers may hold it must be at least {least}")
        self.rings.retune(prefetch)

    # --- within ------------------------------------------------------------------------------------------

    def _open_one(self, consumer: int) -> Consumer:
        found = self.consumers.get(consumer)
        if found is None or found.closed:
            raise ConsumerClosedError(f"consumer {consumer} is not open; open the stream again at your step")
        if found.evicted:
            raise EvictedError(found.evicted)
        return found

    def _stays(self, asking: Consumer, lane: Lane, step: int) -> bool:
        """Whether it goes on in its lane: for its next step, or one of the window, unless it meets an older lane."""
        failed = lane.ring.state(asking.position) is SlotState.FAILED  # then its next step is the one after it
        if step not in (asking.position, asking.position + failed) and step not in lane.window:
            return False
        met = self.rings.holding(step)
        return met is None or met.name >= lane.name or not self._may_merge(asking, met)

    @staticmethod
    def _may_merge(asking: Consumer, lane: Lane) -> bool:
        """One that comes by is not caught in the lockstep of others."""
        return asking.terms.pace.waits or not any(member.pace.waits for member in lane.members.values())

    def _change(self, consumer: int, asking: Consumer, step: int) -> Lane:
        """Leave the lane, if in one, for that of `step`. Raises what memory raises; EvictedError after a split."""
        self._depart(consumer, asking)
        asking.position = step
        split = asking.split
        try:
            lane = self._join(consumer, asking)
            self.rings.check_room(lane, step, asking.leases.values())
            return lane
        except (MemoryLimitError, SharedMemoryError) as error:
            self._depart(consumer, asking)
            if not split:
                raise
            self.evict(consumer, f"it fell behind, and there is no memory for a lane of its own: {error.message}")
            raise EvictedError(asking.evicted) from error

    def _join(self, consumer: int, joining: Consumer) -> Lane:
        lane = self.rings.for_step(joining.position)
        lane.join(consumer, Member(joining.position, joining.terms.pace, joining.debt_s))
        joining.lane, joining.split = lane, False
        return lane

    def _depart(self, consumer: int, departing: Consumer) -> None:
        lane, departing.lane = departing.lane, None
        if lane is not None:
            departing.debt_s = lane.leave(consumer).debt_s
            self.rings.tidy(lane)

    def _forget_if_done(self, consumer: int, known: Consumer) -> None:
        if known.closed and not known.leases:
            self.consumers.pop(consumer, None)

    def _split(self, name: int, passed: Passed) -> None:
        """Leave the lane; one that has not asked for its next step gets another when it does."""
        known = self.consumers[name]
        assert known.lane is not None  # it was to blame in it
        member = known.lane.members[name]
        self._depart(name, known)
        known.split = True
        if member.wanted is None:
            return
        try:
            answer = self.ask(name, member.wanted, demanded=member.demanded)
        except EvictedError:
            passed.evicted.append(name)
        else:
            passed.answers.extend([] if answer is None else [(name, answer)])

    def _after_build(self, claim: Claim) -> list[tuple[int, Answer]]:
        lane = self.rings.ended(claim)
        answers: list[tuple[int, Answer]] = []
        for name, member in list(lane.members.items()):
            answer = self._answer(name, self.consumers[name]) if member.wanted == claim.step else None
            if answer is not None:
                answers.append((name, answer))
        self.rings.tidy(lane)
        return answers

    def _answer(self, consumer: int, asking: Consumer) -> Answer | None:
        lane = asking.lane
        assert lane is not None  # only members wait
        step = lane.members[consumer].wanted
        if step is None or step not in lane.reach:
            return None
        state, slot = self.rings.state(lane, step), lane.ring.of(step)
        if state is SlotState.FAILED:
            lane.members[consumer].wanted = None
            return Failure(step, slot.content)
        if state is not SlotState.READY:
            return None
        lease = next(self._lease_ids)
        asking.leases[lease], asking.position = slot.segment, step + 1
        self.pool.lease(slot.segment)
        assert slot.placement is not None  # what stands ready was built
        grant = Grant(lease, lane.name, step, slot.place, slot.placement, slot.content)
        lane.lease(consumer, step, lease)
        return grant
