"""How long a lane waits for a consumer that falls behind, and how much a consumer may keep.

Owns `Pace` and `ConsumerOptions`. Invariant: a debt is never negative; it needs no clock, only how much time has
passed in which
state. Fails with ArgumentError.

    debt of a consumer, seconds:  +1 a second while another member of its lane waits for it
                                  -1/4 a second while nobody in its lane waits for anybody
    it is overdue when its debt reaches patience_s

So a consumer that stands still is overdue after patience_s, one that makes the others wait half of the time a little
later, and one that is late now and then never.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from loader_service.errors import ArgumentError

__all__ = ["DEFAULT_HOLD", "Pace", "ConsumerOptions", "debt_after", "seconds_until"]

DEFAULT_HOLD = 2
"""One batch in use while the next is taken."""
_FORGIVEN = 0.25
_MAX_PATIENCE_S = 1e6


@dataclass(frozen=True, slots=True)
class Pace:
    """What happens when this consumer holds the others of its lane up.

    policy: "wait", the lane waits for it (lockstep); "split", after patience_s >= 0, in seconds, it gets a lane of its
    own. Raises ArgumentError.
    """

    policy: str = "split"
    patience_s: float = 1.0

    def __post_init__(self) -> None:
        if self.policy not in ("split", "wait"):
            raise ArgumentError(f"pace is {self.policy!r}; it must be 'split' or 'wait'")
        if not 0 <= self.patience_s <= _MAX_PATIENCE_S:
            raise ArgumentError(f"patience_s is {self.patience_s}; it must lie in [0, {_MAX_PATIENCE_S:.0f}] seconds")

    @property
    def waits(self) -> bool:
        return self.policy == "wait"

    @property
    def limit_s(self) -> float:
        """The debt from which on it leaves its lane; infinite where the lane waits for it."""
        return math.inf if self.waits else self.patience_s


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """How a consumer takes part. hold: batches that it may keep unreleased at once, None for two or what fits."""

    pace: Pace = field(default_factory=Pace)
    hold: int | None = None

    def hold_in(self, prefetch: int) -> int:
        """The hold in a ring of `prefetch` slots, which must be larger than a hold that was asked for.

        >>> ConsumerOptions().hold_in(8), ConsumerOptions().hold_in(1), ConsumerOptions(hold=7).hold_in(8)
        (2, 1, 7)
        """
        if self.hold is None:
            return min(DEFAULT_HOLD, prefetch)
        if not 1 <= self.hold < prefetch:
            raise ArgumentError(
                f"hold is {self.hold} and prefetch {prefetch}; a consumer may hold at least 1 batch, and the ring must "
                "have one slot more, in which the next is built: lower hold, or raise prefetch"
            )
        return self.hold


def debt_after(debt_s: float, elapsed_s: float, *, blamed: bool, someone_waits: bool) -> float:
    """The debt of a consumer after `elapsed_s` seconds in one state of its lane.

    >>> debt_after(0.5, 1.0, blamed=True, someone_waits=True), debt_after(0.5, 1.0, blamed=False, someone_waits=False)
    (1.5, 0.25)
    """
    if blamed:
        return debt_s + elapsed_s
    return debt_s if someone_waits else max(0.0, debt_s - _FORGIVEN * elapsed_s)


def seconds_until(debt_s: float, limit_s: float) -> float:
    """How long a consumer that is blamed all the time may go on, at least 0."""
    return max(0.0, limit_s - debt_s)
