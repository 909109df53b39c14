"""One consumer of a stream: how it takes part, where it is, and what it is answered.

Owns `Consumer`, the one record that the daemon keeps of a consumer, its options, and the answers `Grant` and `Failure`.
Invariant: a consumer waits for at most one step at a time, and is in at most one lane. Fails with ArgumentError, for
options that no ring allows.

    cursor = min(its position, the steps that it has leased since it joined its lane)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from loader_service.errors import ArgumentError
from loader_service.sharing.placement import Placement

__all__ = ["DEFAULT_MAX_LEASES", "Answer", "Consumer", "ConsumerOptions", "Failure", "Grant", "SlowConsumerPolicy"]

DEFAULT_MAX_LEASES = 2
"""One batch in use while the next is taken."""
_MAX_PATIENCE_S = 1e6


@dataclass(frozen=True, slots=True)
class SlowConsumerPolicy:
    """Rule for a consumer that others of its lane have to wait for (the public options `pace` and `patience_s`).

    Args:
        name: "wait", the lane waits for it, which is lockstep; "split", it gets a lane of its own.
        patience_s: seconds in [0, 10^6] that others wait for it before it is split off.

    Raises:
        ArgumentError: another name, or a patience out of its range.
    """

    name: str = "split"
    patience_s: float = 1.0

    def __post_init__(self) -> None:
        if self.name not in ("split", "wait"):
            raise ArgumentError(f"pace is {self.name!r}; it must be 'split' or 'wait'")
        if not 0 <= self.patience_s <= _MAX_PATIENCE_S:
            raise ArgumentError(f"patience_s is {self.patience_s}; it must lie in [0, {_MAX_PATIENCE_S:.0f}] seconds")

    @property
    def waits(self) -> bool:
        return self.name == "wait"

    @property
    def limit_s(self) -> float:
        """Seconds of `blocked_others_s` at which the consumer leaves its lane; infinite where the lane waits for it."""
        return math.inf if self.waits else self.patience_s


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """Options of one consumer.

    Args:
        policy: what happens when it falls behind.
        max_leases: batches that it may keep unreleased at once (the public option `hold`); None for 2, or what fits.
    """

    policy: SlowConsumerPolicy = field(default_factory=SlowConsumerPolicy)
    max_leases: int | None = None

    def max_leases_in(self, prefetch: int) -> int:
        """Return how many batches it may keep in a ring of `prefetch` slots.

        Raises:
            ArgumentError: a number was asked for that leaves no slot for the next build.

        >>> [ConsumerOptions(max_leases=n).max_leases_in(prefetch) for n, prefetch in ((None, 8), (None, 1), (7, 8))]
        [2, 1, 7]
        """
        if self.max_leases is None:
            return min(DEFAULT_MAX_LEASES, prefetch)
        if not 1 <= self.max_leases < prefetch:
            raise ArgumentError(
                f"hold is {self.max_leases} and prefetch {prefetch}; a consumer may hold at least 1 batch, and the "
                "ring must have one slot more, in which the next is built: lower hold, or raise prefetch"
            )
        return self.max_leases


@dataclass(frozen=True, slots=True)
class Grant:
    """Leave to read one step, until the lease is released or the consumer's client is gone.

    Args:
        lease_id: number of the lease, unique in the daemon.
        lane_id: the lane whose ring the batch stands in.
        step: the global step.
        slot: its place in the ring, step mod prefetch.
        placement: the segment, and which use of it.
        content: what the build was committed with.
        blocked: the step could not be built for a while because of another consumer. Whoever gets this tells at once
            when it waits for its next step, so that short waits count too.
    """

    lease_id: int
    lane_id: int
    step: int
    slot: int
    placement: Placement
    content: Any
    blocked: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """Error instead of a step; the consumer may ask for another step.

    Args:
        step: the global step that it waited for.
        error: what the build failed with, or a LoaderServiceError where the step cannot be had.
    """

    step: int
    error: Any


Answer = Grant | Failure


@dataclass(slots=True, eq=False)
class Consumer:
    """State of one consumer, from its opening until it is closed and has released all.

    Args:
        consumer_id: its number in the daemon.
        position: the step that it takes next.
        options: as given when it was opened.
        max_leases: the limit that follows from them.
        lane_id: the lane that it is in; None after a split until it asks again, and once it is closed or evicted.
        wanted: the step that it waits for, None where it waits for none.
        demanded: it cannot go on without that step; otherwise it has asked ahead.
        demanded_step: the step without which it last said that it cannot go on, which may come before it is asked for.
        blocked: the step that it waits for cannot be built before another consumer releases something.
        run_left: answers that it has asked for beyond the step that it waits for.
        asked_until: nothing is built for it from this step on.
        leases: lease id -> segment, all that it holds.
        held_steps: lease id -> step, of those taken in the lane that it is in: they keep the lane's base.
        blocked_others_s: seconds that others waited for it, less what it was forgiven; see `sharing.fairness`.
        split: it left its lane because others waited for it.
        closed: it takes no more steps.
        evicted: why it was put out, empty where it was not.
    """

    consumer_id: int
    position: int
    options: ConsumerOptions
    max_leases: int = 1
    lane_id: int | None = None
    wanted: int | None = None
    demanded: bool = False
    demanded_step: int = -1
    blocked: bool = False
    run_left: int = 0
    asked_until: int = 0
    leases: dict[int, str] = field(default_factory=dict)
    held_steps: dict[int, int] = field(default_factory=dict)
    blocked_others_s: float = 0.0
    split: bool = False
    closed: bool = False
    evicted: str = ""

    @property
    def cursor(self) -> int:
        """The oldest step that it has not released: its lease on everything from there on."""
        return min([self.position, *self.held_steps.values()])

    @property
    def least_prefetch(self) -> int:
        """The smallest ring that keeps what it was promised: one slot more than the leases that it asked for."""
        return self.max_leases if self.options.max_leases is None else self.max_leases + 1

    @property
    def goes_on(self) -> bool:
        """Return whether the next step of its run is to be asked for: it may have one batch more than it may keep."""
        return self.run_left > 0 and self.wanted is None and len(self.leases) <= self.max_leases

    def end_run(self) -> None:
        """Forget what it has asked for beyond the steps that it has got."""
        self.wanted, self.demanded, self.run_left, self.asked_until = None, False, 0, self.position
