"""All consumers of one stream: who shares a ring, who gets what, who leaves whom.

Owns `RingScheduler`, the state machine that the broker drives: events and times come in, claims and answers go out. No
clock, no socket, no process. Invariants: each consumer gets exactly the steps that it asks for, in that order; a step
is built once for all consumers of a lane, and only if one of them has asked that far; what a consumer reads is never
written.

    open, seek, resume, merge   one operation: join the lane whose window holds my step, else get a new one
    run                         a consumer asks once for many steps; each is answered when it is built, as long as the
                                consumer has not more than its limit of leases and one
    split                       a consumer that blocks others too long (`sharing.fairness`) leaves; its leased segments
                                leave with it
    evict                       the same, but its segments are given up to it, and it must open again
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from loader_service.errors import (
    ArgumentError,
    ConsumerClosedError,
    EvictedError,
    IntegrityError,
    LoaderServiceError,
    MemoryLimitError,
    SharedMemoryError,
)
from loader_service.sharing.consumer import Answer, Consumer, ConsumerOptions, Failure, Grant
from loader_service.sharing.fairness import Fairness, Limits
from loader_service.sharing.lane import Lane
from loader_service.sharing.lane_table import Claim, LaneTable
from loader_service.sharing.ring import SlotState
from loader_service.sharing.segment_pool import SegmentPool

__all__ = ["Answers", "RingScheduler", "TimePassed"]

Answers = list[tuple[int, Answer]]
"""(consumer id, what it is answered), in the order in which they are to be told."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Outcome of some time.

    Args:
        answers: what it brought to whom.
        left: (consumer id, why it was evicted; empty where it was split off) of those who left their lanes, in order.
    """

    answers: Answers = field(default_factory=list)
    left: list[tuple[int, str]] = field(default_factory=list)


class RingScheduler:
    """The consumers and lanes of one stream.

    Args:
        prefetch: P, the slots of a ring.
        pool: its segments.
        lease_ids: where lease ids come from, one source for all streams of a daemon.
        limits: of lanes and of patience.
    """

    def __init__(
        self, prefetch: int, pool: SegmentPool, lease_ids: Iterable[int] | None = None, limits: Limits | None = None
    ) -> None:
        limits = limits or Limits()
        self.pool = pool
        self.prefetch = prefetch
        self.rings = LaneTable(prefetch, pool, limits.max_lanes)
        self.lanes = self.rings.lanes
        self.consumers: dict[int, Consumer] = {}
        self.fairness = Fairness(self.rings, self.consumers, limits.evict_after_s)
        self._lease_ids = iter(count() if lease_ids is None else lease_ids)

    # --- consumers ---------------------------------------------------------------------------------------

    def open(self, consumer_id: int, step: int | None, options: ConsumerOptions | None = None) -> Consumer:
        """Add a consumer whose next step is `step`, or with None where the most consumers are now.

        Nothing is built for it before it asks. Raises ArgumentError for its options, and what memory raises; then it is
        not open.
        """
        if consumer_id in self.consumers:
            raise IntegrityError(f"consumer {consumer_id} was opened twice")
        options = options or ConsumerOptions()
        max_leases = options.max_leases_in(self.prefetch)
        position = self.rings.live_step() if step is None else step
        opened = Consumer(consumer_id, position, options, max_leases, asked_until=position)
        self.rings.for_step(position).join(opened)
        self.consumers[consumer_id] = opened
        return opened

    def ask(
        self,
        consumer_id: int,
        step: int,
        *,
        steps: int = 1,
        kept: Collection[int] | None = None,
        demanded: bool = True,
        jumps: bool = False,
    ) -> Answers:
        """Let the consumer wait for `step` and those after it, instead of what it waited for before.

        Args:
            consumer_id: an open consumer.
            step: the first step.
            steps: how many steps, at least 1.
            kept: the leases that it has; all others of it have ended. None: they are as known.
            demanded: it cannot go on without the first, so others who keep it from being built block it.
            jumps: it would rather go into another lane than wait for what it holds itself.

        Returns:
            The answers that are ready now; the others come from later events.

        Raises:
            ConsumerClosedError, EvictedError, MemoryLimitError, SharedMemoryError: the consumer waits for nothing;
                after the last two it is open and may ask again.
        """
        asking = self.consumers.get(consumer_id)
        if asking is None or asking.closed:
            raise ConsumerClosedError(f"consumer {consumer_id} is not open; open the stream again at your step")
        if asking.evicted:
            raise EvictedError(asking.evicted)
        asking.end_run()
        if kept is not None and (lost := asking.leases.keys() - kept):
            self.release(consumer_id, *lost)
        self._wait_for(asking, step, demanded, jumps)
        asking.run_left, asking.asked_until = steps - 1, step + steps
        return self._answers_to(asking)

    def is_waiting(self, consumer_id: int) -> bool:
        """Return whether a consumer has asked for a step and has no answer yet."""
        return self.consumers[consumer_id].wanted is not None

    def demand(self, consumer_id: int, step: int) -> None:
        """Note that the consumer cannot go on without `step`, which it has asked for ahead or will ask for next.

        One that has its answer is ignored.
        """
        known = self.consumers.get(consumer_id)
        if known is not None:
            known.demanded_step = step
            known.demanded = known.demanded or known.wanted == step

    def release(self, consumer_id: int, *lease_ids: int) -> Answers:
        """End leases, and go on with the consumer's run.

        Unknown consumers and leases are ignored, for a client may repeat itself.
        """
        known = self.consumers.get(consumer_id)
        if known is None:
            return []
        for lease_id in known.leases.keys() & lease_ids:
            self._end_lease(known, lease_id)
        if known.closed and not known.leases:
            del self.consumers[consumer_id]
        return self._answers_to(known) if known.goes_on else []

    def end_run(self, consumer_id: int, kept: Collection[int]) -> None:
        """Forget what the consumer waits for, and end all its leases but `kept`. An unknown consumer is ignored."""
        known = self.consumers.get(consumer_id)
        if known is not None:
            known.end_run()
            lost = known.leases.keys() - kept
            if lost:
                self.release(consumer_id, *lost)

    def close(self, consumer_id: int) -> None:
        """Let the consumer take no more steps; what it leases stays as it is until released. Idempotent."""
        closing = self.consumers.get(consumer_id)
        if closing is None or closing.closed:
            return
        closing.closed = True
        self._depart(closing)
        closing.end_run()
        if not closing.leases:
            del self.consumers[consumer_id]

    def drop(self, consumer_id: int) -> None:
        """Close a consumer whose client is gone, and end all its leases."""
        self.close(consumer_id)
        gone = self.consumers.get(consumer_id)
        if gone is not None:
            self.release(consumer_id, *gone.leases)

    def evict(self, consumer_id: int, why: str) -> None:
        """Put the consumer out: what it leases is given up to it, and its next request raises EvictedError."""
        evicted = self.consumers[consumer_id]
        self._depart(evicted)
        evicted.end_run()
        evicted.evicted = f"this consumer was put out: {why}; `reopen()` it, and it goes on at its step"
        for segment in evicted.leases.values():
            self.pool.abandon(segment)
        evicted.leases.clear()
        if evicted.closed:
            del self.consumers[consumer_id]

    # --- time --------------------------------------------------------------------------------------------

    def pass_time(self, elapsed_s: float) -> TimePassed:
        """Account for `elapsed_s` seconds in which all was as it is: who blocks others too long leaves."""
        passed = TimePassed()
        for consumer, why in self.fairness.pass_time(elapsed_s):
            if why:
                self.evict(consumer.consumer_id, why)
            else:
                passed.answers.extend(self._split(consumer))
            passed.left.append((consumer.consumer_id, consumer.evicted))
        return passed

    def due_s(self) -> float | None:
        """Return in how many seconds somebody leaves if nothing happens; None: nobody does."""
        return self.fairness.due_s()

    # --- builds (claimed from `rings`) ---------------------------------------------------------------------

    def built(self, claim: Claim, content: Any, nbytes: int = 0) -> Answers:
        """Note that the claim's step is built, and needs a segment of `nbytes`: the answers that this brings."""
        self.pool.measure(nbytes)
        lane = self.lanes[claim.lane_id]
        if lane.ring.leaving and self.rings.dismiss(claim):
            return []
        lane.ring.commit(claim.step, content)
        return self._after_build(lane, claim.step)

    def failed(self, claim: Claim, error: Any) -> Answers:
        """Note that the claim's step cannot be built: the answers that this brings.

        It is built again where its segment was lost.
        """
        if self.pool.is_lost(claim.placement.segment):
            self.aborted(claim)
            return []
        lane = self.lanes[claim.lane_id]
        if lane.ring.leaving and self.rings.dismiss(claim):
            return []
        lane.ring.fail(claim.step, error)
        return self._after_build(lane, claim.step)

    def aborted(self, claim: Claim) -> None:
        """Note that the worker of this claim is gone; the step is claimed again."""
        lane = self.lanes[claim.lane_id]
        if not (lane.ring.leaving and self.rings.dismiss(claim)):
            lane.ring.abort(claim.step)
            lane.lose(claim.step)
            self._after_build(lane, claim.step)

    def retune(self, prefetch: int) -> None:
        """Give the rings `prefetch` slots. Raises ArgumentError, and what memory raises; no change then."""
        taking_part = [one for one in self.consumers.values() if not one.closed and not one.evicted]
        least = max((one.least_prefetch for one in taking_part), default=1)
        if prefetch < least:
            raise ArgumentError(f"prefetch is {prefetch}; for what open consumers may hold it must be at least {least}")
        self.rings.retune(prefetch)
        self.prefetch = prefetch

    # --- within ------------------------------------------------------------------------------------------

    def _wait_for(self, asking: Consumer, step: int, demanded: bool, jumps: bool) -> None:
        """Let the consumer want `step`, in its lane or another. Raises as `_change`."""
        lane = None if asking.lane_id is None else self.lanes[asking.lane_id]
        jumps = jumps and lane is not None and bool(asking.held_steps) and lane.keeps_out(asking, step)
        if lane is None or jumps or not self._stays(asking, lane, step):
            lane = self._change(asking, step)
        lane.want(asking, step, demanded)

    def _stays(self, asking: Consumer, lane: Lane, step: int) -> bool:
        """Return whether it goes on in its lane: for its next step, or one of the window.

        It leaves where it meets an older lane.
        """
        if step != asking.position and step not in lane.window:
            failed = lane.ring.state(asking.position) is SlotState.FAILED  # then its next step is the one after it
            if not (failed and step == asking.position + 1):
                return False
        if len(self.lanes) == 1:
            return True
        met = self.rings.holding(step)
        return met is None or met.lane_id >= lane.lane_id or not _may_merge(asking, met)

    def _change(self, asking: Consumer, step: int) -> Lane:
        """Leave the lane, if in one, for that of `step`. Raises what memory raises, or EvictedError after a split."""
        self._depart(asking)
        asking.position = step
        split = asking.split
        try:
            lane = self.rings.for_step(step)
            lane.join(asking)
            asking.split = False
            self.rings.check_room(lane, step, asking.leases.values())
            return lane
        except (MemoryLimitError, SharedMemoryError) as error:
            self._depart(asking)
            if not split:
                raise
            why = f"it fell behind, and there is no memory for a lane of its own: {error.message}"
            self.evict(asking.consumer_id, why)
            raise EvictedError(asking.evicted) from error

    def _depart(self, departing: Consumer) -> None:
        lane = self.rings.of(departing)
        if lane is not None:
            lane.leave(departing)
            self.rings.end_if_done(lane)

    def _end_lease(self, holder: Consumer, lease_id: int) -> None:
        lane = self.rings.of(holder)
        if lane is not None and lease_id in holder.held_steps:
            lane.release(holder, lease_id)
        self.pool.unlease(holder.leases.pop(lease_id))

    def _split(self, leaving: Consumer) -> Answers:
        """Leave the lane; one that has not asked for its next step gets another when it does."""
        wanted, demanded = leaving.wanted, leaving.demanded
        self._depart(leaving)
        leaving.split = True
        if wanted is None:
            return []
        try:
            self._wait_for(leaving, wanted, demanded, jumps=False)
        except EvictedError:
            return []
        return self._answers_to(leaving)

    def _after_build(self, lane: Lane, step: int) -> Answers:
        lane.build_ended(step)
        answers: Answers = []
        for member in list(lane.members.values()):
            if member.wanted == step:
                answers += self._answers_to(member)
        if not lane.members:
            self.rings.end_if_done(lane)
        return answers

    def _answers_to(self, asking: Consumer) -> Answers:
        """Return the answers to what the consumer waits for, and to its run, as far as they are ready.

        It asks for the step that follows as long as its leases allow.
        """
        answers: Answers = []
        while asking.wanted is not None or asking.goes_on:
            if asking.wanted is None:
                asking.run_left -= 1
                try:
                    self._wait_for(asking, asking.position, asking.position == asking.demanded_step, jumps=False)
                except LoaderServiceError as error:
                    answers.append((asking.consumer_id, Failure(asking.position, error)))
                    asking.end_run()
                    break
            answer = self._answer(asking)
            if answer is None:
                break
            answers.append((asking.consumer_id, answer))
        return answers

    def _answer(self, asking: Consumer) -> Answer | None:
        """Return what the consumer waits for, if that is ready in its lane: it is leased then."""
        step = asking.wanted
        assert asking.lane_id is not None  # only members wait
        assert step is not None  # for a step
        lane = self.lanes[asking.lane_id]
        slot = lane.ring.slots[step % len(lane.ring.slots)]
        if slot.step != step or slot.placement is None:
            return None
        if slot.state is SlotState.FAILED:
            asking.end_run()
            return Failure(step, slot.content)
        if slot.state is not SlotState.READY:
            return None
        if self.pool.is_lost(slot.segment):  # nobody new can map it: it is built again
            lane.lose(step)
            return None
        lease_id = next(self._lease_ids)
        grant = Grant(lease_id, lane.lane_id, step, slot.place, slot.placement, slot.content, asking.blocked)
        asking.leases[lease_id] = slot.segment
        self.pool.lease(slot.segment)
        lane.take(asking, lease_id)
        return grant


def _may_merge(asking: Consumer, lane: Lane) -> bool:
    """One that comes by is not caught in the lockstep of others."""
    return asking.options.policy.waits or not any(member.options.policy.waits for member in lane.members.values())
