"""The ring: P slots, and what stands in each (R6).

Owns `Slot`, `SlotState` and `Ring`. Invariant: the slot of step g is g mod P, and a slot changes state only along
the arrows below; any other change is an IntegrityError, for it would be a bug of ours.

    FREE -claim-> BUILDING -commit-> READY  -free-> FREE
                  BUILDING -fail---> FAILED -free-> FREE
                  BUILDING -abort--> FREE              (the worker died)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from loader_service.errors import IntegrityError
from loader_service.sharing.placement import Placement

__all__ = ["Ring", "Slot", "SlotState"]


class SlotState(StrEnum):
    """FREE: may be claimed; BUILDING: a worker writes; READY: readable; FAILED: holds the step's error."""

    FREE = "free"
    BUILDING = "building"
    READY = "ready"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Slot:
    """One place of a ring.

    Args:
        place: index in the ring.
        segment: name of the memory that stands in it now.
        state: see `SlotState`.
        step: the step that is built, ready or failed here, None where the slot is free.
        placement: the use of the segment by the latest build, None before the first.
        content: what was committed.
    """

    place: int
    segment: str
    state: SlotState = SlotState.FREE
    step: int | None = None
    placement: Placement | None = None
    content: Any = None


class Ring:
    """P = len(segments) slots with their state changes; it knows nothing of consumers.

    leaving: slots that had no place in a smaller ring while a worker wrote into them, until that build ends.
    """

    __slots__ = ("leaving", "slots")

    def __init__(self, segments: list[str]) -> None:
        self.slots = [Slot(place, segment) for place, segment in enumerate(segments)]
        self.leaving: list[Slot] = []

    def of(self, step: int) -> Slot:
        """Return the slot of `step`, whatever stands in it now."""
        return self.slots[step % len(self.slots)]

    def state(self, step: int) -> SlotState:
        """Return the state of `step` itself: FREE where its slot holds another step or none."""
        slot = self.of(step)
        return slot.state if slot.step == step else SlotState.FREE

    def claim(self, step: int, placement: Placement) -> Slot:
        """Begin a build of `step`."""
        slot = self.slots[step % len(self.slots)]
        if slot.state is not SlotState.FREE:
            raise IntegrityError(f"step {step} was claimed while its slot {slot.place} is {slot.state}")
        slot.state, slot.step, slot.placement = SlotState.BUILDING, step, placement
        return slot

    def commit(self, step: int, content: Any) -> None:
        """End a build: the step can be read."""
        self._end_build(step, SlotState.READY, content)

    def fail(self, step: int, error: Any) -> None:
        """End a build: the step has an error."""
        self._end_build(step, SlotState.FAILED, error)

    def abort(self, step: int) -> None:
        """End a build of which nothing came."""
        self._end_build(step, SlotState.FREE, None)

    def free(self, step: int) -> None:
        """Free the slot of `step` if that step stands in it, READY or FAILED."""
        slot = self.of(step)
        if slot.step == step and slot.state in (SlotState.READY, SlotState.FAILED):
            slot.state, slot.step, slot.content = SlotState.FREE, None, None

    def is_building(self) -> bool:
        """Return whether a worker still writes into some slot."""
        return bool(self.leaving) or any(slot.state is SlotState.BUILDING for slot in self.slots)

    def missing_for(self, steps: range) -> int:
        """Return how many more segments `resize` to a ring for `steps` takes, at least 0."""
        return max(0, len(steps) - len(self.slots) + len(self._leaving_for(steps)))

    def resize(self, steps: range, segments: list[str]) -> list[str]:
        """Have one slot for each of `steps`; what stands there keeps its step and segment, everything else leaves.

        Args:
            steps: the window from now on, not empty.
            segments: those that the ring lacks, `missing_for(steps)` or more.

        Returns:
            The segments that are left over. Those under build are not among them; their slots are `leaving`.
        """
        leaving = self._leaving_for(steps)
        staying = {slot.step % len(steps): slot for slot in self.slots if slot.step is not None and slot.step in steps}
        idle = [slot.segment for slot in self.slots if slot not in staying.values() and slot not in leaving] + segments
        if len(staying) + len(idle) < len(steps):
            raise IntegrityError(f"{len(staying)} slots and {len(idle)} segments make no ring of {len(steps)}")
        self.leaving += leaving
        self.slots = [staying.get(place) or Slot(place, idle.pop(0)) for place in range(len(steps))]
        for place, slot in staying.items():
            slot.place = place
        return idle

    def _leaving_for(self, steps: range) -> list[Slot]:
        return [slot for slot in self.slots if slot.state is SlotState.BUILDING and slot.step not in steps]

    def _end_build(self, step: int, new: SlotState, content: Any) -> None:
        slot = self.slots[step % len(self.slots)]
        if slot.step != step or slot.state is not SlotState.BUILDING:
            raise IntegrityError(f"step {step} ended its build, and slot {slot.place} is {slot}")
        slot.state, slot.content = new, content
        if new is SlotState.FREE:
            slot.step = None
