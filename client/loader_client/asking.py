"""One consumer at one daemon: what it has asked for, and what it holds.

Owns `Asking`. Invariant: at most one run of steps is asked for, and `poll` never waits; an answer that is lost between
the socket and the caller (a Ctrl-C) is asked for again. Whoever reads step by step asks once: the daemon sends word of
each step that follows, so that it is here by the time it is wanted. Fails with what the daemon answers, and with
HoldLimitError.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

from loader_client.batch import LeasedMemory, leased_batch
from loader_client.channel import LOOK_S
from loader_client.daemon_connection import OpenedStream, OpenOptions
from loader_client.session import Session
from loader_service.contract.batch import Batch
from loader_service.errors import HoldLimitError, IntegrityError, LoaderServiceError, SharedMemoryError
from loader_service.wire.messages import Close, Demand, Done, Get, Ready
from loader_service.wire.segment import Segment

__all__ = ["HOLD_POLL_S", "Asking"]

_CLOSE_TIMEOUT_S = 2.0
_DEMAND_AFTER_S = 0.01
"""So long a step may take before the daemon is told that it is waited for."""
_ASK_AGAIN_S = 10.0
"""So long, and it is asked for again, in case that a message was lost."""
_FOR_EVER = 2**62
HOLD_POLL_S = 0.002
"""How often a request at the hold limit looks whether a batch was dropped."""


@dataclass(slots=True)
class _Run:
    """What is asked for under one request number: the next of its steps, how many there are, whether it is demanded."""

    number: int
    step: int
    left: int
    demanded: bool


class Asking:
    """Requests and leases of one opened consumer; not safe to call from several threads at once.

    prefetch: P, as the daemon last said it; hold: how many batches may be alive; at_limit: the last poll found them so.
    """

    def __init__(self, opening: OpenedStream, session: Session, plan: OpenOptions) -> None:
        self.prefetch, self.hold = opening.opened.prefetch, opening.opened.hold
        self.at_limit = False
        self._number, self._channel, self._owner = opening.number, opening.channel, opening.owner
        self._session, self._plan = session, plan
        self._run: _Run | None = None
        self._lane: int | None = None
        self._segments: dict[int, Segment] = {}
        self._waits_since: float | None = None
        self._asked_at = 0.0
        self._unmapped = ""

    @property
    def held_steps(self) -> list[int]:
        """The steps whose arrays are alive, ascending."""
        return sorted(lease.step for lease in self._session.held(self._number).values())

    @property
    def pause_s(self) -> float:
        """How long to wait, at most, before the next poll."""
        if self.at_limit:
            return HOLD_POLL_S
        return LOOK_S if self._run is None or self._run.demanded else _DEMAND_AFTER_S

    def poll(self, step: int, *, following: bool, stop: int | None) -> Batch | None:
        """The batch of `step` if it is here; else it has been asked for. Raises ForkedClientError too.

        following: it is the one after the last that was taken, so that those after it are asked for too, before `stop`.
        The wait lasts from the first poll to `end_wait`.
        """
        self._session.check_process()  # what has been sent ahead is the parent's
        now = time.monotonic()
        since = self._waits_since = now if self._waits_since is None else self._waits_since
        if self._limited(step, following, now - since):
            return None
        unanswered_s = now - max(since, self._asked_at)
        if self._run is None or self._run.step != step or unanswered_s >= _ASK_AGAIN_S:
            self.ask(step, stop if following else step + 1, demanded=True)
        batch = self._take()
        if batch is None:
            self._demand(now - since)
        return batch

    def end_wait(self) -> None:
        """Whoever polled has the batch, an error, or no patience; what is asked for stays in flight for the next."""
        self._waits_since = None

    def ask(self, step: int, stop: int | None, *, demanded: bool) -> None:
        """Ask for the steps from `step` to before `stop` (None: without end), instead of what was asked for before.

        demanded: somebody waits for the first.
        """
        self._run = None
        holds, steps = self._session.holds(self._number), _FOR_EVER if stop is None else max(1, stop - step)
        number = self._channel.send(lambda request: Get(request, self._number, step, steps, holds, demanded))
        self._run, self._asked_at = _Run(number, step, steps, demanded), time.monotonic()

    def jump(self) -> None:
        """The next step is not the one after the last: it gets a lane in which what is held is in nobody's way."""
        self._lane = None

    def limit_error(self, step: int) -> HoldLimitError:
        """What is wrong while `at_limit`."""
        return HoldLimitError(
            f"step {step} of {self._plan.stream!r} has no slot: this consumer holds arrays of steps {self.held_steps}; "
            f"it may hold {self.hold} batches (hold), none of them {self.prefetch} steps behind, for the ring has "
            f"{self.prefetch} slots (prefetch). Drop each batch before you ask for the next (`with batch:` or "
            "batch.release()), keep batch.copy() of what must stay, or raise hold and prefetch"
        )

    def close(self) -> None:
        """Tell the daemon, which may be gone: then it has ended the consumer itself. Idempotent."""
        self._session.dismiss(self._number)  # whatever interrupts the rest
        holds = self._session.holds(self._number)
        with suppress(LoaderServiceError):
            self._channel.request(
                lambda request: Close(request, self._number, holds), Done, _CLOSE_TIMEOUT_S, "closing a consumer"
            )
        self._channel.close()
        self._segments.clear()

    def drop(self) -> None:
        """Close the consumer without waiting for an answer: another has taken its place."""
        self._session.dismiss(self._number)
        self._channel.close()

    def _limited(self, step: int, following: bool, waited_s: float) -> bool:
        """Whether what is held keeps `step` from being taken or built. Raises HoldLimitError after a while of it."""
        held = self._session.held(self._number).values()
        too_many = len(held) >= self.hold
        in_the_way = following and any(one.lane == self._lane and one.step + self.prefetch <= step for one in held)
        self.at_limit = too_many or in_the_way
        if self.at_limit and waited_s >= self._plan.hold_timeout_s:
            raise self.limit_error(step)
        return self.at_limit

    def _take(self) -> Batch | None:
        """The answer, if it is here. Until it is booked nothing is in flight: what interrupts it is asked again."""
        run, self._run = self._run, None
        assert run is not None  # it has been asked for
        reply = self._channel.take(run.number, Ready)
        if reply is None:
            self._run = run
            return None
        if reply.step != run.step:  # the one before it was lost on the way: ask again
            return None
        try:
            batch = self._batch(reply)
        except (SharedMemoryError, IntegrityError):
            # What was sent ahead may be gone by now, with its daemon, by an eviction or a clean-up: ask, and it tells.
            self._segments.pop(reply.slot, None)
            if reply.placement.segment == self._unmapped:
                raise
            self._unmapped = reply.placement.segment
            return None
        if run.left > 1:
            self._run = _Run(run.number, run.step + 1, run.left - 1, demanded=False)
        return batch

    def _demand(self, waited_s: float) -> None:
        run = self._run
        if run is not None and not run.demanded and waited_s >= _DEMAND_AFTER_S:
            self._channel.post(Demand(self._number, run.step))
            run.demanded = True

    def _batch(self, ready: Ready) -> Batch:
        segment = self._segment(ready.slot, ready.placement.segment)
        memory = LeasedMemory(segment, ready.nbytes)
        self._leave_behind(ready)
        self._session.keep(ready.lease, memory, self._number, ready.lane, ready.step)
        self._lane = ready.lane
        if ready.prefetch != self.prefetch:
            self.prefetch = ready.prefetch
            self._segments = {slot: one for slot, one in self._segments.items() if slot < ready.prefetch}
        return leased_batch(ready, segment, memory, self._plan.shard)

    def _leave_behind(self, ready: Ready) -> None:
        """What is held at a step that cannot be in one window with this one is in its way no more: there was a jump."""
        for lease in self._session.held(self._number).values():
            if lease.lane == ready.lane and abs(lease.step - ready.step) >= ready.prefetch:
                lease.lane = -1

    def _segment(self, slot: int, name: str) -> Segment:
        """The mapping of a slot, kept until another segment stands there."""
        known = self._segments.get(slot)
        if known is None or known.name != name:
            known = self._segments[slot] = Segment.open(name, self._owner)
        return known
