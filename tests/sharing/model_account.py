"""What is known of one RingScheduler from outside, and what must hold at all times.

Owns `Account`, the state and the checks of `model_world.World`:

    a view never changes      what a live lease, or one who was put out, reads is what was granted: its segment is not
                              written; it is retired only when no lease is on it, and then soon
    one place for a segment   no segment stands twice in the rings; one that is being written is granted to nobody
    the window                slot of g is g mod the size of its ring; base = the oldest cursor, and never falls
    each step once            what was built in a lane's window is not claimed there again while a member stays
    nobody is forgotten       no consumer waits for a step that stands ready; no lane lives without member or build
"""

from __future__ import annotations

from collections import Counter

from loader_service.sharing.consumer import Grant
from loader_service.sharing.fairness import Limits
from loader_service.sharing.lane import Lane, Member
from loader_service.sharing.lane_set import Claim
from loader_service.sharing.pace import ConsumerOptions
from loader_service.sharing.ring import SlotState
from loader_service.sharing.scheduler import RingScheduler
from loader_service.sharing.segment_pool import SegmentPool
from tests.sharing.model_memory import PAGE, Memory

__all__ = ["Account"]


class Account:
    """One RingScheduler with P = `prefetch`, memory for `segments` segments of a page, and what is known of it.

    builds: (lane, step) -> claim; views: lease -> (consumer, grant), given_up: views of those put out; waiting:
    consumer -> step it waits for, demanding: who cannot go on without it; position: open consumer -> its next step;
    put_out: open, but evicted; delivered: consumer -> steps it got; debt: see `sharing.pace`; tally: counts.
    """

    def __init__(self, prefetch: int, segments: int, limits: Limits | None = None) -> None:
        self.prefetch = prefetch
        self.limits = limits or Limits()
        self.memory = Memory(segments * PAGE)
        self.pool = SegmentPool(self.memory, prefetch, PAGE)
        self.lanes = RingScheduler(prefetch, self.pool, limits=limits)
        self.builds: dict[tuple[int, int], Claim] = {}
        self.views: dict[int, tuple[int, Grant]] = {}
        self.given_up: list[Grant] = []
        self.waiting: dict[int, int] = {}
        self.demanding: set[int] = set()
        self.position: dict[int, int] = {}
        self.put_out: set[int] = set()
        self.terms: dict[int, ConsumerOptions] = {}
        self.delivered: dict[int, list[int]] = {}
        self.debt: dict[int, float] = {}
        self.tally: Counter[str] = Counter()
        self.kept: dict[int, set[int]] = {}
        self._stood: dict[int, tuple[int, dict[int, Member]]] = {}

    def lane_of(self, consumer: int) -> Lane | None:
        return self.lanes.consumers[consumer].lane

    def detached(self) -> list[int]:
        """Those who were split off and have not asked since."""
        return [name for name in self.position if self.lanes.consumers[name].split]

    def members(self) -> dict[int, Member]:
        """Consumer -> its place in a lane now; another object after it has left one, whatever lane it is in then."""
        return {name: member for lane in self.lanes.lanes.values() for name, member in lane.members.items()}

    def occupied(self) -> list[Lane]:
        return [lane for lane in self.lanes.lanes.values() if lane.members]

    def standing(self) -> list[str]:
        """The segments that stand in rings, with repetitions if there are any."""
        return [slot.segment for lane in self.lanes.lanes.values() for slot in lane.ring.slots]

    def takes(self, count: int) -> bool:
        """Whether memory allows `count` segments more in rings."""
        idle = set(self.memory.sizes) - set(self.standing()) - set(+self.memory.readers)
        spare = sum(self.memory.sizes[segment] >= self.pool.segment_bytes for segment in idle)
        return count <= spare + self.memory.room // self.pool.segment_bytes

    def check(self) -> None:
        """All that must hold after an event."""
        self._check_segments()
        for lane in self.lanes.lanes.values():
            self._check_slots(lane)
            self._check_base(lane)
        self._stood = {name: (lane.base, dict(lane.members)) for name, lane in self.lanes.lanes.items()}
        for consumer, step in self.waiting.items():
            waits_in = self.lane_of(consumer)
            assert waits_in is not None
            assert waits_in.ring.state(step) in (SlotState.FREE, SlotState.BUILDING), f"{step} stands ready"
        assert {name for name in self.lanes.consumers if self.lanes.waits(name)} == self.waiting.keys()
        known = {name: one for name, one in self.lanes.consumers.items() if not one.closed}
        assert {name for name, one in known.items() if not one.evicted} == set(self.position)
        assert {name for name, one in known.items() if one.evicted} == self.put_out

    def _check_segments(self) -> None:
        memory, standing = self.memory, self.standing()
        memory.check()
        assert len(standing) == len(set(standing)), f"a segment stands twice in {standing}"
        assert set(standing) - set(memory.sizes) <= memory.given_up | memory.unlinked
        assert len(self.pool) == len(memory.sizes)
        assert self.pool.total_bytes == sum(memory.sizes.values()) <= memory.limit_bytes
        for segment in memory.sizes:
            kept = bool(memory.readers[segment]) or segment in memory.given_up | memory.unlinked
            assert self.pool.leased(segment) == kept
        ended = {segment for segment in memory.given_up if not memory.readers[segment]}
        assert ended & set(memory.sizes) <= set(standing), "who was put out keeps memory from the others"
        for grant in [grant for _, grant in self.views.values()] + self.given_up:
            assert memory.texts[grant.placement.segment] == grant.content, f"{grant} changed under its reader"

    def _check_slots(self, lane: Lane) -> None:
        slots, size = lane.ring.slots, len(lane.ring.slots)
        building = {slot.step: slot.segment for slot in slots if slot.state is SlotState.BUILDING}
        assert building == {
            claim.step: claim.placement.segment for claim in self.builds.values() if claim.lane_id == lane.name
        }
        assert lane.members or building, f"lane {lane.name} has neither member nor build"
        for slot in slots:
            assert slot.place == slots.index(slot)
            assert slot.step is None or slot.place == slot.step % size
            assert slot.state in (SlotState.FREE, SlotState.BUILDING) or slot.step in lane.reach
            assert slot.state is SlotState.FREE or slot.segment in self.memory.sizes
        free = [step for step in lane.window if lane.ring.of(step).state is SlotState.FREE]
        assert list(lane.claimable()) == (free if lane.members else [])
        for member in lane.members.values():
            for lease, step in member.leases.items():
                if self.views[lease][1].placement.segment in self.memory.unlinked:
                    continue  # it reads on, while the others get another
                assert lane.ring.state(step) is SlotState.READY
                assert lane.ring.of(step).segment == self.views[lease][1].placement.segment

    def _check_base(self, lane: Lane) -> None:
        cursors = [min([self.position[name], *member.leases.values()]) for name, member in lane.members.items()]
        assert not cursors or lane.base == min(cursors)
        base, members = self._stood.get(lane.name, (lane.base, {}))
        kept = self.kept.setdefault(lane.name, set())
        if any(lane.members.get(name) is member for name, member in members.items()):
            assert lane.base >= base, f"lane {lane.name} fell from {base} to {lane.base}"
        else:
            kept.clear()
        last = lane.base + self.prefetch  # a ring that becomes smaller may drop what lies beyond
        kept -= {step for step in kept if step >= last and lane.ring.state(step) is SlotState.FREE}
        building = {step for name, step in self.builds if name == lane.name}
        ahead = {step for step in kept | building if step >= lane.base}  # built, and not released by all
        assert len(ahead) <= max(self.prefetch, len(lane.ring.slots))
