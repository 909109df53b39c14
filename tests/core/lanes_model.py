"""A world for StreamLanes: memory with a limit, workers that write into it, consumers that look at it.

Owns `Memory`, an allocator that knows what stands in each segment and who reads it, and `World`, which sends events
to one StreamLanes and keeps its own account of them. After every event it checks what must hold at all times:

    a view never changes      what a live lease reads is what was granted; its segment is neither written nor retired
    one place for a segment   no segment stands twice in the rings; one that is being written is granted to nobody
    the window                slot of g is g mod P; claimed steps lie in [base, base + P); base = the oldest cursor
    each step once            what was built in a lane's window is not claimed there again while a member stays
    nobody is forgotten       no consumer waits for a step that stands ready; no lane lives without member or build
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from loader_service.core.lane import Lane
from loader_service.core.lanes import Answer, Claim, Failure, Grant, StreamLanes
from loader_service.core.pool import SegmentPool
from loader_service.core.slots import SlotState
from loader_service.errors import MemoryLimitError

__all__ = ["PAGE", "Memory", "World"]

PAGE = 4096


class Memory:
    """The allocator: refuses above `limit_bytes`; that a segment is written or retired while it is read, is a bug."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.sizes: dict[str, int] = {}
        self.texts: dict[str, object] = {}
        self.readers: Counter[str] = Counter()
        self.created = 0

    @property
    def room(self) -> int:
        return self.limit_bytes - sum(self.sizes.values())

    def create(self, nbytes: int) -> str:
        if nbytes > self.room:
            raise MemoryLimitError(f"{nbytes} bytes were asked for, {self.room} are free; release a batch")
        name = f"segment-{self.created}"
        self.created += 1
        self.sizes[name] = nbytes
        return name

    def retire(self, segment: str) -> None:
        assert not self.readers[segment], f"{segment} is retired while it is read"
        del self.sizes[segment]

    def write(self, segment: str, text: object) -> None:
        assert segment in self.sizes, f"{segment} is written and does not exist"
        assert not self.readers[segment], f"{segment} is written while it is read"
        self.texts[segment] = text


