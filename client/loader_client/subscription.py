"""The requests and leases of one opened consumer, at one daemon.

Owns `Subscription`. Invariant: at most one run of steps is asked for, and `poll` never waits; an answer that is lost
between the socket and the caller (a Ctrl-C) is asked for again. A consumer that reads step by step asks once: the
daemon sends each step that follows as soon as it is built, so that it is here by the time it is wanted. Fails with what
the daemon answers, and with HoldLimitError.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from loader_client.batch import LeasedMemory, leased_batch
from loader_client.channel import LOOK_S
from loader_client.daemon_connection import OpenedStream, OpenOptions
from loader_client.leases import Lease, LeaseBook
from loader_client.sockets import is_shortage, require_descriptors
from loader_service.contract.batch import Batch
from loader_service.errors import HoldLimitError, IntegrityError, LoaderServiceError, SharedMemoryError
from loader_service.wire.messages import Close, Demand, Done, Get, Ready
from loader_service.wire.segment import Segment

__all__ = ["HOLD_POLL_S", "Subscription"]

_CLOSE_TIMEOUT_S = 2.0
_DEMAND_AFTER_S = 0.01
"""After so long, the daemon is told that a step is waited for; at once where other consumers hold this one up."""
_ASK_AGAIN_S = 10.0
"""After so long, a step is asked for again, in case that a message was lost."""
_WITHOUT_END = 2**62
_MAP_DESCRIPTORS = 2
"""Mapping a segment takes one for its file and one that mmap makes of it, until it is mapped."""
_COLLECT_AFTER_S = 0.1
"""After so long at the hold limit, garbage is collected once."""
HOLD_POLL_S = 0.002
"""A request at the hold limit looks so often whether a batch was dropped."""


@dataclass(slots=True)
class _Run:
    """The steps that are asked for under one request number.

    step: the next of them; left: how many there are; demanded: the daemon knows that the next one is waited for.
    """

    number: int
    step: int
    left: int
    demanded: bool


class Subscription:
    """Requests and leases of one opened consumer; not safe to call from several threads at once.

    prefetch: P, as the daemon last said it; hold: how many batches may be alive; at_limit: the last poll found so many
    alive, or one that is in the way of the step.
    """

    def __init__(self, opened: OpenedStream, book: LeaseBook, options: OpenOptions) -> None:
        self.prefetch, self.hold = opened.answer.prefetch, opened.answer.hold
        self.at_limit = False
        self._id, self._channel, self._owner_uid = opened.consumer_id, opened.channel, opened.owner_uid
        self._book, self._leases, self._options = book, opened.leases, options
        self._run: _Run | None = None
        self._lane_id: int | None = None
        self._blocked = False  # the last step could not be built for a while because of another consumer
        self._segments: dict[int, Segment] = {}
        self._waits_since: float | None = None
        self._asked_at = 0.0
        self._collected = False
        self._unmapped = ""

    @property
    def held_steps(self) -> list[int]:
        """The steps whose arrays are alive, ascending."""
        return sorted(lease.step for lease in list(self._leases.values()) if lease() is not None)

    @property
    def pause_s(self) -> float:
        """Seconds to wait, at most, before the next poll."""
        if self.at_limit:
            return HOLD_POLL_S
        return LOOK_S if self._run is None or self._run.demanded else _DEMAND_AFTER_S

    def poll(self, step: int, *, following: bool, stop: int | None) -> Batch | None:
        """Take the batch of a step if it is here; ask for it if that was not done.

        The wait for it lasts from the first poll to `end_wait`.

        Args:
            step: the global step.
            following: it is the one after the last that was taken, so that those after it are asked for too.
            stop: the step before which those end; None: never.

        Raises:
            HoldLimitError: what is held has kept the step from being taken for `hold_timeout_s` seconds.
            LoaderServiceError: what the daemon answered.
        """
        self.at_limit = bool(self._leases) and self._is_limited(step, following)
        if self.at_limit:
            return None
        run = self._run
        if run is None or run.step != step:
            run = self.ask(step, stop if following else step + 1, demanded=True)
        self._run = None  # until the batch is booked nothing is in flight: what interrupts that is asked for again
        ready = self._channel.take(run.number, Ready)
        if ready is None:
            self._run = run
            self._wait(run, stop if following else step + 1)
            return None
        if ready.step != step:  # the one before it was lost on the way: ask again
            return None
        self._blocked = ready.blocked
        batch = self._accept(ready)
        if batch is not None and run.left > 1:
            run.step, run.left, run.demanded = step + 1, run.left - 1, False
            self._run = run
        return batch

    def end_wait(self) -> None:
        """The caller has the batch, an error, or no patience; what is asked for stays in flight for its next poll."""
        self._waits_since, self._collected = None, False

    def ask(self, step: int, stop: int | None, *, demanded: bool) -> _Run:
        """Ask for the steps from `step` to before `stop` (None: without end), instead of what was asked for before.

        demanded: the caller waits for the first.
        """
        self._run = None
        holds, steps = self._book.holds(self._id), _WITHOUT_END if stop is None else max(1, stop - step)
        number = self._channel.send(lambda request: Get(request, self._id, step, steps, holds, demanded))
        self._run, self._asked_at = _Run(number, step, steps, demanded), monotonic()
        return self._run

    def jump(self) -> None:
        """The next step is not the one after the last.

        It gets a lane in which what is held is in nobody's way; the mappings of this one are dropped, because the
        daemon cannot give back memory that is mapped.
        """
        self._lane_id = None
        self._segments.clear()

    def limit_error(self, step: int) -> HoldLimitError:
        """The error to raise while `at_limit`."""
        return HoldLimitError(
            f"step {step} of {self._options.stream!r} has no slot: this consumer holds arrays of steps "
            f"{self.held_steps}; it may hold {self.hold} batches (hold), none of them {self.prefetch} steps behind, "
            f"for the ring has {self.prefetch} slots (prefetch). Drop each batch before you ask for the next (`with "
            "batch:` or batch.release()), keep batch.copy() of what must stay, or raise hold and prefetch"
        )

    def close(self) -> None:
        """Tell the daemon, which may be gone: then it has ended the consumer itself. Idempotent."""
        self._book.dismiss(self._id)  # whatever interrupts the rest
        holds = self._book.holds(self._id)
        with suppress(LoaderServiceError):
            self._channel.request(
                lambda request: Close(request, self._id, holds), Done, _CLOSE_TIMEOUT_S, "closing a consumer"
            )
        self._channel.close()
        self._segments.clear()

    def drop(self) -> None:
        """Close the consumer without waiting for an answer: another has taken its place."""
        self._book.dismiss(self._id)
        self._channel.close()

    # --- what keeps a step from coming -------------------------------------------------------------------

    def _is_limited(self, step: int, following: bool) -> bool:
        """True while what is held keeps `step` from being taken or built. Raises HoldLimitError after a while of it."""
        held = [lease for lease in list(self._leases.values()) if lease() is not None]
        in_the_way = following and any(
            lease.lane_id == self._lane_id and lease.step + self.prefetch <= step for lease in held
        )
        if len(held) < self.hold and not in_the_way:
            return False
        waited_s, timeout_s = self._waited_s(), self._options.hold_timeout_s
        if not self._collected and waited_s >= min(_COLLECT_AFTER_S, timeout_s):
            self._collected = True
            gc.collect()  # batches in reference cycles that nobody can reach are held by nobody
            return self._is_limited(step, following)
        if waited_s < timeout_s:
            return True
        raise self.limit_error(step)

    def _wait(self, run: _Run, stop: int | None) -> None:
        """The step has not come: tell the daemon that it is waited for, or ask again."""
        waited_s = self._waited_s()
        if min(waited_s, monotonic() - self._asked_at) >= _ASK_AGAIN_S:
            self.ask(run.step, stop, demanded=True)
        elif not run.demanded and (self._blocked or waited_s >= _DEMAND_AFTER_S):
            self._channel.post(Demand(self._id, run.step))
            run.demanded = True

    def _waited_s(self) -> float:
        now = monotonic()
        if self._waits_since is None:
            self._waits_since = now
        return now - self._waits_since

    # --- an answer ---------------------------------------------------------------------------------------

    def _accept(self, ready: Ready) -> Batch | None:
        """Book the lease and make the batch. None where its memory is gone, for the first time: then it is asked again.

        Raises SharedMemoryError and IntegrityError for the second time.
        """
        placement, segment = ready.placement, self._segments.get(ready.slot)
        try:
            if segment is None or segment.name != placement.segment or ready.lane != self._lane_id:
                segment = self._map(ready)
            if ready.prefetch != self.prefetch:
                self._resize(ready.prefetch)
            memory = LeasedMemory(segment, ready.nbytes)
            lease = Lease(memory, self._book.put)
            lease.consumer_id, lease.lease_id = self._id, ready.lease
            lease.lane_id, lease.step = ready.lane, ready.step
            for other in list(self._leases.values()) if self._leases else ():
                if other.lane_id == ready.lane and abs(other.step - ready.step) >= ready.prefetch:
                    other.lane_id = -1  # they cannot be in one window: there was a jump
            self._leases[ready.lease] = lease
            return leased_batch(ready, segment, memory, self._options.shard)
        except (SharedMemoryError, IntegrityError) as error:
            if is_shortage(error.__cause__):
                require_descriptors(_MAP_DESCRIPTORS)  # raises; where there are some again by now, it is asked again
                return None
            # What was sent ahead may be gone by now, with its daemon, by an eviction or a clean-up: ask, and it tells.
            self._segments.pop(ready.slot, None)
            if placement.segment == self._unmapped:
                raise
            self._unmapped = placement.segment
            return None

    def _map(self, ready: Ready) -> Segment:
        """Map the segment that stands in a slot, and drop the mappings of another lane."""
        if ready.lane != self._lane_id:
            self._lane_id = ready.lane
            self._segments.clear()
        segment = self._segments.get(ready.slot)
        if segment is None or segment.name != ready.placement.segment:
            segment = self._segments[ready.slot] = Segment.open(ready.placement.segment, self._owner_uid)
        return segment

    def _resize(self, prefetch: int) -> None:
        """The rings have another number of slots now."""
        self.prefetch = prefetch
        self._segments = {slot: one for slot, one in self._segments.items() if slot < prefetch}
