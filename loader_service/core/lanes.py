"""All lanes of one stream: who shares a ring, what is built next, who gets what.

Owns `StreamLanes`, the state machine that the broker drives: events come in, claims and answers go out. No clock,
no socket, no process. Invariants: a leased segment is never claimed for a build; each consumer gets exactly the
steps that it asks for; a step is built once for all consumers of a lane.

A consumer that opens, or asks for a step out of its lane's window, joins the lane whose window holds that step,
else it gets a lane of its own. One that asks for its *next* step waits instead: its lane moves along.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import count
from typing import Any

from loader_service.core.lane import Lane
from loader_service.core.pool import SegmentPool
from loader_service.core.slots import Slot, SlotState
from loader_service.errors import ConsumerClosedError, IntegrityError, MemoryLimitError, SharedMemoryError

__all__ = ["Answer", "Claim", "Failure", "Grant", "StreamLanes"]


@dataclass(frozen=True, slots=True)
class Claim:
    """One build to be done: this step, into this segment. `generation` tells this use of it from others."""

    lane: int
    step: int
    place: int
    segment: str
    segment_bytes: int
    generation: int


@dataclass(frozen=True, slots=True)
class Grant:
    """A consumer may read: the lease lasts until it is released or the consumer's client is gone."""

    lease: int
    lane: int
    step: int
    place: int
    segment: str
    generation: int
    content: Any


@dataclass(frozen=True, slots=True)
class Failure:
    """The build of this step failed; the consumer's stream has ended."""

    step: int
    error: Any


Answer = Grant | Failure


@dataclass(slots=True)
class _Consumer:
    """position and lane while open (lane None: it waits for memory); leases: lease id -> segment."""

    position: int
    lane: Lane | None = None
    wanted: int | None = None
    closed: bool = False
    leases: dict[int, str] = field(default_factory=dict)


