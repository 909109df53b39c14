"""A consumer: one open stream of one client.

Owns `Consumer`. Invariant: it yields exactly the batches of the contract, each at the step asked for, and never
one whose memory could still change. Fails with BuildError at the step that failed (which ends the stream),
HoldLimitError, DeadlineError, ServiceClosedError, ConsumerClosedError.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from loader_client.batch import LeasedMemory, leased_batch
from loader_client.channel import Channel
from loader_client.session import Session
from loader_service.core.batch import Batch
from loader_service.core.steps import checked_step
from loader_service.errors import BuildError, ConsumerClosedError, HoldLimitError, LoaderServiceError
from loader_service.wire.protocol import Close, Done, Get, Opened, Ready
from loader_service.wire.segment import Segment

__all__ = ["Consumer", "Link", "Span"]

_CLOSE_TIMEOUT_S = 2.0
_HOLD_POLL_S = 0.002


@dataclass(frozen=True, slots=True)
class Span:
    """What a consumer reads: the stream's name, its first step and the step before which it ends (None: never).

    hold_timeout_s: how long to wait for a lease to end at the hold limit.
    """

    stream: str
    start_step: int
    stop_step: int | None
    hold_timeout_s: float


@dataclass(frozen=True, slots=True)
class Link:
    """What a consumer needs of its client: `owner` lives as long as the consumer does."""

    owner: object
    session: Session
    daemon_pidfd: int | None


class Consumer:
    """Batches of one stream, in step order or at any step.

    Iterating gives next_step, next_step + 1, … until stop_step; `get` gives any step. Safe to call from several
    threads, one request at a time. Close it (or use `with`): others on its lane wait for its position.
    """

    def __init__(self, link: Link, number: int, opened: Opened, span: Span) -> None:
        self.stream, self.next_step, self.stop_step = span.stream, span.start_step, span.stop_step
        self.prefetch, self.steps_per_epoch = opened.prefetch, opened.steps_per_epoch
        self.fingerprint = opened.fingerprint
        self._hold_timeout_s = span.hold_timeout_s
        self._link, self._session, self._number = link, link.session, number
        self._channel = Channel(link.session, link.daemon_pidfd)
        self._lock = threading.RLock()
        self._lane: int | None = None
        self._segments: dict[int, Segment] = {}
        self._ended: str | None = None
        link.session.enlist(number, self)

    def __repr__(self) -> str:
        state = self._ended or f"next step {self.next_step}"
        return f"Consumer({self.stream!r}, {state}, holds {self.held_steps})"

    @property
    def held_steps(self) -> list[int]:
        """The steps whose arrays are alive, ascending."""
        return sorted(lease.step for lease in self._session.held(self._number).values())

    @property
    def closed(self) -> bool:
        return self._ended is not None

    def get(self, step: int, timeout_s: float | None = None) -> Batch:
        """The batch at global step `step` >= 0 as read-only views; the next one is then step + 1.

        timeout_s: seconds to wait until it is built, None for ever. Raises BuildError where its build failed,
        HoldLimitError, DeadlineError (ask again), ServiceClosedError, ConsumerClosedError.
        """
        step = checked_step(step)
        with self._lock:
            self._check_open()
            self._await_hold(step)
            try:
                return self._batch(self._ask(step, timeout_s))
            except BuildError as error:
                self._end(f"it ended at step {error.step}, whose build failed")
                raise

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """The batch of `next_step`; at stop_step the consumer closes itself and iteration ends."""
        with self._lock:
            if self.stop_step is not None and self.next_step >= self.stop_step:
                self.close()
                raise StopIteration
            return self.get(self.next_step)

    def close(self) -> None:
        """Leave the stream; a `get` that waits in another thread raises ConsumerClosedError. Idempotent.

        Arrays that are alive stay valid, and keep their memory, until they die.
        """
        self._channel.cancelled = True
        with self._lock:
            self._channel.cancelled = False
            if self._ended is None:
                self._end("it was closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_ended", "never opened") is None:
            self._channel.close()  # the session tells the daemon
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)

    def _check_open(self) -> None:
        if self._ended is not None:
            raise ConsumerClosedError(f"this consumer of {self.stream!r} takes no more steps: {self._ended}")

    def _blocking(self, step: int) -> list[int]:
        """The held steps that keep `step` from being built, or from being taken: they fill the ring."""
        held = self._session.held(self._number).values()
        if len(held) >= self.prefetch:
            return sorted(one.step for one in held)
        if step != self.next_step:
            return []
        return sorted(one.step for one in held if one.lane == self._lane and one.step + self.prefetch <= step)

    def _await_hold(self, step: int) -> None:
        deadline = time.monotonic() + self._hold_timeout_s
        while (blocking := self._blocking(step)) and not self._channel.cancelled:
            if time.monotonic() >= deadline:
                raise HoldLimitError(
                    f"step {step} of {self.stream!r} has no slot: this consumer holds arrays of steps {blocking} "
                    f"and the ring has {self.prefetch} slots (prefetch); drop each batch before you ask for the "
                    "next (`with batch:` or batch.release()), keep batch.copy() of what must stay, or raise "
                    "prefetch"
                )
            time.sleep(_HOLD_POLL_S)

    def _ask(self, step: int, timeout_s: float | None) -> Ready:
        holds = list(self._session.held(self._number))
        return self._channel.request(
            lambda request: Get(request, self._number, step, holds), Ready, timeout_s, f"step {step} of {self.stream!r}"
        )

    def _batch(self, ready: Ready) -> Batch:
        """The answer as a batch. An answer that is lost on the way here is put right by what the next request holds."""
        segment = self._segment(ready.slot, ready.segment)
        memory = LeasedMemory(segment, ready.nbytes)
        self._session.keep(ready.lease, memory, self._number, ready.lane, ready.step)
        self._lane, self.next_step = ready.lane, ready.step + 1
        return leased_batch(ready, segment, memory)

    def _segment(self, slot: int, name: str) -> Segment:
        """The mapping of a slot, kept until another segment stands there."""
        known = self._segments.get(slot)
        if known is None or known.name != name:
            known = self._segments[slot] = Segment.open(name)
        return known

    def _end(self, why: str) -> None:
        """Tell the daemon, which may be gone: then it has ended the consumer itself."""
        self._ended = why
        self._session.consumers.pop(self._number, None)
        holds = list(self._session.held(self._number))
        with suppress(LoaderServiceError):
            self._channel.request(
                lambda request: Close(request, self._number, holds), Done, _CLOSE_TIMEOUT_S, f"closing {self.stream!r}"
            )
        self._channel.close()
        self._segments.clear()
