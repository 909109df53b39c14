"""The ring: P places, and what stands in each (R6).

Owns `Slot`, `SlotState` and `Ring`. Invariant: the slot of step g is g mod P, and a slot changes state only along
the arrows below; any other change is an IntegrityError, for it would be a bug of ours.

    FREE -claim-> BUILDING -commit-> READY  -free-> FREE
                  BUILDING -fail---> FAILED -free-> FREE
                  BUILDING -abort--> FREE              (the worker died, or nobody wants the step any more)
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


@dataclass(slots=True)
class Slot:
    """One place of a ring.

    Args:
        segment: name of the memory that stands in it now.
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
    """P = len(segments) slots with their state changes; it knows nothing of consumers."""

    __slots__ = ("slots",)

    def __init__(self, segments: list[str]) -> None:
        self.slots = [Slot(place, segment) for place, segment in enumerate(segments)]

    @classmethod
    def of_slots(cls, size: int, standing: list[Slot], segments: list[str]) -> Ring:
        """A ring of `size` slots; the steps of `standing` keep their segments, `segments` stand in the others."""
        places = {slot.step % size: slot for slot in standing if slot.step is not None}
        if not len(places) == len(standing) == size - len(segments):
            raise IntegrityError(f"{len(standing)} slots and {len(segments)} segments make no ring of {size}")
        spare = iter(segments)
        ring = cls([places[place].segment if place in places else next(spare) for place in range(size)])
        for place, slot in places.items():
            slot.place = place
            ring.slots[place] = slot
        return ring

    def of(self, step: int) -> Slot:
        """The place of `step`, whatever stands in it now."""
        return self.slots[step % len(self.slots)]

    def state(self, step: int) -> SlotState:
        """The state of `step` itself: FREE where its place holds another step or none."""
        slot = self.of(step)
        return slot.state if slot.step == step else SlotState.FREE

    def claim(self, step: int, placement: Placement) -> Slot:
        slot = self.of(step)
        if slot.state is not SlotState.FREE:
            raise IntegrityError(f"step {step} was claimed while its slot {slot.place} is {slot.state}")
        slot.state, slot.step, slot.placement = SlotState.BUILDING, step, placement
        return slot

    def commit(self, step: int, content: Any) -> None:
        self._leave(step, SlotState.BUILDING, SlotState.READY, content)

    def fail(self, step: int, error: Any) -> None:
        self._leave(step, SlotState.BUILDING, SlotState.FAILED, error)

    def abort(self, step: int) -> None:
        self._leave(step, SlotState.BUILDING, SlotState.FREE, None)

    def free(self, step: int) -> None:
        """Free the slot of `step` if that step stands in it, READY or FAILED."""
        slot = self.of(step)
        if slot.step == step and slot.state in (SlotState.READY, SlotState.FAILED):
            slot.state, slot.step, slot.content = SlotState.FREE, None, None

    def building(self) -> bool:
        """Whether a worker still writes into some slot."""
        return any(slot.state is SlotState.BUILDING for slot in self.slots)

    def _leave(self, step: int, old: SlotState, new: SlotState, content: Any) -> None:
        slot = self.of(step)
        if slot.step != step or slot.state is not old:
            raise IntegrityError(f"step {step} ended its build, and slot {slot.place} is {slot}")
        slot.state, slot.content = new, content
        if new is SlotState.FREE:
            slot.step = None
