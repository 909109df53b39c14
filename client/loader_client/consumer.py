"""A consumer: one open stream of one client.

Owns `Consumer`. Invariant: it yields exactly the batches of the contract, each at the step asked for, and never
one whose memory could still change. Fails with BuildError at the step that failed (which ends the stream),
HoldLimitError, DeadlineError, EvictedError, StreamChangedError, ServiceClosedError, ConsumerClosedError.
"""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self

from loader_client.asking import Asking
from loader_client.gateway import Gateway, Opening, Plan
from loader_service.core.batch import Batch
from loader_service.core.difference import explain_difference
from loader_service.core.steps import checked_step
from loader_service.errors import (
    ArgumentError,
    BuildError,
    ConsumerClosedError,
    DeadlineError,
    ServiceClosedError,
    StreamChangedError,
)

__all__ = ["Consumer"]


class Consumer:
    """Batches of one stream, in step order or at any step; `Client.open` makes it.

    Iterating gives next_step, next_step + 1, … until stop_step, with `for` and with `async for`; `get` and `aget` give
    any step. Safe to call from several threads, one request at a time. Close it (or use `with`): others on its lane
    wait for its position. A daemon that is restarted is found again, and the consumer goes on at its step.
    """

    def __init__(
        self, gateway: Gateway, plan: Plan, start_step: int | None, stop_step: int | None, owner: object
    ) -> None:
        self._ended: str | None = "it was never opened"
        self.stream, self.shard, self.stop_step = plan.stream, plan.shard, stop_step
        self._gateway, self._plan, self._owner = gateway, plan, owner  # the client lives as long as its consumers
        self._lock = threading.RLock()
        self._cancelled = False
        self._adopt(gateway.open(plan, start_step))
        opened = self._opening.opened
        self.next_step, self.steps_per_epoch = opened.start_step, opened.steps_per_epoch
        self.fingerprint, self.description = opened.fingerprint, opened.description
        self._ended = None

    def _adopt(self, opening: Opening) -> None:
        self._opening = opening
        self._asking = Asking(opening, self._gateway.session, self._plan)
        self._gateway.session.enlist(opening.number, self)

    def __repr__(self) -> str:
        state = self._ended or f"next step {self.next_step}"
        return f"Consumer({self.stream!r}, {state}, holds {self.held_steps})"

    @property
    def held_steps(self) -> list[int]:
        """The steps whose arrays are alive, ascending."""
        return self._asking.held_steps

    @property
    def prefetch(self) -> int:
        """P, the slots of the ring, as the daemon last said it."""
        return self._asking.prefetch

    @property
    def hold(self) -> int:
        """How many batches may be alive at once."""
        return self._asking.hold

    @property
    def closed(self) -> bool:
        return self._ended is not None

    # --- batches -----------------------------------------------------------------------------------------

    def get(self, step: int, timeout_s: float | None = None) -> Batch:
        """The batch at global step `step` >= 0 as read-only views; the next one is then step + 1.

        timeout_s: seconds to wait until it is built, None for ever. Raises BuildError where its build failed,
        HoldLimitError, DeadlineError (ask again), EvictedError, ServiceClosedError, ConsumerClosedError.
        """
        step, deadline = checked_step(step), _deadline(timeout_s)
        with self._lock:
            while True:
                try:
                    batch = self._attempt(step)
                    if batch is not None:
                        return batch
                    self._opening.channel.wait(self._pause_s(step, deadline, timeout_s))
                    continue
                except ServiceClosedError as error:
                    gone = error.message
                self._come_back(step, deadline, gone)

    async def aget(self, step: int, timeout_s: float | None = None) -> Batch:
        """`get` in an event loop, which goes on meanwhile. A task that is cancelled loses no batch: ask again."""
        from loader_client.aio import aside, readable

        step, deadline = checked_step(step), _deadline(timeout_s)
        while True:
            try:
                with self._lock:
                    batch = self._attempt(step)
                if batch is not None:
                    return batch
                await readable(self._opening.channel, self._pause_s(step, deadline, timeout_s))
                continue
            except ServiceClosedError as error:
                gone = error.message
            await aside(partial(self._come_back, step, deadline, gone))

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """The batch of `next_step`; at stop_step the consumer closes itself and iteration ends."""
        with self._lock:
            if self._at_stop():
                raise StopIteration
            return self.get(self.next_step)

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self

    async def __anext__(self) -> Batch:
        if self._at_stop():
            raise StopAsyncIteration
        return await self.aget(self.next_step)

    # --- places ------------------------------------------------------------------------------------------

    def seek(self, step: int) -> None:
        """Go on at `step`: the next batch of an iteration is that one. Its lane is changed at once, if need be."""
        step = checked_step(step)
        with self._lock:
            self._check_open()
            self.next_step = step
            if self.stop_step is None or step < self.stop_step:
                self._asking.ask(step, self.stop_step, demanded=False)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: the step, the fingerprint, and what the fingerprint is made of. Plain values."""
        return {"step": self.next_step, "fingerprint": self.fingerprint, "description": self.description}

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Go on where `state_dict` was taken, in whatever process, with whatever workers, prefetch and world size.

        Raises StreamChangedError, which says what differs, where the stream is another, unless `strict` is false;
        ArgumentError where `state` is no such state.
        """
        if not isinstance(state, Mapping) or "step" not in state:
            raise ArgumentError("the state has no step; give what state_dict() returned")
        step = checked_step(state["step"])
        if strict and state.get("fingerprint") != self.fingerprint:
            difference = explain_difference(self.description, state.get("description"))
            raise StreamChangedError(
                f"stream {self.stream!r} is not the one that the state at step {step} was taken from; its batches "
                f"would be others ({difference}); serve the old stream, or pass strict=False to go on with this one"
            )
        self.seek(step)

    def reopen(self) -> None:
        """Open the stream again at the next step: after EvictedError, or after a BuildError, to go on elsewhere.

        Raises StreamChangedError, and what `Client.open` raises.
        """
        with self._lock:
            self._open_again(self.next_step)

    # --- the end -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the stream; a `get` that waits in another thread raises ConsumerClosedError. Idempotent.

        Arrays that are alive stay valid, and keep their memory, until they die.
        """
        self._cancelled = True
        with self._lock:
            self._cancelled = False
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
            self._opening.channel.close()  # the session tells the daemon
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)

    # --- within ------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._ended is not None:
            raise ConsumerClosedError(f"this consumer of {self.stream!r} takes no more steps: {self._ended}")

    def _at_stop(self) -> bool:
        """Whether the iteration is over; then the consumer is closed."""
        over = self.stop_step is not None and self.next_step >= self.stop_step
        if over:
            self.close()
        return over

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
        self._asking.give_up()
        if self._asking.at_limit:
            raise self._asking.limit_error(step)
        raise DeadlineError(
            f"step {step} of {self.stream!r}: no answer within {timeout_s} s; `loader-service status` tells whom the "
            "stream waits for"
        )

    def _come_back(self, step: int, deadline: float | None, gone: str) -> None:
        """Find the daemon again, and open the stream at `step`. Raises ServiceClosedError, StreamChangedError."""
        until = time.monotonic() + self._gateway.reconnect_s
        until = until if deadline is None else min(until, deadline)
        with self._lock:
            self._check_open()
            self._gateway.revive(self._opening.generation, until, gone, lambda: self._cancelled)
            self._open_again(step)

    def _open_again(self, step: int) -> None:
        self._gateway.forget(self._opening.number)
        self._opening.channel.close()
        opening = self._gateway.open(self._plan, step)
        self._adopt(opening)
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
