"""A consumer: one open stream of one client.

Owns `Consumer`. Invariant: it yields exactly the batches of the contract, each at the step asked for, and never one
whose memory could still change; whatever interrupts a wait, an exception, a cancelled task or a daemon that ends, the
next request gets what it asks for. Fails with BuildError at the step that failed (which ends the stream),
HoldLimitError, DeadlineError, EvictedError, StreamChangedError, ServiceClosedError, ConsumerClosedError.
"""

from __future__ import annotations

import math
import os
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, Self
from weakref import WeakKeyDictionary

from loader_client.daemon_connection import DaemonConnection, OpenedStream, OpenOptions
from loader_client.subscription import HOLD_POLL_S, Subscription
from loader_service.contract.batch import Batch
from loader_service.contract.checks import checked_float, checked_step
from loader_service.contract.fingerprint import explain_difference
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

    Attributes:
        stream: the name of the stream.
        shard: (rank, world size), whose rows of each global batch it gets.
        next_step: the global step of the next batch of an iteration.
        stop_step: iteration ends before it, and nothing is asked for ahead from there on; None: never.
        steps_per_epoch: S, in steps.
        fingerprint: a digest of all that the bytes of the batches depend on.
        description: what the fingerprint is a digest of, as plain values.
    """

    def __init__(
        self,
        connection: DaemonConnection,
        options: OpenOptions,
        start_step: int | None,
        stop_step: int | None,
        client: object,
    ) -> None:
        self._ended: str | None = "it was never opened"
        self.stream, self.shard, self.stop_step = options.stream, options.shard, stop_step
        self._connection, self._options = connection, options
        self._process_id = connection.sockets.process_id
        self._client = client  # it lives as long as its consumers
        self._lock = threading.RLock()
        self._task_locks: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._cancelled = False
        self._adopt(connection.open(options, start_step, self))
        answer = self._opened.answer
        self.next_step, self.steps_per_epoch = answer.start_step, answer.steps_per_epoch
        self.fingerprint, self.description = answer.fingerprint, answer.description
        self._ended = None

    def __repr__(self) -> str:
        if not hasattr(self, "next_step"):
            return f"Consumer({self.stream!r}, {self._ended})"
        state = self._ended or f"next step {self.next_step}"
        return f"Consumer({self.stream!r}, {state}, holds {self.held_steps})"

    @property
    def held_steps(self) -> list[int]:
        """The steps whose arrays are alive, ascending."""
        return self._subscription.held_steps

    @property
    def prefetch(self) -> int:
        """P, the slots of the ring, as the daemon last said it."""
        return self._subscription.prefetch

    @property
    def hold(self) -> int:
        """The number of batches that may be alive at once."""
        return self._subscription.hold

    @property
    def closed(self) -> bool:
        """True once it takes no more steps."""
        return self._ended is not None

    # --- batches -----------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """The batch of `next_step`; at stop_step the consumer closes itself and iteration ends."""
        if os.getpid() != self._process_id:  # before the lock, which a thread of the parent may hold
            self._connection.sockets.check_process()
        with self._lock:
            if self.stop_step is not None and self.next_step >= self.stop_step:
                self.close()
                raise StopIteration
            return self._read(self.next_step, None)

    def get(self, step: int, timeout_s: float | None = None) -> Batch:
        """The batch at a global step, as read-only views; the next one is then step + 1.

        Args:
            step: the global step, in [0, 2^63).
            timeout_s: seconds to wait until it is built; None: for ever.

        Raises:
            BuildError: the build of the step failed; the consumer has ended.
            HoldLimitError: too many batches are alive.
            DeadlineError: it was not built in time; ask again.
            EvictedError: the daemon has put this consumer out; see `reopen`.
            ServiceClosedError: the daemon is gone, and none came back.
            ConsumerClosedError: this consumer was closed.
        """
        step, timeout_s = checked_step(step), _checked_timeout(timeout_s)
        self._connection.sockets.check_process()
        with self._lock:
            return self._read(step, timeout_s)

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self

    async def __anext__(self) -> Batch:
        """`__next__` in an event loop."""
        from loader_client.aio import serialize_tasks

        async with serialize_tasks(self._task_locks):
            return await self._aread(None, None)

    async def aget(self, step: int, timeout_s: float | None = None) -> Batch:
        """`get` in an event loop, which goes on meanwhile. A task that is cancelled loses no batch: ask again.

        Tasks that ask one consumer do so one after the other.
        """
        from loader_client.aio import serialize_tasks

        step, timeout_s = checked_step(step), _checked_timeout(timeout_s)
        async with serialize_tasks(self._task_locks):
            return await self._aread(step, timeout_s)

    # --- places ------------------------------------------------------------------------------------------

    def seek(self, step: int) -> None:
        """Go on at `step`: the next batch of an iteration is that one. Its lane is changed at once, if need be."""
        step = checked_step(step)
        self._connection.sockets.check_process()
        with self._lock:
            self._check_open()
            if step != self.next_step:
                self._subscription.jump()
            self.next_step = step
            if self.stop_step is None or step < self.stop_step:
                with suppress(ServiceClosedError):  # the next request finds the daemon again
                    self._subscription.ask(step, self.stop_step, demanded=False)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: the step, the fingerprint, and its description, as plain values."""
        return {"step": self.next_step, "fingerprint": self.fingerprint, "description": self.description}

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Go on where `state_dict` was taken, in whatever process, with whatever workers, prefetch and world size.

        Args:
            state: what `state_dict` returned.
            strict: refuse the state of a stream with another fingerprint.

        Raises:
            StreamChangedError: the stream is another; the message says what differs.
            ArgumentError: `state` is no such state.
        """
        if not isinstance(state, Mapping) or "step" not in state:
            raise ArgumentError("the state has no step; give what state_dict() returned")
        step = checked_step(state["step"])
        if strict and state.get("fingerprint") != self.fingerprint:
            raise StreamChangedError(
                f"stream {self.stream!r} is not the one that the state at step {step} was taken from; its batches "
                f"would be others ({_difference(self.description, state.get('description'))}); serve the old stream, "
                "or pass strict=False to go on with this one"
            )
        self.seek(step)

    def reopen(self) -> None:
        """Open the stream again at the next step: after EvictedError, or after a BuildError, to go on elsewhere.

        Raises StreamChangedError, and what `Client.open` raises.
        """
        self._connection.sockets.check_process()
        with self._lock:
            self._open_again(self.next_step)

    # --- the end -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the stream; a `get` that waits in another thread raises ConsumerClosedError. Idempotent.

        Arrays that are alive stay valid, and keep their memory, until they die.
        """
        if self._connection.sockets.forked:  # it is the parent's
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
        if getattr(self, "_ended", "it was never opened") is None:
            self._opened.channel.close()  # the lease book tells the daemon
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)

    def __reduce__(self) -> NoReturn:
        raise ArgumentError(
            f"a consumer (of {self.stream!r}) cannot be pickled or copied: its connection and its leases belong to "
            "this process; keep state_dict(), and open the stream in the other process with load_state_dict() of it"
        )

    # --- one batch ---------------------------------------------------------------------------------------

    def _read(self, step: int, timeout_s: float | None) -> Batch:
        """Wait for the batch of `step`, under the lock."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
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
                self._reconnect(step, deadline, gone, lambda: False)
        finally:
            self._subscription.end_wait()

    async def _aread(self, step: int | None, timeout_s: float | None) -> Batch:
        """Wait for the batch of `step` in an event loop; None: of the next one, whichever that is by then.

        Raises StopAsyncIteration where there is no next one.
        """
        from loader_client.aio import pause, readable, run_in_thread

        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            while True:
                try:
                    batch, busy = self._attempt_unless_busy(step)
                    if batch is not None:
                        return batch
                    pause_s = self._pause_s(self.next_step if step is None else step, deadline, timeout_s)
                    if busy or self._subscription.at_limit:
                        await pause(min(pause_s, HOLD_POLL_S))
                    else:
                        await readable(self._opened.channel, self._lock, pause_s)
                    continue
                except ServiceClosedError as error:
                    gone = error.message
                at = self.next_step if step is None else step
                await run_in_thread(partial(self._reconnect, at, deadline, gone))
        finally:
            self._subscription.end_wait()

    def _attempt(self, step: int) -> Batch | None:
        """The batch if it is here; else it has been asked for. Raises ServiceClosedError where the daemon is gone."""
        if self._ended is not None:
            self._check_open()
        if self._connection.generation != self._opened.generation:
            raise ServiceClosedError("the daemon that knew this consumer is gone")
        try:
            batch = self._subscription.poll(step, following=step == self.next_step, stop=self.stop_step)
        except BuildError as error:
            self._end(f"it ended at step {error.step}, whose build failed")
            raise
        except ConsumerClosedError as error:  # of a daemon that took the place of the one that knew it
            raise ServiceClosedError(error.message) from error
        if batch is not None:
            self.next_step = step + 1
        return batch

    def _attempt_unless_busy(self, step: int | None) -> tuple[Batch | None, bool]:
        """`_attempt`, or the word that a thread is reading. What the next step is, is decided under the lock."""
        self._connection.sockets.check_process()
        if not self._lock.acquire(blocking=False):
            return None, True
        try:
            if step is not None:
                return self._attempt(step), False
            if self.stop_step is None or self.next_step < self.stop_step:
                return self._attempt(self.next_step), False
            if self._ended is None:  # not `close`, which would end the wait of another thread by an error
                self._end("it was closed")
            raise StopAsyncIteration
        finally:
            self._lock.release()

    def _rest(self, pause_s: float) -> None:
        """Wait until there may be something new. At the hold limit no message is waited for."""
        if self._subscription.at_limit:
            time.sleep(pause_s)
        else:
            self._opened.channel.wait(pause_s)

    def _pause_s(self, step: int, deadline: float | None, timeout_s: float | None) -> float:
        """Seconds to wait for the step now. Raises where the wait is over."""
        if self._cancelled:
            raise ConsumerClosedError(f"step {step} of {self.stream!r}: the consumer was closed while it waited")
        left_s = math.inf if deadline is None else deadline - time.monotonic()
        if left_s > 0:
            return min(left_s, self._subscription.pause_s)
        if self._subscription.at_limit:
            raise self._subscription.limit_error(step)
        raise DeadlineError(
            f"step {step} of {self.stream!r}: no answer within {timeout_s} s; `loader-service status` tells whom the "
            "stream waits for"
        )

    def _check_open(self) -> None:
        if self._ended is not None:
            raise ConsumerClosedError(f"this consumer of {self.stream!r} takes no more steps: {self._ended}")

    # --- another daemon ----------------------------------------------------------------------------------

    def _reconnect(self, step: int, deadline: float | None, gone: str, given_up: Callable[[], bool]) -> None:
        """Find the daemon again, and open the stream at `step`. Raises ServiceClosedError, StreamChangedError."""
        connection = self._connection
        until = time.monotonic() + connection.reconnect_s
        until = until if deadline is None else min(until, deadline)
        with self._lock:
            while True:
                self._check_open()
                try:
                    connection.reconnect(self._opened.generation, until, gone, lambda: self._cancelled or given_up())
                    self._open_again(step)
                    return
                except ServiceClosedError as error:
                    gone = error.message
                if self._cancelled:
                    raise ConsumerClosedError(f"this consumer of {self.stream!r} was closed")
                if given_up() or connection.closed or time.monotonic() >= until or not connection.can_return():
                    raise ServiceClosedError(gone)

    def _open_again(self, step: int) -> None:
        """Open at `step`, and only then let go of what there was."""
        old, opened = self._subscription, self._connection.open(self._options, step, self)
        self._adopt(opened)
        old.drop()
        self._ended = None
        if opened.answer.fingerprint != self.fingerprint:
            difference = explain_difference(opened.answer.description, self.description)
            self._end("its stream has changed")
            raise StreamChangedError(
                f"the daemon at {self._connection.endpoint} now serves another stream as {self.stream!r} "
                f"({difference}); open it anew if you mean to read that one from step {step} on"
            )

    def _adopt(self, opened: OpenedStream) -> None:
        self._opened = opened
        self._subscription = Subscription(opened, self._connection.leases, self._options)

    def _end(self, why: str) -> None:
        self._ended = why
        self._subscription.close()


def _difference(description: dict[str, Any], theirs: Any) -> str:
    try:
        return explain_difference(description, theirs) if theirs else "its fingerprint is another"
    except Exception:  # a state may hold anything, and only what state_dict() returned can be explained
        return "its fingerprint is another, and its description is none"


def _checked_timeout(timeout_s: float | None) -> float | None:
    return None if timeout_s in (None, math.inf) else checked_float("timeout_s", timeout_s, 0.0)
