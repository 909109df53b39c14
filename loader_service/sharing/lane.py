"""A lane: one ring and the consumers whose positions lie in its window (R7).

Owns `Lane` and `Member`. Invariant: base is the oldest step that some member has not released, it never falls,
and only steps of the window [base, base + P) are claimed, so two steps never want one slot at once. Holds no
clock, socket or memory: a segment is a name here, and time comes in as seconds that have passed.

    cursor of a member = min(its leased steps, its position);  base = min over members' cursors
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from loader_service.errors import IntegrityError
from loader_service.sharing.pace import Pace, debt_after
from loader_service.sharing.ring import Ring, SlotState

__all__ = ["Lane", "Member"]

_END = 2**63


@dataclass(slots=True)
class Member:
    """One consumer in a lane.

    position: the step that it takes next; leases: lease id -> step that it holds; wanted: the step that it has asked
    for; demanded: it cannot go on without it; debt_s: see `sharing.pace`.
    """

    position: int
    pace: Pace = field(default_factory=Pace)
    debt_s: float = 0.0
    leases: dict[int, int] = field(default_factory=dict)
    wanted: int | None = None
    demanded: bool = False

    @property
    def cursor(self) -> int:
        """The oldest step that it has not released: its lease on everything from there on."""
        return min([self.position, *self.leases.values()])


class Lane:
    """One ring of P slots with its members; `base` is where its window begins.

    prefetch: P, the steps of its window; a ring that is to change its size has it at once, and the slots follow in
    `fit`. No step of the window below `_frontier` can be claimed, so that looking for one costs nothing per slot.
    """

    __slots__ = ("_frontier", "base", "members", "name", "prefetch", "ring", "turn")

    def __init__(self, name: int, segments: list[str], base: int) -> None:
        self.name = name
        self.ring = Ring(segments)
        self.prefetch = len(segments)
        self.base = self._frontier = base
        self.members: dict[int, Member] = {}
        self.turn = 0  # when it was last given a build; whoever counts turns sets it

    @property
    def window(self) -> range:
        """[base, base + P): the steps that may be claimed; there are none from 2^63 on."""
        return range(self.base, min(self.base + min(self.prefetch, len(self.ring.slots)), _END))

    @property
    def reach(self) -> range:
        """The steps that may stand in the ring: the window, or more while the ring becomes smaller."""
        return range(self.base, self.base + len(self.ring.slots))

    def rebase(self, base: int) -> None:
        """Begin anew at `base`, forwards or back: for a lane that has no members (any more)."""
        if self.members:
            raise IntegrityError(f"lane {self.name} has members {list(self.members)} and would be rebased")
        self.base = self._frontier = base
        for slot in self.ring.slots:
            if slot.step is not None and (slot.step not in self.reach or slot.state is SlotState.FAILED):
                self.ring.free(slot.step)

    # --- members -----------------------------------------------------------------------------------------

    def join(self, consumer: int, member: Member) -> None:
        """Make `consumer` a member; the step that it takes next must lie in the window."""
        if member.position not in self.window:
            raise IntegrityError(f"step {member.position} joined the {self.window} of lane {self.name}")
        self.members[consumer] = member
        self._advance()

    def leave(self, consumer: int) -> Member:
        """End the membership; what it still leases is no longer the lane's to keep."""
        member = self.members.pop(consumer)
        self._advance()
        return member

    def is_blocked_by(self, consumer: int, step: int) -> bool:
        """Whether `step` cannot be in the window before the member releases what it holds."""
        return any(held + self.prefetch <= step for held in self.members[consumer].leases.values())

    def want(self, consumer: int, step: int, demanded: bool) -> None:
        """The member asks for `step`, which is its position then: what it skips is as if released."""
        member = self.members[consumer]
        was_at = member.cursor
        member.position, member.wanted, member.demanded = step, step, demanded
        self._moved(member, was_at)

    def lease(self, consumer: int, step: int, lease: int) -> None:
        """The member takes `step`: it holds it until `release`, and its position is the next one."""
        member = self.members[consumer]
        was_at = member.cursor
        member.leases[lease] = step
        member.position, member.wanted = step + 1, None
        self._moved(member, was_at)

    def release(self, consumer: int, lease: int) -> None:
        """End one lease of a member; freed slots can be claimed again."""
        member = self.members[consumer]
        was_at = member.cursor
        del member.leases[lease]
        self._moved(member, was_at)

    # --- time --------------------------------------------------------------------------------------------

    def held_up(self) -> list[int]:
        """The members who cannot go on because the window ends before the step that they want."""
        return [
            name
            for name, member in self.members.items()
            if member.demanded and member.wanted is not None and not self._comes(member.wanted)
        ]

    def blamed(self) -> list[int]:
        """The members for whom others wait: they stand at the base, and not because their own step is being built."""
        waiting = self.held_up()
        if not waiting:
            return []
        return [
            name
            for name, member in self.members.items()
            if member.cursor == self.base and any(other != name for other in waiting) and not self._is_served(member)
        ]

    def pass_time(self, elapsed_s: float, hoarders: Collection[int] = ()) -> None:
        """Debts grow, or are forgiven: this lane was in its present state for `elapsed_s` seconds.

        hoarders: those whom another lane waits for.
        """
        someone_waits, blamed = bool(self.held_up()), {*self.blamed(), *hoarders}
        for name, member in self.members.items():
            member.debt_s = debt_after(member.debt_s, elapsed_s, blamed=name in blamed, someone_waits=someone_waits)

    def _comes(self, step: int) -> bool:
        """Whether `step` can be built, is or was built, with the base where it is."""
        return step in self.window or self.ring.state(step) is not SlotState.FREE

    def _is_served(self, member: Member) -> bool:
        """Whether its own step is being built: it cannot go on without it, or it holds nothing but its place."""
        waits = member.demanded or member.cursor == member.position
        return waits and member.wanted is not None and self._comes(member.wanted)

    # --- builds ------------------------------------------------------------------------------------------

    def can_claim(self, step: int) -> bool:
        """Whether `step` lies in the window and its place is free for it."""
        return step in self.window and self.ring.of(step).state is SlotState.FREE

    def claimable(self) -> Iterator[int]:
        """The steps of the window that can be built now, oldest first."""
        if not self.members:
            return
        end = self.window.stop
        while self._frontier < end and self.ring.state(self._frontier) is not SlotState.FREE:
            self._frontier += 1
        yield from filter(self.can_claim, range(self._frontier, end))

    def demands(self) -> list[int]:
        """The steps that members cannot go on without and that can be built now, oldest first."""
        wanted = {member.wanted for member in self.members.values() if member.demanded}
        return sorted(step for step in wanted if step is not None and self.can_claim(step))

    def ended(self, step: int) -> None:
        """A build of `step` has ended, in whatever state: a step that nobody wants, or that is lost, is free."""
        if step not in self.reach:
            self.ring.free(step)
        elif self.ring.state(step) is SlotState.FREE:
            self._frontier = min(self._frontier, step)

    def lose(self, step: int) -> None:
        """What stands ready cannot be had any more, but by those who hold it: it can be claimed again."""
        self.ring.free(step)
        self._frontier = min(self._frontier, step)

    # --- size --------------------------------------------------------------------------------------------

    def missing_slots(self) -> int:
        """How many segments `fit` wants, below zero: how many it gives back."""
        return self.prefetch - len(self.ring.slots)

    def can_fit(self) -> bool:
        """Whether all that stands in the ring has a slot in one of the size that it is to have.

        Ready steps that are beyond it and that no member holds are dropped: they are built again.
        """
        held = {step for member in self.members.values() for step in member.leases.values()}
        future = range(self.base, self.base + self.prefetch)
        for slot in self.ring.slots:
            if slot.step is not None and slot.step not in future and slot.step not in held:
                self.ring.free(slot.step)
                self._frontier = self.base
        return all(slot.step is None or slot.step in future for slot in self.ring.slots)

    def fit(self, segments: list[str]) -> list[str]:
        """Let the ring have P slots, with `segments` in those that are new; the segments that are left over."""
        free = [slot.segment for slot in self.ring.slots if slot.step is None] + segments
        standing = [slot for slot in self.ring.slots if slot.step is not None]
        count = self.prefetch - len(standing)
        self.ring = Ring.of_slots(self.prefetch, standing, free[:count])
        self._frontier = self.base
        return free[count:]

    def _moved(self, member: Member, was_at: int) -> None:
        """The member's cursor was there; nothing follows from its moving on where somebody is further behind."""
        if was_at == self.base or member.cursor < self.base:
            self._advance()

    def _advance(self) -> None:
        base = min((member.cursor for member in self.members.values()), default=self.base)
        if base < self.base:
            raise IntegrityError(f"lane {self.name} would fall from base {self.base} to {base}")
        for step in range(self.base, min(base, self.reach.stop)):
            self.ring.free(step)
        self.base, self._frontier = base, max(base, self._frontier)
