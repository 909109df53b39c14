"""A lane: one ring and the consumers whose positions lie in its window.

Owns `Lane` and `Member`. Invariant: base is the oldest step that some member has not released, it never falls,
and only steps of the window [base, base + P) are claimed, so two steps never want one slot at once. Holds no
clock, socket or memory: a segment is a name here.

    cursor of a member = min(its leased steps, its position);  base = min over members' cursors
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from loader_service.core.slots import Ring, SlotState
from loader_service.errors import IntegrityError

__all__ = ["Lane", "Member"]


@dataclass(slots=True)
class Member:
    """One consumer in a lane. position: the step that it takes next; leases: lease id -> step that it holds."""

    position: int
    leases: dict[int, int] = field(default_factory=dict)

    @property
    def cursor(self) -> int:
        """The oldest step that it has not released: its lease on everything from there on."""
        return min([self.position, *self.leases.values()])


class Lane:
    """One ring of P slots with its members; `base` is where its window begins.

    No step of the window below `_frontier` can be claimed, so that looking for one costs nothing per slot.
    """

    __slots__ = ("_frontier", "base", "members", "name", "ring")

    def __init__(self, name: int, segments: list[str], base: int) -> None:
        self.name = name
        self.ring = Ring(segments)
        self.base = self._frontier = base
        self.members: dict[int, Member] = {}

    @property
    def prefetch(self) -> int:
        return len(self.ring.slots)

    @property
    def window(self) -> range:
        """[base, base + P): the steps that may stand in the ring."""
        return range(self.base, self.base + self.prefetch)

    def rebase(self, base: int) -> None:
        """Begin anew at `base`, forwards or back: for a lane that has no members (any more)."""
        if self.members:
            raise IntegrityError(f"lane {self.name} has members {list(self.members)} and would be rebased")
        self.base = self._frontier = base
        for slot in self.ring.slots:
            if slot.step is not None and slot.step not in self.window:
                self.ring.free(slot.step)

    def join(self, consumer: int, step: int) -> None:
        """Make `consumer` a member that takes `step` next; the step must lie in the window."""
        if step not in self.window:
            raise IntegrityError(f"step {step} joined the {self.window} of lane {self.name}")
        self.members[consumer] = Member(step)
        self._advance()

    def leave(self, consumer: int) -> None:
        """End the membership; what it still leases is no longer the lane's to keep."""
        del self.members[consumer]
        self._advance()

    def move(self, consumer: int, step: int) -> None:
        """Set the member's position within the window; steps that it skips are as if released."""
        self.members[consumer].position = step
        self._advance()

    def lease(self, consumer: int, step: int, lease: int) -> None:
        """The member takes `step`: it holds it until `release`, and its position is the next one."""
        member = self.members[consumer]
        member.leases[lease] = step
        member.position = step + 1
        self._advance()

    def release(self, consumer: int, lease: int) -> None:
        """End one lease of a member; freed slots can be claimed again."""
        del self.members[consumer].leases[lease]
        self._advance()

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

    def ended(self, step: int) -> None:
        """A build of `step` has ended, in whatever state: a step that nobody wants, or that is lost, is free."""
        if step not in self.window:
            self.ring.free(step)
        elif self.ring.state(step) is SlotState.FREE:
            self._frontier = min(self._frontier, step)

    def _advance(self) -> None:
        base = min((member.cursor for member in self.members.values()), default=self.base)
        if base < self.base:
            raise IntegrityError(f"lane {self.name} would fall from base {self.base} to {base}")
        for step in range(self.base, min(base, self.base + self.prefetch)):
            self.ring.free(step)
        self.base, self._frontier = base, max(base, self._frontier)