class World:
    """One StreamLanes with P = `prefetch`, memory for `segments` segments of a page, and what is known of it.

    builds: (lane, step) -> claim; views: lease -> (consumer, grant); waiting: consumer -> step it waits for;
    position: open consumer -> its next step; delivered: consumer -> steps it got; tally: how often what happened.
    """

    def __init__(self, prefetch: int, segments: int) -> None:
        self.prefetch = prefetch
        self.memory = Memory(segments * PAGE)
        self.pool = SegmentPool(self.memory, prefetch, PAGE)
        self.lanes = StreamLanes(prefetch, self.pool)
        self.builds: dict[tuple[int, int], Claim] = {}
        self.views: dict[int, tuple[int, Grant]] = {}
        self.waiting: dict[int, int] = {}
        self.position: dict[int, int] = {}
        self.delivered: dict[int, list[int]] = {}
        self.tally: Counter[str] = Counter()
        self._errors: set[int] = set()
        self._generations: Counter[str] = Counter()
        self._kept: dict[int, set[int]] = {}
        self._stood: dict[int, tuple[int, set[int]]] = {}

    def open(self, step: int) -> int:
        """A new consumer at `step`: its number. Raises MemoryLimitError; then it is not open."""
        consumer = len(self.delivered)
        self.delivered[consumer] = []
        self.lanes.open(consumer, step)
        self.position[consumer] = step
        self.check(mover=consumer)
        return consumer

    def ask(self, consumer: int, step: int | None = None) -> Answer | None:
        """Ask for `step`, by default the next one. Raises MemoryLimitError; then it is open and may ask again."""
        step = self.position[consumer] if step is None else step
        lane = self.lane_of(consumer)
        seeks = lane is None or (step not in lane.window and step != self.position[consumer])
        self.position[consumer] = step
        self.waiting.pop(consumer, None)
        answer = self.lanes.ask(consumer, step)
        self.waiting[consumer] = step
        self._receive([(consumer, answer)] if answer is not None else [])
        self.check(mover=consumer if seeks else None)
        return answer

    def release(self, consumer: int, lease: int) -> None:
        if lease in self.views and self.views[lease][0] == consumer:
            self._end_view(lease)
        self.lanes.release(consumer, lease)
        self.check()

    def release_all(self, *consumers: int) -> None:
        """Release all views of these consumers, of everyone where none is named."""
        for lease, (consumer, _) in list(self.views.items()):
            if not consumers or consumer in consumers:
                self.release(consumer, lease)

    def close(self, consumer: int) -> None:
        self._forget(consumer)
        self.lanes.close(consumer)
        self.check()

    def drop(self, consumer: int) -> None:
        self._forget(consumer)
        for lease in [lease for lease, (holder, _) in self.views.items() if holder == consumer]:
            self._end_view(lease)
        self.lanes.drop(consumer)
        assert consumer not in self.lanes.consumers
        self.check()

    def claim(self) -> Claim | None:
        stood = self.standing()
        claim = self.lanes.claim()
        if claim is not None:
            lane = self.lanes.lanes[claim.lane]
            assert lane.members
            assert claim.step in lane.window
            assert claim.place == claim.step % self.prefetch
            assert claim.step not in self._kept[claim.lane], f"{claim} was built already"
            self.tally.update(["replaced"] * (claim.segment not in stood) + ["shared"] * (len(lane.members) > 1))
            self._begin(claim)
            self.check()
        return claim

    def larger(self, claim: Claim, nbytes: int) -> None:
        """The claim's segment is too small for `nbytes`. Raises MemoryLimitError; then the claim stands as it was."""
        claim = self.lanes.larger(claim, nbytes)
        assert claim.segment_bytes >= nbytes
        assert (claim.lane, claim.step) in self.builds
        self._begin(claim)
        self.check()

    def built(self, claim: Claim) -> None:
        text = ("bytes of", claim.step, claim.segment, claim.generation)
        self.memory.write(claim.segment, text)
        self._end(claim)
        self._receive(self.lanes.built(claim, text))
        self.check()

    def failed(self, claim: Claim) -> None:
        self._errors.add(claim.step)
        self._end(claim)
        self._receive(self.lanes.failed(claim, ("no bytes of", claim.step)))
        self.check()

    def aborted(self, claim: Claim) -> None:
        del self.builds[claim.lane, claim.step]
        self.lanes.aborted(claim)
        self.check()

    def settle(self) -> None:
        """Build all that can be built; then only a lease, or a leased segment without a spare, makes one wait."""
        while self.claim() or self.builds:
            for claim in list(self.builds.values()):
                self.built(claim)
        idle = set(self.memory.sizes) - set(self.standing()) - set(+self.memory.readers)
        spare = any(self.memory.sizes[segment] >= self.pool.segment_bytes for segment in idle)
        for consumer, step in self.waiting.items():
            lane = self.lane_of(consumer)
            assert lane is not None
            if step in lane.window:
                self.tally["waits for a spare"] += 1
                assert self.memory.readers[lane.ring.of(step).segment]
                assert not spare
                assert self.memory.room < self.pool.segment_bytes

    def finish(self) -> None:
        """Release all and build all, again and again: then one waits only for a member that does not ask."""
        self.settle()
        while self.views:
            self.release_all()
            self.settle()
        for consumer, step in self.waiting.items():
            lane = self.lane_of(consumer)
            assert lane is not None
            assert step not in lane.window
            assert any(self.position[name] == lane.base for name in lane.members if name not in self.waiting)

    def end(self) -> None:
        """Finish and close everyone: nothing is left but the reserve."""
        self.finish()
        for consumer in list(self.position):
            self.close(consumer)
        self.settle()
        assert not self.lanes.lanes
        assert not self.lanes.consumers
        assert len(self.pool) <= self.prefetch
        assert all(nbytes >= self.pool.segment_bytes for nbytes in self.memory.sizes.values())

    def lane_of(self, consumer: int) -> Lane | None:
        return self.lanes.consumers[consumer].lane

    def standing(self) -> list[str]:
        """The segments that stand in rings, with repetitions if there are any."""
        return [slot.segment for lane in self.lanes.lanes.values() for slot in lane.ring.slots]

    def check(self, mover: int | None = None) -> None:
        """All that must hold after an event; `mover` is a consumer that may have changed its lane."""
        self._check_segments()
        for lane in self.lanes.lanes.values():
            self._check_slots(lane)
            self._check_base(lane, mover)
        self._stood = {name: (lane.base, set(lane.members)) for name, lane in self.lanes.lanes.items()}
        for consumer, step in self.waiting.items():
            waits_in = self.lane_of(consumer)
            assert waits_in is not None
            assert waits_in.ring.state(step) in (SlotState.FREE, SlotState.BUILDING), f"{step} stands ready"
        assert {name for name, known in self.lanes.consumers.items() if not known.closed} == set(self.position)

    def _check_segments(self) -> None:
        standing = self.standing()
        assert len(standing) == len(set(standing)), f"a segment stands twice in {standing}"
        assert set(standing) <= set(self.memory.sizes)
        assert len(self.pool) == len(self.memory.sizes)
        assert self.pool.total_bytes == sum(self.memory.sizes.values())
        for segment in self.memory.sizes:
            assert self.pool.leased(segment) == bool(self.memory.readers[segment])
        for _, grant in self.views.values():
            assert self.memory.texts[grant.segment] == grant.content, f"{grant} changed under its reader"

    def _check_slots(self, lane: Lane) -> None:
        building = {slot.step: slot.segment for slot in lane.ring.slots if slot.state is SlotState.BUILDING}
        assert building == {claim.step: claim.segment for claim in self.builds.values() if claim.lane == lane.name}
        assert lane.members or building, f"lane {lane.name} has neither member nor build"
        for slot in lane.ring.slots:
            assert slot.step is None or slot.place == slot.step % self.prefetch
            assert slot.state in (SlotState.FREE, SlotState.BUILDING) or slot.step in lane.window
        free = [step for step in lane.window if lane.ring.of(step).state is SlotState.FREE]
        assert list(lane.claimable()) == (free if lane.members else [])
        for member in lane.members.values():
            for lease, step in member.leases.items():
                assert lane.ring.state(step) is SlotState.READY
                assert lane.ring.of(step).segment == self.views[lease][1].segment

    def _check_base(self, lane: Lane, mover: int | None) -> None:
        cursors = [min([self.position[name], *member.leases.values()]) for name, member in lane.members.items()]
        assert not cursors or lane.base == min(cursors)
        base, members = self._stood.get(lane.name, (lane.base, set()))
        if (members & set(lane.members)) - {mover}:
            assert lane.base >= base, f"lane {lane.name} fell from {base} to {lane.base}"
        else:
            self._kept[lane.name] = set()

    def _receive(self, answers: Iterable[tuple[int, Answer]]) -> None:
        for consumer, answer in answers:
            step = self.waiting.pop(consumer)
            assert answer.step == step
            self.tally[type(answer).__name__] += 1
            if isinstance(answer, Failure):
                assert step in self._errors
                assert answer.error == ("no bytes of", step)
                self._forget(consumer)
                continue
            assert answer.content == ("bytes of", step, answer.segment, answer.generation)
            assert answer.lease not in self.views
            self.memory.readers[answer.segment] += 1
            self.views[answer.lease] = consumer, answer
            self.position[consumer] = step + 1
            self.delivered[consumer].append(step)

    def _begin(self, claim: Claim) -> None:
        """A worker writes: half of the bytes are there."""
        assert claim.segment_bytes == self.memory.sizes[claim.segment]
        assert claim.generation > self._generations[claim.segment]
        self._generations[claim.segment] = claim.generation
        self.builds[claim.lane, claim.step] = claim
        self.memory.write(claim.segment, ("half of", claim.step))

    def _end(self, claim: Claim) -> None:
        del self.builds[claim.lane, claim.step]
        if claim.step in self.lanes.lanes[claim.lane].window:
            self._kept[claim.lane].add(claim.step)

    def _end_view(self, lease: int) -> None:
        _, grant = self.views.pop(lease)
        self.memory.readers[grant.segment] -= 1

    def _forget(self, consumer: int) -> None:
        self.position.pop(consumer, None)
        self.waiting.pop(consumer, None)
