"""A lane: one ring and the consumers whose positions lie in its window (R7).

Owns `Lane`. Invariant: base is the oldest step that some member has not released, it never falls, and only steps of the
window [base, base + P) are claimed, so two steps never want one slot at once. Holds no clock, socket or memory: a
segment is a name here.

    base = min over members' cursors;  P = slots of the ring
"""

from __future__ import annotations

from collections.abc import Iterator

from loader_service.errors import IntegrityError
from loader_service.sharing.consumer import Consumer
from loader_service.sharing.ring import Ring, SlotState

__all__ = ["Lane"]

_END = 2**63


class Lane:
    """One ring of P slots with its members; `base` is where its window begins.

    No step of the window below `_frontier` can be claimed, so that looking for one costs nothing per slot.
    """

    __slots__ = ("_frontier", "base", "lane_id", "members", "ring", "turn")

    def __init__(self, lane_id: int, segments: list[str], base: int) -> None:
        self.lane_id = lane_id
        self.ring = Ring(segments)
        self.base = self._frontier = base
        self.members: dict[int, Consumer] = {}
        self.turn = 0  # when it was last given a build; whoever counts turns sets it

    @property
    def window(self) -> range:
        """[base, base + P): the steps that may be claimed; there are none from 2^63 on."""
        return range(self.base, min(self.base + len(self.ring.slots), _END))

    def begin_again(self, base: int) -> None:
        """Begin anew at `base`, forwards or back: for a lane that has no members any more."""
        if self.members:
            raise IntegrityError(f"lane {self.lane_id} has members {list(self.members)} and would begin again")
        self.base = self._frontier = base
        for slot in self.ring.slots:
            if slot.step is not None and (slot.step not in self.window or slot.state is SlotState.FAILED):
                self.ring.free(slot.step)

    def resize(self, prefetch: int, segments: list[str]) -> list[str]:
        """Have `prefetch` slots from now on; the segments that are left over. See `Ring.resize`."""
        left_over = self.ring.resize(range(self.base, self.base + prefetch), segments)
        self._frontier = self.base
        return left_over

    # --- members -----------------------------------------------------------------------------------------

    def join(self, joining: Consumer) -> None:
        """Make it a member; the step that it takes next must lie in the window."""
        if joining.position not in self.window:
            raise IntegrityError(f"step {joining.position} joined the {self.window} of lane {self.lane_id}")
        self.members[joining.consumer_id] = joining
        joining.lane_id = self.lane_id
        self._advance()

    def leave(self, leaving: Consumer) -> None:
        """End the membership; what it leases is no longer the lane's to keep."""
        del self.members[leaving.consumer_id]
        leaving.lane_id, leaving.wanted, leaving.demanded, leaving.blocked = None, None, False, False
        leaving.held_steps.clear()
        self._advance()

    def keeps_out(self, member: Consumer, step: int) -> bool:
        """Return whether `step` cannot be in the window before this member releases what it holds."""
        return any(held + len(self.ring.slots) <= step for held in member.held_steps.values())

    def want(self, member: Consumer, step: int, demanded: bool) -> None:
        """Let the member wait for `step`, which is its position then: what it skips is as if released."""
        cursor = member.cursor
        member.position, member.wanted, member.demanded = step, step, demanded
        if cursor == self.base or step < self.base:
            self._advance()
        member.blocked = step >= self.base + len(self.ring.slots) and any(
            one.cursor == self.base for one in self.members.values() if one is not member
        )

    def take(self, member: Consumer, lease_id: int) -> None:
        """Let the member hold the step that it waits for until `release`; its position is the next one."""
        step = member.position
        member.held_steps[lease_id] = step
        member.position, member.wanted, member.demanded, member.blocked = step + 1, None, False, False

    def release(self, member: Consumer, lease_id: int) -> None:
        """End one lease of a member; freed slots can be claimed again."""
        if member.held_steps.pop(lease_id) == self.base:
            self._advance()

    def can_come(self, step: int) -> bool:
        """Return whether `step` can be built, is or was built, with the base where it is."""
        return step in self.window or self.ring.state(step) is not SlotState.FREE

    # --- builds ------------------------------------------------------------------------------------------

    def can_claim(self, step: int) -> bool:
        """Return whether `step` lies in the window and its slot is free for it."""
        return step in self.window and self.ring.of(step).state is SlotState.FREE

    def claimable(self) -> Iterator[int]:
        """Yield the steps that can be built now, oldest first: of the window, as far as some member has asked."""
        asked_until = max((member.asked_until for member in self.members.values()), default=0)
        end = min(self.window.stop, asked_until)
        while self._frontier < end and self.ring.state(self._frontier) is not SlotState.FREE:
            self._frontier += 1
        slots = self.ring.slots
        for step in range(self._frontier, end):
            if slots[step % len(slots)].state is SlotState.FREE:
                yield step

    def demands(self) -> list[int]:
        """Return the steps that members cannot go on without and that can be built now, oldest first."""
        wanted = {member.wanted for member in self.members.values() if member.demanded}
        return sorted(step for step in wanted if step is not None and self.can_claim(step))

    def build_ended(self, step: int) -> None:
        """Look again at `step`, whose build has ended in whatever state: free it if nobody wants it any more."""
        if not self.base <= step < self.base + len(self.ring.slots):
            self.ring.free(step)

    def lose(self, step: int) -> None:
        """Let a step be claimed again that cannot be had any more, but by those who hold it."""
        self.ring.free(step)
        self._frontier = max(self.base, min(self._frontier, step))

    def _advance(self) -> None:
        base = min((member.cursor for member in self.members.values()), default=self.base)
        if base < self.base:
            raise IntegrityError(f"lane {self.lane_id} would fall from base {self.base} to {base}")
        for step in range(self.base, min(base, self.window.stop)):
            self.ring.free(step)
        self.base, self._frontier = base, max(base, self._frontier)
