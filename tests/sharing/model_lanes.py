"""A second, slow reading of docs/sharing.md: which lanes there are, who is in which, and whom others wait for.

Owns `ReferenceLanes`, which is told events and computes everything anew from them, without any code of
`loader_service.sharing` that decides something. What it takes from the scheduler under test is only what that cannot
know by itself: which build was claimed, which answer was given, and that memory was refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from loader_service.sharing.consumer import ConsumerOptions

__all__ = ["END", "Reader", "ReferenceLane", "ReferenceLanes"]

END = 2**63


@dataclass
class Reader:
    """A consumer that is open. held: lease -> step, of those taken in its lane; run_left: steps yet to be asked for."""

    position: int
    options: ConsumerOptions
    lane_id: int | None = None
    held: dict[int, int] = field(default_factory=dict)
    wanted: int | None = None
    demanded: bool = False
    demanded_step: int = -1
    asked_until: int = END
    run_left: int = 0
    split: bool = False

    @property
    def cursor(self) -> int:
        return min([self.position, *self.held.values()])


@dataclass
class ReferenceLane:
    """One ring and its window.

    steps: what stands in the ring: "building", "ready", "failed", or "lost" with its segment's name; segments: into
    which each step is built; leaving: (step, segment) of builds that had no place in a smaller ring.
    """

    base: int
    size: int
    steps: dict[int, str] = field(default_factory=dict)
    segments: dict[int, str] = field(default_factory=dict)
    leaving: list[tuple[int, str]] = field(default_factory=list)

    @property
    def window(self) -> range:
        return range(self.base, self.base + self.size)

    @property
    def places(self) -> set[int]:
        """The slots in which something stands."""
        return {step % self.size for step in self.steps}

    def comes(self, step: int) -> bool:
        """Tell if `step` can be built without anybody's release, or stands there."""
        return step in self.window or step in self.steps

    def is_building(self) -> bool:
        return bool(self.leaving) or "building" in self.steps.values()


