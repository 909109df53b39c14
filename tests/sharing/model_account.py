"""One RingScheduler as it is known from outside, and the invariants that must hold at all times.

Owns `Account`, the state and the checks of `model_world.World`:

    a view never changes      what a live lease, or one who was put out, reads is what was granted: its segment is not
                              written; it is retired only when no lease is on it, and then soon
    one place for a segment   no segment stands twice in the rings; one that is being written is granted to nobody
    the window                slot of g is g mod the size of its ring; base = the oldest cursor, and never falls
    each step once            what was built in a lane's window is not claimed there again while a member stays
    nobody is forgotten       no consumer waits for a step that stands ready; no lane lives without member or build
    the lanes                 they are those of `model_lanes.ReferenceLanes`, with the same members, bases and steps
"""

from __future__ import annotations

from collections import Counter

from loader_service.sharing.consumer import Consumer, Grant
from loader_service.sharing.fairness import Limits
from loader_service.sharing.lane import Lane
from loader_service.sharing.lane_table import Claim
from loader_service.sharing.ring import SlotState
from loader_service.sharing.scheduler import RingScheduler
from loader_service.sharing.segment_pool import SegmentPool
from tests.sharing.model_lanes import ReferenceLanes
from tests.sharing.model_memory import PAGE, Memory

__all__ = ["Account"]


