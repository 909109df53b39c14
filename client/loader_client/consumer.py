"""A consumer: one open stream of one client.

Owns `Consumer`. Invariant: it yields exactly the batches of the contract, each at the step asked for, and never
one whose memory could still change. Fails with BuildError at the step that failed (which ends the stream),
HoldLimitError, DeadlineError, EvictedError, StreamChangedError, ServiceClosedError, ConsumerClosedError.
"""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from loader_client.reading import Reading
from loader_service.contract.batch import Batch
from loader_service.contract.checks import checked_step
from loader_service.contract.fingerprint import explain_difference
from loader_service.errors import (
    ArgumentError,
    ServiceClosedError,
    StreamChangedError,
)

__all__ = ["Consumer"]


class Consumer(Reading):
    """Batches of one stream, in step order or at any step; `Client.open` makes it.

    Iterating gives next_step, next_step + 1, … until stop_step, with `for` and with `async for`; `get` and `aget` give
    any step. Safe to call from several threads, one request at a time. Close it (or use `with`): others on its lane
    wait for its position. A daemon that is restarted is found again, and the consumer goes on at its step.
    """

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

    # --- iteration ---------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """The batch of `next_step`; at stop_step the consumer closes itself and iteration ends."""
        self._gateway.session.check_process()
        with self._lock:
            if self._at_stop():
                raise StopIteration
            return self.get(self.next_step)

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self

    async def __anext__(self) -> Batch:
        from loader_client.aio import turns

        async with turns(self):
            if self._at_stop():
                raise StopAsyncIteration
            return await self._aget(self.next_step, None)

    # --- places ------------------------------------------------------------------------------------------

    def seek(self, step: int) -> None:
        """Go on at `step`: the next batch of an iteration is that one. Its lane is changed at once, if need be."""
        step = checked_step(step)
        self._gateway.session.check_process()
        with self._lock:
            self._check_open()
            if step != self.next_step:
                self._asking.jump()
            self.next_step = step
            if self.stop_step is None or step < self.stop_step:
                with suppress(ServiceClosedError):  # the next request finds the daemon again
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
            theirs = state.get("description")
            difference = explain_difference(self.description, theirs) if theirs else "its fingerprint is another"
            raise StreamChangedError(
                f"stream {self.stream!r} is not the one that the state at step {step} was taken from; its batches "
                f"would be others ({difference}); serve the old stream, or pass strict=False to go on with this one"
            )
        self.seek(step)

    def reopen(self) -> None:
        """Open the stream again at the next step: after EvictedError, or after a BuildError, to go on elsewhere.

        Raises StreamChangedError, and what `Client.open` raises.
        """
        self._gateway.session.check_process()
        with self._lock:
            self._open_again(self.next_step)

    # --- the end -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the stream; a `get` that waits in another thread raises ConsumerClosedError. Idempotent.

        Arrays that are alive stay valid, and keep their memory, until they die.
        """
        if self._gateway.session.forked:  # it is the parent's
            self._ended = self._ended or "it belongs to the parent process"
            return
        self._cancelled = True
        try:
            with self._lock:
                if self._ended is None:
                    self._end("it was closed")
        finally:
            self._cancelled = False

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

    def _at_stop(self) -> bool:
        """Whether the iteration is over; then the consumer is closed."""
        over = self.stop_step is not None and self.next_step >= self.stop_step
        if over:
            self.close()
        return over