class ReferenceLanes:
    """The lanes of one stream with rings of `prefetch` slots; blocked_s: seconds that others waited for each."""

    def __init__(self, prefetch: int) -> None:
        self.prefetch = prefetch
        self.readers: dict[int, Reader] = {}
        self.lanes: dict[int, ReferenceLane] = {}
        self.blocked_s: dict[int, float] = {}
        self._made = 0

    # --- what is the case ----------------------------------------------------------------------------------

    def members(self, lane_id: int) -> dict[int, Reader]:
        return {name: one for name, one in self.readers.items() if one.lane_id == lane_id}

    def occupied(self) -> list[int]:
        return [lane_id for lane_id in sorted(self.lanes) if self.members(lane_id)]

    def lane_of(self, name: int) -> ReferenceLane | None:
        lane_id = self.readers[name].lane_id
        return None if lane_id is None else self.lanes[lane_id]

    def holding(self, step: int) -> int | None:
        """The oldest lane in whose window `step` lies."""
        return next((lane_id for lane_id in self.occupied() if step in self.lanes[lane_id].window), None)

    def claimable(self, lane_id: int) -> list[int]:
        """The steps that may be built now: free places of the window, as far as somebody has asked."""
        lane = self.lanes[lane_id]
        asked = max((one.asked_until for one in self.members(lane_id).values()), default=0)
        return [step for step in lane.window if step < asked and step % lane.size not in lane.places]

    def can_build(self, lane_id: int, step: int) -> bool:
        lane = self.lanes[lane_id]
        return step in lane.window and step % lane.size not in lane.places

    def waiting_for_others(self, lane_id: int) -> set[int]:
        """The members who demand a step that cannot be built before the base moves."""
        lane = self.lanes[lane_id]
        members = self.members(lane_id).items()
        return {name for name, one in members if one.demanded and not lane.comes(one.wanted or 0)}

    def idle_at_base(self, lane_id: int) -> set[int]:
        """The members who keep the base where it is, by what they do not release or do not ask for."""
        lane = self.lanes[lane_id]
        at_base = {name: one for name, one in self.members(lane_id).items() if one.cursor == lane.base}
        return {name for name, one in at_base.items() if not _is_served(lane, one)}

    def blockers(self) -> set[int]:
        """The members who are idle at the base of a lane where another waits."""
        return {
            name
            for lane_id in self.occupied()
            for name in self.idle_at_base(lane_id)
            if self.waiting_for_others(lane_id) - {name}
        }

    def stays_in(self, name: int, step: int, jumps: bool) -> int | None:
        """The lane in which a member that asks for `step` is then; None for one that seeks, and for no member."""
        reader, lane = self.readers[name], self.lane_of(name)
        if lane is None or reader.lane_id is None:
            return None
        if jumps and any(held + lane.size <= step for held in reader.held.values()):
            return None
        after_failure = lane.steps.get(reader.position) == "failed"
        if step not in (reader.position, reader.position + after_failure) and step not in lane.window:
            return None
        met = self.holding(step)
        if met is None or met >= reader.lane_id:
            return reader.lane_id
        in_lockstep = any(one.options.policy.waits for one in self.members(met).values())
        return reader.lane_id if in_lockstep and not reader.options.policy.waits else met

    # --- what happens --------------------------------------------------------------------------------------

    def add(self, name: int, position: int, options: ConsumerOptions) -> None:
        self.readers[name] = Reader(position, options)
        self.blocked_s[name] = 0.0
        self._join(name)
        self.settle()

    def wait(self, name: int, step: int, demanded: bool, jumps: bool) -> None:
        """It asks for `step`, and gets into the lane that holds it, or into a new one."""
        reader, goes_to = self.readers[name], self.stays_in(name, step, jumps)
        if goes_to is None or goes_to != reader.lane_id:
            self.leave(name)
            reader.position = step
            self._join(name)
        reader.position, reader.wanted, reader.demanded = step, step, demanded
        self.settle()
        self.look_at(name)

    def look_at(self, name: int) -> None:
        """It wants a step: one that is lost is to be built again."""
        reader, lane = self.readers[name], self.lane_of(name)
        if lane is not None and reader.wanted is not None and lane.steps.get(reader.wanted) == "lost":
            del lane.steps[reader.wanted]

    def take(self, name: int, lease: int, step: int) -> None:
        reader = self.readers[name]
        reader.held[lease] = step
        reader.position, reader.wanted, reader.demanded = step + 1, None, False

    def stop_waiting(self, name: int) -> None:
        self.readers[name].wanted, self.readers[name].demanded = None, False

    def release(self, name: int, lease: int) -> None:
        if name in self.readers:
            self.readers[name].held.pop(lease, None)
            self.settle()

    def leave(self, name: int) -> None:
        """It is in no lane: it moves, is split off, or memory was refused to it."""
        reader = self.readers[name]
        reader.lane_id, reader.wanted, reader.demanded = None, None, False
        reader.held.clear()
        self.settle()

    def refuse(self, name: int, step: int, had_lane: bool) -> None:
        """It asked for `step` and memory was refused; had_lane: not the lane's, but that of a segment in it."""
        self.leave(name)
        self.readers[name].position = step
        if had_lane:
            self._join(name)
            self.leave(name)

    def remove(self, name: int) -> None:
        """It takes no more steps."""
        if name in self.readers:
            self.leave(name)
            del self.readers[name]

    def begin(self, lane_id: int, step: int, segment: str) -> None:
        self.lanes[lane_id].steps[step] = "building"
        self.lanes[lane_id].segments[step] = segment

    def enlarge(self, lane_id: int, step: int, segment: str, larger: str) -> None:
        """A build goes on in another segment."""
        lane = self.lanes[lane_id]
        if (step, segment) in lane.leaving:
            lane.leaving[lane.leaving.index((step, segment))] = step, larger
        else:
            lane.segments[step] = larger

    def end(self, lane_id: int, step: int, segment: str, state: str) -> None:
        """A build has ended as "ready", "failed", "lost", or "free" where nothing came of it."""
        lane = self.lanes[lane_id]
        if (step, segment) in lane.leaving:
            lane.leaving.remove((step, segment))
        elif state == "free" or step not in lane.window:
            del lane.steps[step]
        else:
            lane.steps[step] = state
            for name in self.members(lane_id):
                if self.readers[name].wanted == step:
                    self.look_at(name)
        self.settle()

    def resize(self, prefetch: int) -> None:
        self.prefetch = prefetch
        for lane_id in self.occupied():
            self._resize(self.lanes[lane_id])
        self.settle()

    def pass_time(self, elapsed_s: float, memory_blockers: set[int]) -> None:
        """Time passes in the present state; memory_blockers: those who keep memory that others wait for."""
        blocking = self.blockers() | memory_blockers
        at_ease = {
            name
            for lane_id in self.occupied()
            if not self.waiting_for_others(lane_id)
            for name in self.members(lane_id)
        }
        for name in blocking:
            self.blocked_s[name] = self.blocked_s.get(name, 0.0) + elapsed_s
        for name in at_ease - blocking:
            self.blocked_s[name] = max(0.0, self.blocked_s[name] - elapsed_s / 4)

    def settle(self) -> None:
        """Bases follow the oldest cursors; what lies before them is free; a lane without member and build ends."""
        for lane_id, lane in list(self.lanes.items()):
            members = self.members(lane_id)
            if members:
                base = min(one.cursor for one in members.values())
                assert base >= lane.base, f"lane {lane_id} fell from {lane.base} to {base}"
                lane.base = base
                lane.steps = {
                    step: state for step, state in lane.steps.items() if state == "building" or step in lane.window
                }
            elif not lane.is_building():
                del self.lanes[lane_id]

    def _join(self, name: int) -> None:
        reader = self.readers[name]
        lane_id = self.holding(reader.position)
        reader.lane_id = self._new_lane(reader.position) if lane_id is None else lane_id
        reader.split = False

    def _new_lane(self, base: int) -> int:
        """The oldest lane without members that a worker still writes into, anew; else another one."""
        idle = [lane_id for lane_id in sorted(self.lanes) if not self.members(lane_id)]
        if not idle:
            self.lanes[self._made] = ReferenceLane(base, self.prefetch)
            self._made += 1
            return self._made - 1
        lane = self.lanes[idle[0]]
        lane.base = base
        lane.steps = {
            step: state
            for step, state in lane.steps.items()
            if state == "building" or (state != "failed" and step in lane.window)
        }
        if lane.size != self.prefetch:
            self._resize(lane)
        return idle[0]

    def _resize(self, lane: ReferenceLane) -> None:
        if lane.size == self.prefetch:
            return
        lane.size = self.prefetch
        beyond = [step for step, state in lane.steps.items() if state == "building" and step not in lane.window]
        lane.leaving += [(step, lane.segments[step]) for step in beyond]
        lane.steps = {step: state for step, state in lane.steps.items() if step in lane.window}


def _is_served(lane: ReferenceLane, reader: Reader) -> bool:
    """Its own step is on its way; with a lease it may be at work, unless it says that it waits."""
    comes = reader.wanted is not None and lane.comes(reader.wanted)
    return comes and (reader.demanded or not reader.held)
