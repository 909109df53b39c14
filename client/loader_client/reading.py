"""How a consumer gets a batch: it asks, waits, and finds the daemon again when that is gone.

Owns `Reading`. Invariant: whatever interrupts a wait, an exception, a cancelled task or a daemon that ends, the next
request gets what it asks for; a reopened consumer reads the same stream. Fails as `Consumer` does.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from loader_client.asking import HOLD_POLL_S, Asking
from loader_client.daemon_connection import DaemonConnection, OpenedStream, OpenOptions
from loader_service.contract.batch import Batch
from loader_service.contract.checks import checked_step
from loader_service.contract.fingerprint import explain_difference
from loader_service.errors import (
    BuildError,
    ConsumerClosedError,
    DeadlineError,
    ServiceClosedError,
    StreamChangedError,
)

__all__ = ["Reading"]


class Reading:
    """One open stream of one client, at the daemon of now. stop_step: nothing is asked for ahead from there on."""

    def __init__(
        self, gateway: DaemonConnection, plan: OpenOptions, start_step: int | None, stop_step: int | None, owner: object
    ) -> None:
        self._ended: str | None = "it was never opened"
        self.stream, self.shard, self.stop_step = plan.stream, plan.shard, stop_step
        self._gateway, self._plan, self._owner = gateway, plan, owner  # the client lives as long as its consumers
        self._lock = threading.RLock()
        self._cancelled = False
        self._turn: Any = None  # of tasks; made by the first
        self._adopt(gateway.open(plan, start_step, self))
        opened = self._opening.opened
        self.next_step, self.steps_per_epoch = opened.start_step, opened.steps_per_epoch
        self.fingerprint, self.description = opened.fingerprint, opened.description
        self._ended = None

    def _adopt(self, opening: OpenedStream) -> None:
        self._opening = opening
        self._asking = Asking(opening, self._gateway.session, self._plan)

    # --- one batch ---------------------------------------------------------------------------------------

    def get(self, step: int, timeout_s: float | None = None) -> Batch:
        """The batch at global step `step` >= 0 as read-only views; the next one is then step + 1.

        timeout_s: seconds to wait until it is built, None for ever. Raises BuildError where its build failed,
        HoldLimitError, DeadlineError (ask again), EvictedError, ServiceClosedError, ConsumerClosedError.
        """
        step, deadline = checked_step(step), _deadline(timeout_s)
        self._gateway.session.check_process()  # before the lock, which a thread of the parent may hold
        with self._lock:
            try:
                while True:
                    try:
                        batch = self._attempt(step)
                        if batch is not None:
                            return batch
                        self._rest(self._pause_s(step, deadline, timeout_s))
                        continue
                    except ServiceClosedError as error:
                        gone = error.message
                    self._come_back(step, deadline, gone, lambda: False)
            finally:
                self._asking.end_wait()

    async def aget(self, step: int, timeout_s: float | None = None) -> Batch:
        """`get` in an event loop, which goes on meanwhile. A task that is cancelled loses no batch: ask again.

        Tasks that ask one consumer take turns.
        """
        from loader_client.aio import turns

        step = checked_step(step)
        async with turns(self):
            return await self._aget(step, timeout_s)

    async def _aget(self, step: int, timeout_s: float | None) -> Batch:
        from loader_client.aio import aside, pause, readable

        deadline = _deadline(timeout_s)
        try:
            while True:
                try:
                    batch, busy = self._attempt_unless_busy(step)
                    if batch is not None:
                        return batch
                    pause_s = self._pause_s(step, deadline, timeout_s)
                    if busy or self._asking.at_limit:
                        await pause(min(pause_s, HOLD_POLL_S))
                    else:
                        await readable(self._opening.channel, pause_s)
                    continue
                except ServiceClosedError as error:
                    gone = error.message
                await aside(partial(self._come_back, step, deadline, gone))
        finally:
            self._asking.end_wait()

    # --- within ------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._ended is not None:
            raise ConsumerClosedError(f"this consumer of {self.stream!r} takes no more steps: {self._ended}")

    def _attempt_unless_busy(self, step: int) -> tuple[Batch | None, bool]:
        """`_attempt`, or that a thread is at it."""
        self._gateway.session.check_process()
        if not self._lock.acquire(blocking=False):
            return None, True
        try:
            return self._attempt(step), False
        finally:
            self._lock.release()

    def _rest(self, pause_s: float) -> None:
        """Until there may be something new. At the hold limit no message is waited for."""
        if self._asking.at_limit:
            time.sleep(pause_s)
        else:
            self._opening.channel.wait(pause_s)

    def _attempt(self, step: int) -> Batch | None:
        """The batch if it is here; else it has been asked for. Raises ServiceClosedError where the daemon is gone."""
        self._check_open()
        if self._gateway.generation != self._opening.generation:
            raise ServiceClosedError("the daemon that knew this consumer is gone")
        try:
            batch = self._asking.poll(step, following=step == self.next_step, stop=self.stop_step)
        except BuildError as error:
            self._end(f"it ended at step {error.step}, whose build failed")
            raise
        except ConsumerClosedError as error:  # of a daemon that took the place of the one that knew it
            raise ServiceClosedError(error.message) from error
        if batch is not None:
            self.next_step = step + 1
        return batch

    def _pause_s(self, step: int, deadline: float | None, timeout_s: float | None) -> float:
        """How long to wait for it now. Raises where that is over."""
        if self._cancelled:
            raise ConsumerClosedError(f"step {step} of {self.stream!r}: the consumer was closed while it waited")
        left_s = math.inf if deadline is None else deadline - time.monotonic()
        if left_s > 0:
            return min(left_s, self._asking.pause_s)
        if self._asking.at_limit:
            raise self._asking.limit_error(step)
        raise DeadlineError(
            f"step {step} of {self.stream!r}: no answer within {timeout_s} s; `loader-service status` tells whom the "
            "stream waits for"
        )

    def _come_back(self, step: int, deadline: float | None, gone: str, given_up: Callable[[], bool]) -> None:
        """Find the daemon again, and open the stream at `step`. Raises ServiceClosedError, StreamChangedError."""
        until = time.monotonic() + self._gateway.reconnect_s
        until = until if deadline is None else min(until, deadline)
        with self._lock:
            while True:
                self._check_open()
                try:
                    self._gateway.revive(self._opening.generation, until, gone, lambda: self._cancelled or given_up())
                    self._open_again(step)
                    return
                except ServiceClosedError as error:
                    gone = error.message
                if self._cancelled:
                    raise ConsumerClosedError(f"this consumer of {self.stream!r} was closed")
                if given_up() or self._gateway.closed or time.monotonic() >= until or not self._gateway.can_return():
                    raise ServiceClosedError(gone)

    def _open_again(self, step: int) -> None:
        """Open at `step`, and only then let go of what there was."""
        old, opening = self._asking, self._gateway.open(self._plan, step, self)
        self._adopt(opening)
        old.drop()
        self._ended = None
        if opening.opened.fingerprint != self.fingerprint:
            difference = explain_difference(opening.opened.description, self.description)
            self._end("its stream has changed")
            raise StreamChangedError(
                f"the daemon at {self._gateway.endpoint} now serves another stream as {self.stream!r} ({difference}); "
                f"open it anew if you mean to read that one from step {step} on"
            )

    def _end(self, why: str) -> None:
        self._ended = why
        self._asking.close()


def _deadline(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else time.monotonic() + timeout_s
