"""The way to a daemon, and back to the one that takes its place.

Owns `DaemonConnection`, `OpenOptions` and `OpenedStream`. Invariant: a consumer belongs to the
daemon of one `generation`; when that daemon
is gone, whoever notices first greets the next one, and the others find the generation risen. Fails with
ServiceUnavailableError (nobody answers at first), ServiceClosedError (nobody came back within the deadline).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TypeVar

from loader_client.channel import Channel
from loader_client.session import CLIENT_CLOSED, Session
from loader_service.contract.shards import Shard
from loader_service.errors import DeadlineError, ServiceClosedError, ServiceUnavailableError
from loader_service.wire.endpoint import check_trusted, socket_path
from loader_service.wire.messages import Hello, Message, Open, Opened, Welcome
from loader_service.wire.process import open_pidfd, pid_namespace

__all__ = ["DaemonConnection", "OpenedStream", "OpenOptions"]

_Reply = TypeVar("_Reply", bound=Message)
_Make = Callable[[int, int], Message]
"""Makes a message of its request number and the daemon's incarnation."""
_ATTEMPT_S = 1.0
_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """How a stream is read; see `Client.open`. hold: 0 for what the daemon chooses."""

    stream: str
    pace: str
    patience_us: int
    hold: int
    shard: Shard
    hold_timeout_s: float


def _open(plan: OpenOptions, start_step: int | None, number: int, request: int, incarnation: int) -> Open:
    return Open(
        request=request,
        consumer=number,
        stream=plan.stream,
        start_step=start_step or 0,
        live=start_step is None,
        pace=plan.pace,
        patience_us=plan.patience_us,
        hold=plan.hold,
        rank=plan.shard.rank,
        world=plan.shard.world,
        incarnation=incarnation,
    )


@dataclass(frozen=True, slots=True)
class OpenedStream:
    """What an open brought: the consumer's number, the daemon's answer, a connection, the daemon's generation.

    owner: the daemon's user id, whose the segments must be.
    """

    number: int
    opened: Opened
    channel: Channel
    generation: int
    owner: int


class DaemonConnection:
    """One client's connection to whichever daemon serves at `endpoint`.

    timeout_s: for an answer, and for the daemon to be there at first; reconnect_s: for one to be back.
    """

    def __init__(self, endpoint: str, timeout_s: float, reconnect_s: float) -> None:
        self._path = socket_path(endpoint)
        self.endpoint, self.timeout_s, self.reconnect_s = endpoint, timeout_s, reconnect_s
        self.session = Session(endpoint)
        self.generation = 0
        self.closed = False
        self.daemon_pid = 0
        self.daemon_pidfd: int | None = None
        self._owner = -1
        self.streams: tuple[str, ...] = ()
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._channel = Channel(self.session)  # until one is greeted

    def greet(self) -> None:
        """Say Hello to the first daemon. Raises ServiceUnavailableError."""
        deadline = time.monotonic() + self.timeout_s
        while not self._greeted(deadline - time.monotonic()):
            if time.monotonic() >= deadline:
                raise ServiceUnavailableError(
                    f"no daemon answered at {self.endpoint} within {self.timeout_s} s; start one with "
                    "`loader-service serve CONFIG.toml`, or name its endpoint"
                )
            time.sleep(_PAUSE_S)

    def request(self, make: _Make, answer: type[_Reply], what: str) -> _Reply:
        """One request that may be repeated, to the daemon of now or the next one. Raises what it answers."""
        until: float | None = None
        while True:
            generation = self.generation
            try:
                return self.request_once(make, answer, what)
            except ServiceClosedError as error:
                gone = error.message
            until = time.monotonic() + self.reconnect_s if until is None else until
            self.revive(generation, until, gone)

    def request_once(self, make: _Make, answer: type[_Reply], what: str) -> _Reply:
        """One request to the daemon of now only."""
        channel = self._channel
        return channel.request(lambda number: make(number, channel.incarnation), answer, self.timeout_s, what)

    def open(self, plan: OpenOptions, start_step: int | None, consumer: object) -> OpenedStream:
        """Open `consumer` at `start_step`, None for live; closed when it is dropped. Raises what the daemon answers."""
        while True:
            generation, number = self.generation, next(self._numbers)
            self.session.enlist(number, consumer)
            try:
                opened = self.request(partial(_open, plan, start_step, number), Opened, f"opening {plan.stream!r}")
                with self._lock:
                    if generation == self.generation:  # else it may be open at a daemon that is gone
                        channel = Channel(self.session)
                        channel.watch(self.daemon_pidfd)
                        return OpenedStream(number, opened, channel, generation, self._owner)
            except BaseException:  # Ctrl-C too: the daemon may have opened it, and others would wait for it
                self.session.dismiss(number)
                raise
            self.session.dismiss(number)

    def revive(self, generation: int, deadline: float, gone: str, given_up: Callable[[], bool] = lambda: False) -> None:
        """Greet the daemon that takes the place of that of `generation`, which is `gone` for that reason.

        Raises ServiceClosedError at the deadline, or where no daemon can come any more.
        """
        with self._lock:
            if self.generation != generation:
                return
            while not (self.closed or given_up()) and self.can_return():
                left_s = deadline - time.monotonic()
                if self._greeted(min(left_s, _ATTEMPT_S)):
                    self.generation += 1
                    return
                if left_s <= 0:
                    break
                time.sleep(_PAUSE_S)
            raise ServiceClosedError(
                CLIENT_CLOSED
                if self.closed
                else f"{gone}; none came back at {self.endpoint} in time: start it and ask again"
            )

    def can_return(self) -> bool:
        """Whether a daemon may come to the endpoint: the directory of one that belonged to a process goes with it."""
        return self._path.parent.is_dir()

    def close(self) -> None:
        """End the connection. Idempotent."""
        self.closed = True
        self._channel.close()
        self.session.close()
        if self.daemon_pidfd is not None:
            os.close(self.daemon_pidfd)
            self.daemon_pidfd = None

    def _greeted(self, timeout_s: float) -> bool:
        """Say Hello on a new connection, and have that if a daemon answers; one that ends does not count."""
        check_trusted(self._path)
        channel = Channel(self.session)
        try:
            welcome = channel.request(
                lambda request: Hello(request, os.getpid(), pid_namespace()), Welcome, max(0.0, timeout_s), "connecting"
            )
            channel.incarnation, owner = welcome.incarnation, os.stat(self._path).st_uid
        except (DeadlineError, ServiceClosedError, FileNotFoundError):
            channel.close()
            return False
        except BaseException:
            channel.close()
            raise
        old, self._channel, self._owner = self._channel, channel, owner
        old.close()
        self._watch(welcome)
        return True

    def _watch(self, welcome: Welcome) -> None:
        visible = welcome.pid_namespace == pid_namespace() != 0
        old, self.daemon_pidfd = self.daemon_pidfd, open_pidfd(welcome.pid) if visible else None
        with suppress(OSError):
            if old is not None:
                os.close(old)
        self.streams, self.daemon_pid = tuple(welcome.streams), welcome.pid
        self._channel.watch(self.daemon_pidfd)
