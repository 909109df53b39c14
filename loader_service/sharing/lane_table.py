"""The lanes of one stream and the segments that stand in them.

Owns `LaneTable` and `Claim`. Invariants: a leased segment is never claimed for a build; a lane has members or a build
in flight, else it ends and its segments are spare; at most `max_lanes` lanes have members. It knows no consumers but as
members.

    join the lane whose window holds the step, else get a new one
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import chain, count

from loader_service.errors import MemoryLimitError, SharedMemoryError
from loader_service.sharing.consumer import Consumer
from loader_service.sharing.lane import Lane
from loader_service.sharing.placement import Placement
from loader_service.sharing.ring import Slot
from loader_service.sharing.segment_pool import SegmentPool

__all__ = ["Claim", "LaneTable"]


@dataclass(frozen=True, slots=True)
class Claim:
    """One build to be done.

    Args:
        lane_id: the lane for which it is done.
        step: the global step.
        placement: the segment to build into, and which use of it.
    """

    lane_id: int
    step: int
    placement: Placement


class LaneTable:
    """The rings of one stream, each of `prefetch` slots with segments of `pool`; max_lanes: 0 for any number."""

    def __init__(self, prefetch: int, pool: SegmentPool, max_lanes: int = 0) -> None:
        self.prefetch, self.pool, self.max_lanes = prefetch, pool, max_lanes
        self.lanes: dict[int, Lane] = {}
        self._ids, self._turns = count(), count(1)

    def of(self, consumer: Consumer) -> Lane | None:
        """Return the lane that the consumer is in, if it is in one."""
        return None if consumer.lane_id is None else self.lanes[consumer.lane_id]

    def occupied(self) -> list[Lane]:
        """Return the lanes that have members, the oldest first."""
        return [lane for lane in self.lanes.values() if lane.members]

    def holding(self, step: int) -> Lane | None:
        """Return the oldest lane with members whose window holds `step`."""
        return next((lane for lane in self.lanes.values() if lane.members and step in lane.window), None)

    def live_step(self) -> int:
        """Return where the slowest member of the fullest lane is, within its window; 0 where nobody is."""
        fullest = max(self.occupied(), key=lambda lane: len(lane.members), default=None)
        if fullest is None:
            return 0
        slowest = min(member.position for member in fullest.members.values())
        return min(slowest, fullest.window.stop - 1)

    def for_step(self, step: int) -> Lane:
        """Return the lane that one who wants `step` joins. Raises MemoryLimitError, SharedMemoryError."""
        return self.holding(step) or self._begin(step)

    def check_room(self, lane: Lane, step: int, held: Collection[str]) -> None:
        """Raise MemoryLimitError where one who wants `step` would wait for what it holds itself, in these segments."""
        slot = lane.ring.of(step)
        if slot.step != step and slot.segment in held and not self.pool.could_take(1):
            raise MemoryLimitError(
                f"step {step} has no memory: this consumer holds arrays in {len(held)} segments, and there is no room "
                "for another; drop them, or raise [server] memory_limit"
            )

    def could_leave(self, lane: Lane, member: Consumer) -> bool:
        """Return whether there is room for a member to go on elsewhere, and for the others without what it leases."""
        spares = len(member.held_steps)
        if any(member.position in other.window for other in self.occupied() if other is not lane):
            return self.pool.could_take(spares)
        if self.max_lanes and len(self.occupied()) >= self.max_lanes:
            return False
        ready_made = any(not lane.members for lane in self.lanes.values())
        return self.pool.could_take(spares + (0 if ready_made else self.prefetch))

    def _begin(self, step: int) -> Lane:
        """Begin a lane without members that a worker still writes into anew; else make one."""
        if self.max_lanes and len(self.occupied()) >= self.max_lanes:
            raise MemoryLimitError(
                f"step {step} would need one more lane, and max_lanes is {self.max_lanes}; {self._what_fits()}"
            )
        lane = next((lane for lane in self.lanes.values() if not lane.members), None)
        if lane is None:
            segments = self._segments(self.prefetch, step)
            lane = Lane(next(self._ids), segments, step)
            self.lanes[lane.lane_id] = lane
        elif len(lane.ring.slots) == self.prefetch:
            lane.begin_again(step)
        else:  # a refusal leaves it as it is
            missing = lane.ring.missing_for(range(step, step + self.prefetch))
            segments = self._segments(missing, step)
            lane.begin_again(step)
            self._give_all(lane.resize(self.prefetch, segments))
        return lane

    def _segments(self, number: int, step: int) -> list[str]:
        try:
            return self.pool.take_ring(number)
        except (MemoryLimitError, SharedMemoryError) as error:
            needed = f"a lane at step {step} needs {number} segments of {self.pool.segment_bytes} bytes"
            raise type(error)(f"{needed}: {error.message}; {self._what_fits()}") from error

    def _what_fits(self) -> str:
        windows = [f"[{lane.window.start}, {lane.window.stop})" for lane in self.occupied()]
        joined = f"the steps {', '.join(windows)} can be had without one" if windows else "no lane is there to join"
        return f'{joined}; open at one of them (or "live"), or close a consumer'

    def _give_all(self, segments: list[str]) -> None:
        for segment in segments:
            self.pool.give(segment)

    def end_if_done(self, lane: Lane) -> None:
        """End a lane without members as soon as no worker writes into it. Idempotent."""
        if lane.lane_id in self.lanes and not lane.members and not lane.ring.is_building():
            del self.lanes[lane.lane_id]
            self._give_all([slot.segment for slot in lane.ring.slots])

    # --- builds ------------------------------------------------------------------------------------------

    def claim(self, demanded: bool) -> Claim | None:
        """Return the next build, if there is one. Lanes take turns, and steps near their base come first.

        demanded: only a step that a consumer cannot go on without.
        """
        for step, lane in self._demanded() if demanded else chain(self._demanded(), self._ahead()):
            slot = lane.ring.of(step)
            if self.pool.is_writable(slot.segment) or self._replace(slot):
                lane.turn = next(self._turns)
                placement = self.pool.use(slot.segment)
                lane.ring.claim(step, placement)
                return Claim(lane.lane_id, step, placement)
        return None

    def larger(self, claim: Claim, nbytes: int) -> Claim:
        """Put a segment of at least `nbytes` under a claim whose own is too small. Raises as memory does."""
        lane = self.lanes[claim.lane_id]
        slots = [*lane.ring.leaving, *lane.ring.slots]
        slot = next(one for one in slots if one.placement == claim.placement)
        self.pool.make_room(slot.segment, nbytes)
        segment = self.pool.take(nbytes)
        slot.segment, old = segment, slot.segment
        self.pool.give(old)
        slot.placement = self.pool.use(segment)
        return Claim(lane.lane_id, claim.step, slot.placement)

    def dismiss(self, claim: Claim) -> bool:
        """Return whether the claim's slot has left its ring during the build; its segment is given back then."""
        lane = self.lanes[claim.lane_id]
        for slot in lane.ring.leaving:
            if slot.placement == claim.placement:
                lane.ring.leaving.remove(slot)
                self.pool.give(slot.segment)
                self.end_if_done(lane)
                return True
        return False

    def _demanded(self) -> Iterator[tuple[int, Lane]]:
        waiting = [(lane.turn, lane.lane_id, step) for lane in self.lanes.values() for step in lane.demands()]
        for _, lane_id, step in sorted(waiting):
            yield step, self.lanes[lane_id]

    def _ahead(self) -> Iterator[tuple[int, Lane]]:
        """Yield one step of each lane at a time, the one nearest to its base first."""
        first = [(next(lane.claimable(), None), lane) for lane in self.lanes.values()]
        nearest = [(step - lane.base, lane.turn, lane.lane_id) for step, lane in first if step is not None]
        for _, _, lane_id in sorted(nearest):
            for step in self.lanes[lane_id].claimable():
                yield step, self.lanes[lane_id]

    def _replace(self, slot: Slot) -> bool:
        """Put another segment in the place of one that cannot be written, if memory allows."""
        try:
            slot.segment = self.pool.swap(slot.segment)
        except (MemoryLimitError, SharedMemoryError):
            return False
        return True

    # --- size --------------------------------------------------------------------------------------------

    def retune(self, prefetch: int) -> None:
        """Give all rings `prefetch` slots, at once.

        What stands outside of the smaller window leaves its ring: it stays as it is for whoever leases it, and is built
        again for whoever comes to it. Raises MemoryLimitError, SharedMemoryError where the memory does not allow it;
        nothing has changed then.
        """
        if prefetch == self.prefetch:
            return
        lanes = self.occupied()
        missing = [lane.ring.missing_for(range(lane.base, lane.base + prefetch)) for lane in lanes]
        if not lanes and not self.pool.could_take(prefetch):
            raise self._no_room(prefetch, prefetch)
        try:
            segments = self.pool.take_ring(sum(missing))
        except MemoryLimitError as error:
            raise self._no_room(prefetch, sum(missing)) from error
        self.prefetch = prefetch
        self.pool.retune(prefetch)
        for lane, number in zip(lanes, missing, strict=True):
            self._give_all(lane.resize(prefetch, [segments.pop() for _ in range(number)]))

    def _no_room(self, prefetch: int, number: int) -> MemoryLimitError:
        return MemoryLimitError(
            f"prefetch {prefetch} needs {number} more segments of {self.pool.segment_bytes} bytes, and there is no "
            "room for them; raise [server] memory_limit, or close consumers"
        )
