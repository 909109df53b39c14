"""A consumer as the lanes know it, and what it is answered.

Owns `Consumer`, `Grant` and `Failure`: plain values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from loader_service.sharing.lane import Lane
from loader_service.sharing.pace import ConsumerOptions
from loader_service.sharing.placement import Placement

__all__ = ["Answer", "Consumer", "Failure", "Grant"]


@dataclass(frozen=True, slots=True)
class Grant:
    """Leave to read one step, until the lease is released or the consumer's client is gone."""

    lease_id: int
    lane_id: int
    step: int
    slot: int
    placement: Placement
    content: Any


@dataclass(frozen=True, slots=True)
class Failure:
    """The build of this step failed; the consumer may ask for another step."""

    step: int
    error: Any


Answer = Grant | Failure


@dataclass(slots=True)
class Consumer:
    """position: the step that it takes next; lane: None after a split, until it asks again; leases: lease -> segment.

    hold: as `terms` were understood when it was opened; debt_s: while it is out of a lane; split: it left its lane
    because it was overdue; evicted: why, else empty.
    """

    position: int
    terms: ConsumerOptions
    hold: int = 1
    lane: Lane | None = None
    debt_s: float = 0.0
    split: bool = False
    closed: bool = False
    evicted: str = ""
    leases: dict[int, str] = field(default_factory=dict)

    @property
    def least_prefetch(self) -> int:
        """The smallest ring that keeps what it was promised: one slot more than a hold that it asked for."""
        return self.hold if self.terms.hold is None else self.hold + 1