class StreamLanes:
    """The lanes, consumers and segments of one stream.

    prefetch: P, the slots of a ring; pool: its segments; lease_ids: where lease numbers come from, one source for
    all streams of a daemon.
    """

    def __init__(self, prefetch: int, pool: SegmentPool, lease_ids: Iterable[int] | None = None) -> None:
        self.prefetch, self.pool = prefetch, pool
        self.lanes: dict[int, Lane] = {}
        self.consumers: dict[int, _Consumer] = {}
        self._lane_names = count()
        self._lease_ids = iter(count() if lease_ids is None else lease_ids)

    # --- consumers ---------------------------------------------------------------------------------------

    def open(self, consumer: int, step: int) -> None:
        """A new consumer whose next step is `step`. Raises what memory raises; then it is not open."""
        if consumer in self.consumers:
            raise IntegrityError(f"consumer {consumer} was opened twice")
        opened = _Consumer(step)
        self._join(consumer, opened, step)
        self.consumers[consumer] = opened

    def ask(self, consumer: int, step: int) -> Answer | None:
        """The consumer wants `step`: the answer if it stands ready, else None and it comes from a later event.

        Raises ConsumerClosedError, and what memory raises: then the consumer is open still and may ask again.
        """
        asking = self._open_one(consumer)
        lane = asking.lane
        if lane is not None and step in lane.window:
            lane.move(consumer, step)
        elif lane is None or step != asking.position:
            self._depart(consumer, asking)
            asking.position = step
            self._join(consumer, asking, step)
        asking.position = asking.wanted = step
        return self._answer(consumer, asking)

    def release(self, consumer: int, lease: int) -> None:
        """End one lease; unknown consumers and leases are ignored, for a client may repeat itself."""
        known = self.consumers.get(consumer)
        if known is None or lease not in known.leases:
            return
        if known.lane is not None and lease in known.lane.members[consumer].leases:
            known.lane.release(consumer, lease)
        self.pool.unlease(known.leases.pop(lease))
        self._forget_if_done(consumer, known)

    def close(self, consumer: int) -> None:
        """The consumer takes no more steps; what it leases stays as it is until released. Idempotent."""
        closing = self.consumers.get(consumer)
        if closing is None or closing.closed:
            return
        closing.closed, closing.wanted = True, None
        self._depart(consumer, closing)
        self._forget_if_done(consumer, closing)

    def drop(self, consumer: int) -> None:
        """The consumer's client is gone: close it and end all its leases."""
        self.close(consumer)
        gone = self.consumers.get(consumer)
        for lease in list(gone.leases) if gone else ():
            self.release(consumer, lease)

    # --- builds ------------------------------------------------------------------------------------------

    def claim(self) -> Claim | None:
        """The next build: first the step that a consumer waits for, then the one nearest to its lane's base."""
        for _, _, step, name in merge(*map(self._candidates, self.lanes.values())):
            lane = self.lanes[name]
            slot = lane.ring.of(step)
            if not self.pool.leased(slot.segment) or self._replace(slot):
                generation = self.pool.use(slot.segment)
                lane.ring.claim(step, generation)
                return self._claim_of(lane, slot, step)
        return None

    def larger(self, claim: Claim, nbytes: int) -> Claim:
        """Put a segment of at least `nbytes` under a claim whose own is too small. Raises as memory does."""
        lane = self.lanes[claim.lane]
        slot = lane.ring.of(claim.step)
        segment = self.pool.take(nbytes)
        slot.segment, old = segment, slot.segment
        self.pool.give(old)
        slot.generation = self.pool.use(segment)
        return self._claim_of(lane, slot, claim.step)

    def built(self, claim: Claim, content: Any) -> list[tuple[int, Answer]]:
        """The claim's step is in its segment: the answers to those who waited for it."""
        lane = self.lanes[claim.lane]
        lane.ring.commit(claim.step, content)
        return self._after_build(lane, claim.step)

    def failed(self, claim: Claim, error: Any) -> list[tuple[int, Answer]]:
        """The claim's step cannot be built: the answers to those who waited for it."""
        lane = self.lanes[claim.lane]
        lane.ring.fail(claim.step, error)
        return self._after_build(lane, claim.step)

    def aborted(self, claim: Claim) -> None:
        """The worker of this claim is gone; the step is claimed again."""
        lane = self.lanes[claim.lane]
        lane.ring.abort(claim.step)
        self._after_build(lane, claim.step)

    # --- within ------------------------------------------------------------------------------------------

    def _open_one(self, consumer: int) -> _Consumer:
        found = self.consumers.get(consumer)
        if found is None or found.closed:
            raise ConsumerClosedError(f"consumer {consumer} is not open; open the stream again at your step")
        return found

    def _join(self, consumer: int, joining: _Consumer, step: int) -> None:
        lane = next((lane for lane in self.lanes.values() if lane.members and step in lane.window), None)
        if lane is None:
            lane = self._lane_from(step)
        lane.join(consumer, step)
        joining.lane = lane

    def _lane_from(self, step: int) -> Lane:
        """A lane without members that a worker still writes into, begun anew; else a new one."""
        lane = next((lane for lane in self.lanes.values() if not lane.members), None)
        if lane is None:
            lane = Lane(next(self._lane_names), self.pool.take_ring(self.prefetch), step)
            self.lanes[lane.name] = lane
        lane.rebase(step)
        return lane

    def _depart(self, consumer: int, departing: _Consumer) -> None:
        lane, departing.lane = departing.lane, None
        if lane is not None:
            lane.leave(consumer)
            self._end_if_done(lane)

    def _end_if_done(self, lane: Lane) -> None:
        """A lane without members ends as soon as no worker writes into it."""
        if not lane.members and not lane.ring.building():
            del self.lanes[lane.name]
            for slot in lane.ring.slots:
                self.pool.give(slot.segment)

    def _forget_if_done(self, consumer: int, known: _Consumer) -> None:
        if known.closed and not known.leases:
            self.consumers.pop(consumer, None)

    def _candidates(self, lane: Lane) -> Iterator[tuple[bool, int, int, int]]:
        """(nobody waits for it, distance from base, step, lane) of the steps that can be claimed, best first."""
        wanted = {self.consumers[member].wanted for member in lane.members}
        for step in sorted(step for step in wanted if step is not None and lane.can_claim(step)):
            yield False, step - lane.base, step, lane.name
        for step in lane.claimable():
            if step not in wanted:
                yield True, step - lane.base, step, lane.name

    def _replace(self, slot: Slot) -> bool:
        """Let a leased segment leave the ring and put another in its place, if memory allows."""
        try:
            segment = self.pool.take()
        except (MemoryLimitError, SharedMemoryError):
            return False
        self.pool.give(slot.segment)
        slot.segment = segment
        return True

    def _claim_of(self, lane: Lane, slot: Slot, step: int) -> Claim:
        nbytes = self.pool.nbytes(slot.segment)
        return Claim(lane.name, step, slot.place, slot.segment, nbytes, slot.generation)

    def _after_build(self, lane: Lane, step: int) -> list[tuple[int, Answer]]:
        lane.ended(step)
        self._end_if_done(lane)
        answers: list[tuple[int, Answer]] = []
        for name in list(lane.members):
            asking = self.consumers[name]
            answer = self._answer(name, asking) if asking.wanted == step else None
            if answer is not None:
                answers.append((name, answer))
        return answers

    def _answer(self, consumer: int, asking: _Consumer) -> Answer | None:
        lane, step = asking.lane, asking.wanted
        if lane is None or step is None or step not in lane.window:
            return None
        state = lane.ring.state(step)
        slot = lane.ring.of(step)
        if state is SlotState.FAILED:
            failure = Failure(step, slot.content)
            self.close(consumer)
            return failure
        if state is not SlotState.READY:
            return None
        lease = next(self._lease_ids)
        asking.leases[lease] = slot.segment
        asking.wanted, asking.position = None, step + 1
        self.pool.lease(slot.segment)
        lane.lease(consumer, step, lease)
        return Grant(lease, lane.name, step, slot.place, slot.segment, slot.generation, slot.content)