class Account:
    """One RingScheduler with P = `prefetch`, memory for `segments` segments of a page, and what is known of it.

    reference: the lanes as the model knows them; builds: (lane, step) -> claims; views: lease -> (consumer, grant),
    given_up: views of those put out; put_out: open, but evicted; delivered: consumer -> steps it got; tally: counts.
    """

    def __init__(self, prefetch: int, segments: int, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.memory = Memory(segments * PAGE)
        self.pool = SegmentPool(self.memory, prefetch, PAGE)
        self.lanes = RingScheduler(prefetch, self.pool, limits=limits)
        self.reference = ReferenceLanes(prefetch)
        self.builds: dict[str, Claim] = {}
        self.views: dict[int, tuple[int, Grant]] = {}
        self.given_up: list[Grant] = []
        self.put_out: set[int] = set()
        self.delivered: dict[int, list[int]] = {}
        self.tally: Counter[str] = Counter()

    @property
    def prefetch(self) -> int:
        return self.reference.prefetch

    @property
    def position(self) -> dict[int, int]:
        """Open consumer -> the step that it takes next."""
        return {name: one.position for name, one in self.reference.readers.items()}

    @property
    def waiting(self) -> dict[int, int]:
        """Consumer -> the step that it waits for."""
        return {name: one.wanted for name, one in self.reference.readers.items() if one.wanted is not None}

    @property
    def demanding(self) -> set[int]:
        """The consumers that cannot go on without the step that they wait for."""
        return {name for name, one in self.reference.readers.items() if one.demanded}

    def lane_of(self, consumer: int) -> Lane | None:
        """The lane that the scheduler has it in."""
        return self.lanes.rings.of(self.lanes.consumers[consumer])

    def detached(self) -> list[int]:
        """The consumers that were split off and have not asked since."""
        return [name for name, one in self.reference.readers.items() if one.split]

    def members(self) -> dict[int, Consumer]:
        """The consumers in lanes now."""
        return {name: member for lane in self.lanes.lanes.values() for name, member in lane.members.items()}

    def occupied(self) -> list[Lane]:
        return [self.lanes.lanes[lane_id] for lane_id in self.reference.occupied()]

    def standing(self) -> list[str]:
        """The segments that stand in rings, with repetitions if there are any."""
        rings = [lane.ring for lane in self.lanes.lanes.values()]
        return [slot.segment for ring in rings for slot in [*ring.slots, *ring.leaving]]

    def segment_at(self, lane_id: int, step: int) -> str:
        """The segment that stands in the slot of a step."""
        slots = self.lanes.lanes[lane_id].ring.slots
        return slots[step % len(slots)].segment

    def takes(self, count: int) -> bool:
        """Tell if memory allows `count` segments more in rings."""
        idle = set(self.memory.sizes) - set(self.standing()) - set(+self.memory.readers)
        spare = sum(self.memory.sizes[segment] >= self.pool.segment_bytes for segment in idle)
        return count <= spare + self.memory.room // self.pool.segment_bytes

    def check(self) -> None:
        """All that must hold after an event."""
        self._check_segments()
        self._check_consumers()
        assert self.lanes.lanes.keys() == self.reference.lanes.keys()
        for lane in self.lanes.lanes.values():
            self._check_lane(lane)
            self._check_slots(lane)

    def _check_consumers(self) -> None:
        for consumer, step in self.waiting.items():
            waits_in = self.lane_of(consumer)
            assert waits_in is not None
            assert waits_in.ring.state(step) in (SlotState.FREE, SlotState.BUILDING), f"{step} stands ready"
        assert {name for name in self.lanes.consumers if self.lanes.is_waiting(name)} == self.waiting.keys()
        known = {name: one for name, one in self.lanes.consumers.items() if not one.closed}
        assert {name for name, one in known.items() if not one.evicted} == set(self.position)
        assert {name for name, one in known.items() if one.evicted} == self.put_out
        for name, blocked_s in self.reference.blocked_s.items():
            if name in self.lanes.consumers:
                assert self.lanes.consumers[name].blocked_others_s == blocked_s

    def _check_segments(self) -> None:
        memory, standing = self.memory, self.standing()
        memory.check()
        assert len(standing) == len(set(standing)), f"a segment stands twice in {standing}"
        assert set(standing) - set(memory.sizes) <= memory.given_up | memory.unlinked
        assert len(self.pool) == len(memory.sizes)
        assert self.pool.total_bytes == sum(memory.sizes.values()) <= memory.limit_bytes
        for segment in memory.sizes:
            kept = bool(memory.readers[segment]) or segment in memory.given_up | memory.unlinked
            assert self.pool.is_kept(segment) == kept
        ended = {segment for segment in memory.given_up if not memory.readers[segment]}
        assert ended & set(memory.sizes) <= set(standing), "who was put out keeps memory from the others"
        for grant in [grant for _, grant in self.views.values()] + self.given_up:
            assert memory.texts[grant.placement.segment] == grant.content, f"{grant} changed under its reader"

    def _check_lane(self, lane: Lane) -> None:
        """It is as the model has it: members, base, size, what stands in it, what can be claimed."""
        expected, members = self.reference.lanes[lane.lane_id], self.reference.members(lane.lane_id)
        assert lane.members.keys() == members.keys()
        assert (lane.base, len(lane.ring.slots)) == (expected.base, expected.size)
        assert {name: one.position for name, one in lane.members.items()} == {
            name: one.position for name, one in members.items()
        }
        stands = {slot.step: slot.state.value for slot in lane.ring.slots if slot.step is not None}
        assert stands == {step: state.replace("lost", "ready") for step, state in expected.steps.items()}
        assert sorted((slot.step or 0, slot.segment) for slot in lane.ring.leaving) == sorted(expected.leaving)
        assert list(lane.claimable()) == self.reference.claimable(lane.lane_id)
        assert members or expected.is_building(), f"lane {lane.lane_id} has neither member nor build"

    def _check_slots(self, lane: Lane) -> None:
        slots, size = lane.ring.slots, len(lane.ring.slots)
        building = {slot.segment for slot in [*slots, *lane.ring.leaving] if slot.state is SlotState.BUILDING}
        assert building == {claim.placement.segment for claim in self.builds.values() if claim.lane_id == lane.lane_id}
        for slot in slots:
            assert slot.place == slots.index(slot)
            assert slot.step is None or slot.place == slot.step % size
            assert slot.state is SlotState.FREE or slot.segment in self.memory.sizes
        for name in lane.members:
            for lease, step in self.reference.readers[name].held.items():
                segment = self.views[lease][1].placement.segment
                if segment not in self.memory.unlinked and not self.tally["retuned down"]:  # which drops steps
                    assert lane.ring.state(step) is SlotState.READY
                    assert lane.ring.of(step).segment == segment
