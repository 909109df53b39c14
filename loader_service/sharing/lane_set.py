"""The lanes of one stream and the segments that stand in them.

Owns `LaneSet`. Invariants: a leased segment is never claimed for a build; a lane has members or a build in flight, else
it ends and its segments are spare; at most `max_lanes` lanes have members. It knows no consumers but as members.

    join the lane whose window holds the step, else get a new one
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import chain, count

from loader_service.errors import MemoryLimitError, SharedMemoryError
from loader_service.sharing.lane import Lane, Member
from loader_service.sharing.placement import Placement
from loader_service.sharing.ring import Slot, SlotState
from loader_service.sharing.segment_pool import SegmentPool

__all__ = ["Claim", "LaneSet"]


@dataclass(frozen=True, slots=True)
class Claim:
    """One build to be done: this step, into the segment of this placement, which stands in this slot of the lane."""

    lane_id: int
    step: int
    slot: int
    placement: Placement


class LaneSet:
    """The rings of one stream, each of `prefetch` slots with segments of `pool`; max_lanes: 0 for any number."""

    def __init__(self, prefetch: int, pool: SegmentPool, max_lanes: int = 0) -> None:
        self.prefetch, self.pool, self.max_lanes = prefetch, pool, max_lanes
        self.lanes: dict[int, Lane] = {}
        self._names, self._turns = count(), count(1)

    def occupied(self) -> list[Lane]:
        """The lanes that have members, the oldest first."""
        return [lane for lane in self.lanes.values() if lane.members]

    def holding(self, step: int) -> Lane | None:
        """The oldest lane with members whose window holds `step`."""
        return next((lane for lane in self.lanes.values() if lane.members and step in lane.window), None)

    def live_step(self) -> int:
        """Where the slowest member of the fullest lane is, within its window; 0 where nobody is."""
        fullest = max(self.occupied(), key=lambda lane: len(lane.members), default=None)
        if fullest is None:
            return 0
        slowest = min(member.position for member in fullest.members.values())
        return min(slowest, fullest.window.stop - 1)

    def for_step(self, step: int) -> Lane:
        """The lane that one who wants `step` joins. Raises MemoryLimitError, SharedMemoryError where there is none."""
        return self.holding(step) or self._begin(step)

    def check_room(self, lane: Lane, step: int, held: Collection[str]) -> None:
        """Raises MemoryLimitError where one who wants `step` would wait for what it holds itself, in these segments."""
        slot = lane.ring.of(step)
        if slot.step != step and slot.segment in held and not self.pool.could_take(1):
            raise MemoryLimitError(
                f"step {step} has no memory: this consumer holds arrays in {len(held)} segments, and there is no room "
                "for another; drop them, or raise [server] memory_limit"
            )

    def could_leave(self, lane: Lane, member: Member) -> bool:
        """Whether there is room for a member to go on in another lane, and for the others without what it leases."""
        spares = len(member.leases)
        if any(member.position in other.window for other in self.occupied() if other is not lane):
            return self.pool.could_take(spares)
        if self.max_lanes and len(self.occupied()) >= self.max_lanes:
            return False
        ready_made = any(not lane.members for lane in self.lanes.values())
        return self.pool.could_take(spares + (0 if ready_made else self.prefetch))

    def _begin(self, step: int) -> Lane:
        """A lane without members that a worker still writes into, begun anew; else a new one."""
        if self.max_lanes and len(self.occupied()) >= self.max_lanes:
            raise MemoryLimitError(
                f"step {step} would need one more lane, and max_lanes is {self.max_lanes}; {self._what_fits()}"
            )
        lane = next((lane for lane in self.lanes.values() if not lane.members), None)
        if lane is None:
            lane = self._create(step)
        lane.rebase(step)
        return lane

    def _create(self, step: int) -> Lane:
        try:
            segments = self.pool.take_ring(self.prefetch)
        except (MemoryLimitError, SharedMemoryError) as error:
            needed = f"a lane at step {step} needs {self.prefetch} segments of {self.pool.segment_bytes} bytes"
            raise type(error)(f"{needed}: {error.message}; {self._what_fits()}") from error
        lane = Lane(next(self._names), segments, step)
        self.lanes[lane.name] = lane
        return lane

    def _what_fits(self) -> str:
        windows = [f"[{lane.window.start}, {lane.window.stop})" for lane in self.occupied()]
        joined = f"the steps {', '.join(windows)} can be had without one" if windows else "no lane is there to join"
        return f'{joined}; open at one of them (or "live"), or close a consumer'

    def tidy(self, lane: Lane) -> None:
        """After a change of a lane: it has its size if it can, and ends if it is done."""
        self.fit(lane)
        self.end_if_done(lane)

    def end_if_done(self, lane: Lane) -> None:
        """A lane without members ends as soon as no worker writes into it."""
        if not lane.members and not lane.ring.building():
            del self.lanes[lane.name]
            for slot in lane.ring.slots:
                self.pool.give(slot.segment)

    def state(self, lane: Lane, step: int) -> SlotState:
        """The state of `step`; what stands ready in a lost segment, which nobody new can map, is built again."""
        state = lane.ring.state(step)
        if state is SlotState.READY and self.pool.lost(lane.ring.of(step).segment):
            lane.lose(step)
            return SlotState.FREE
        return state

    # --- builds ------------------------------------------------------------------------------------------

    def claim(self, demanded: bool) -> Claim | None:
        """The next build, or only one that a consumer cannot go on without. Lanes take turns; near steps first."""
        for step, lane in self._demanded() if demanded else chain(self._demanded(), self._ahead()):
            slot = lane.ring.of(step)
            if not self.pool.leased(slot.segment) or self._replace(slot):
                lane.turn = next(self._turns)
                placement = self.pool.use(slot.segment)
                lane.ring.claim(step, placement)
                return Claim(lane.name, step, slot.place, placement)
        return None

    def larger(self, claim: Claim, nbytes: int) -> Claim:
        """Put a segment of at least `nbytes` under a claim whose own is too small. Raises as memory does."""
        lane = self.lanes[claim.lane_id]
        slot = lane.ring.of(claim.step)
        self.pool.make_room(slot.segment, nbytes)
        segment = self.pool.take(nbytes)
        slot.segment, old = segment, slot.segment
        self.pool.give(old)
        slot.placement = self.pool.use(segment)
        return Claim(lane.name, claim.step, slot.place, slot.placement)

    def ended(self, claim: Claim) -> Lane:
        """A build has ended, and the ring knows how: its lane, which may be done now."""
        lane = self.lanes[claim.lane_id]
        lane.ended(claim.step)
        return lane

    def _demanded(self) -> Iterator[tuple[int, Lane]]:
        waiting = [(lane.turn, lane.name, step) for lane in self.lanes.values() for step in lane.demands()]
        for _, name, step in sorted(waiting):
            yield step, self.lanes[name]

    def _ahead(self) -> Iterator[tuple[int, Lane]]:
        """One step of each lane at a time, the one nearest to its base first."""
        first = [(next(lane.claimable(), None), lane) for lane in self.lanes.values()]
        nearest = [(step - lane.base, lane.turn, lane.name) for step, lane in first if step is not None]
        for _, _, name in sorted(nearest):
            for step in self.lanes[name].claimable():
                yield step, self.lanes[name]

    def _replace(self, slot: Slot) -> bool:
        """Let a leased segment leave the ring and put another in its place, if memory allows."""
        try:
            slot.segment = self.pool.swap(slot.segment)
        except (MemoryLimitError, SharedMemoryError):
            return False
        return True

    # --- size --------------------------------------------------------------------------------------------

    def retune(self, prefetch: int) -> None:
        """From now on rings have `prefetch` slots; those that are there follow as soon as all in them fits.

        Raises MemoryLimitError where the memory does not allow it; nothing has changed then.
        """
        more = (prefetch - self.prefetch) * max(1, len(self.lanes))
        if more > 0 and not self.pool.could_take(more):
            raise MemoryLimitError(
                f"prefetch {prefetch} needs {more} more segments of {self.pool.segment_bytes} bytes, and there is no "
                "room for them; raise [server] memory_limit, or close consumers"
            )
        self.prefetch = prefetch
        self.pool.retune(prefetch)
        for lane in self.lanes.values():
            lane.prefetch = prefetch
            self.fit(lane)

    def fit(self, lane: Lane) -> None:
        """Let a ring that is to have another size have it, if it can now."""
        missing = lane.missing_slots()
        if missing == 0 or not lane.members or not lane.can_fit():
            return
        try:
            segments = self.pool.take_ring(missing) if missing > 0 else []
        except (MemoryLimitError, SharedMemoryError):  # the room has gone since: later
            return
        for segment in lane.fit(segments):
            self.pool.give(segment)
