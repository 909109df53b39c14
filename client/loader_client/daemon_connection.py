"""The way to a daemon, and back to the one that takes its place.

Owns `DaemonConnection`, `OpenOptions` and `OpenedStream`. Invariant: a consumer belongs to the daemon of one
`generation`; when that daemon is gone, the first thread that notices shakes hands with the next one, and the others
find the generation risen. Fails with ServiceUnavailableError (nobody answers at first, or no connection can be made),
ServiceClosedError (nobody came back within the deadline).
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

import zmq

from loader_client.channel import Channel
from loader_client.leases import Lease, LeaseBook
from loader_client.sockets import CLIENT_CLOSED, SocketFactory, require_descriptors, reserved
from loader_service.contract.shards import Shard
from loader_service.errors import DeadlineError, ServiceClosedError, ServiceUnavailableError
from loader_service.wire.endpoint import check_trusted, socket_path
from loader_service.wire.messages import Hello, Message, Open, Opened, Welcome
from loader_service.wire.process import open_pidfd, pid_namespace

__all__ = ["DaemonConnection", "OpenOptions", "OpenedStream"]

_Reply = TypeVar("_Reply", bound=Message)
_Make = Callable[[int, int], Message]
"""Makes a message of its request number and the daemon's incarnation."""
_ATTEMPT_S = 1.0
_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """The way in which a stream is read; see `Client.open`.

    slow_consumer_policy: "split" or "wait"; max_leases: batches that may be alive, 0 for what the daemon chooses.
    """

    stream: str
    slow_consumer_policy: str
    patience_us: int
    max_leases: int
    shard: Shard
    hold_timeout_s: float


def _open(options: OpenOptions, start_step: int | None, consumer_id: int, request: int, incarnation: int) -> Open:
    return Open(
        request=request,
        consumer=consumer_id,
        stream=options.stream,
        start_step=start_step or 0,
        live=start_step is None,
        pace=options.slow_consumer_policy,
        patience_us=options.patience_us,
        hold=options.max_leases,
        rank=options.shard.rank,
        world=options.shard.world,
        incarnation=incarnation,
    )


@dataclass(frozen=True, slots=True)
class OpenedStream:
    """A stream that was opened: the consumer's id, its leases, the daemon's answer and a connection of its own.

    generation: of the daemon that opened it; owner_uid: the daemon's user, whose the segments must be.
    """

    consumer_id: int
    leases: dict[int, Lease]
    answer: Opened
    channel: Channel
    generation: int
    owner_uid: int


@dataclass(frozen=True, slots=True)
class _Daemon:
    """A daemon that has said Welcome. pidfd: of its process, or None where that cannot be seen."""

    pid: int = 0
    pidfd: int | None = None
    incarnation: int = 0
    owner_uid: int = -1
    streams: tuple[str, ...] = ()


class DaemonConnection:
    """One client's connection to whichever daemon serves at `endpoint`.

    timeout_s: seconds for an answer, and for the daemon to be there at first; reconnect_s: for one to be back;
    generation: how often a daemon has taken the place of the one before.
    """

    def __init__(self, endpoint: str, timeout_s: float, reconnect_s: float) -> None:
        self._path = socket_path(endpoint)
        self.endpoint, self.timeout_s, self.reconnect_s = endpoint, timeout_s, reconnect_s
        self.generation = 0
        self.closed = False
        self._daemon = _Daemon()
        self._consumer_ids = count(1)
        self._reconnecting = threading.Lock()
        self._exchange = threading.Lock()  # of `_daemon` and `_channel`; nobody waits for a message under it
        self._channel: Channel | None = None
        self.sockets = SocketFactory(endpoint)
        try:
            with reserved():
                self.leases = LeaseBook(self.sockets, self._throw_away)
        except BaseException:
            self.sockets.close()
            raise

    @property
    def process_id(self) -> int:
        """The daemon's process."""
        return self._daemon.pid

    @property
    def process_descriptor(self) -> int | None:
        """A descriptor that becomes readable when the daemon's process ends; None where it cannot be seen."""
        return self._daemon.pidfd

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of the daemon's streams."""
        return self._daemon.streams

    # --- requests ----------------------------------------------------------------------------------------

    def request(self, make: _Make, answer: type[_Reply], what: str) -> _Reply:
        """Send a request that may be repeated to the daemon of now, or to the next one. Raises what it answers."""
        until: float | None = None
        while True:
            generation = self.generation
            try:
                return self.request_once(make, answer, what)
            except ServiceClosedError as error:
                gone = error.message
            until = time.monotonic() + self.reconnect_s if until is None else until
            self.reconnect(generation, until, gone)

    def request_once(self, make: _Make, answer: type[_Reply], what: str) -> _Reply:
        """Send a request to the daemon of now only. Raises what it answers."""
        with self._exchange:
            channel, incarnation = self._channel, self._daemon.incarnation
        if channel is None:
            raise ServiceClosedError(CLIENT_CLOSED)
        return channel.request(lambda number: make(number, incarnation), answer, self.timeout_s, what)

    def open(self, options: OpenOptions, start_step: int | None, consumer: object) -> OpenedStream:
        """Open a stream on a connection of its own, at the daemon of now or the next one.

        Args:
            options: how the stream is read.
            start_step: the first global step; None: where the most consumers are now.
            consumer: what is opened; it is closed when it is dropped.

        Raises:
            LoaderServiceError: what the daemon answers.
            ServiceUnavailableError: no connection can be made: too few descriptors, or the socket was removed.
            ServiceClosedError: the daemon is gone, and none came back.
        """
        self.sockets.check_process()
        until: float | None = None
        while True:
            generation = self.generation
            try:
                with reserved():
                    return self._open_once(options, start_step, consumer, generation)
            except ServiceClosedError as error:
                gone = error.message
            until = time.monotonic() + self.reconnect_s if until is None else until
            self.reconnect(generation, until, gone)

    def _open_once(
        self, options: OpenOptions, start_step: int | None, consumer: object, generation: int
    ) -> OpenedStream:
        channel, daemon = self._new_channel()
        consumer_id = next(self._consumer_ids)
        try:
            leases = self.leases.enlist(consumer_id, consumer)
            make = partial(_open, options, start_step, consumer_id)
            answer = channel.request(
                lambda request: make(request, daemon.incarnation),
                Opened,
                self.timeout_s,
                f"opening {options.stream!r}",
            )
        except BaseException as error:  # Ctrl-C too: the daemon may have opened it, and others would wait for it
            self.leases.dismiss(consumer_id)
            channel.close()
            if isinstance(error, DeadlineError):
                self._explain_silence(daemon)
            raise
        return OpenedStream(consumer_id, leases, answer, channel, generation, daemon.owner_uid)

    def _new_channel(self) -> tuple[Channel, _Daemon]:
        """A connection that notices the end of the daemon of now. Raises ServiceUnavailableError."""
        with self._exchange:
            if self.closed:
                raise ServiceClosedError(CLIENT_CLOSED)
            channel = Channel(self.sockets)
            try:
                channel.watch(self._daemon.pidfd)
            except (OSError, zmq.ZMQError):
                channel.close()
                require_descriptors()
                raise
            return channel, self._daemon

    def _explain_silence(self, daemon: _Daemon) -> None:
        """Raises ServiceUnavailableError where no new connection could be made, however long one waits."""
        require_descriptors()
        if not self._path.exists():
            raise ServiceUnavailableError(
                f"the socket {self._path} is gone (was it removed by a clean-up of its directory?), though the daemon "
                f"(pid {daemon.pid}) has not ended: it takes no new connections; restart it"
            )

    def _throw_away(self) -> None:
        channel = self._channel
        if channel is not None:
            with suppress(ServiceClosedError, zmq.ZMQError):
                channel.throw_away()

    # --- the way to a daemon -----------------------------------------------------------------------------

    def handshake(self) -> None:
        """Say Hello to the first daemon. Raises ServiceUnavailableError."""
        deadline = time.monotonic() + self.timeout_s
        while not self._shake_hands(deadline - time.monotonic()):
            if time.monotonic() >= deadline:
                require_descriptors()
                raise ServiceUnavailableError(
                    f"no daemon answered at {self.endpoint} within {self.timeout_s} s; start one with "
                    "`loader-service serve CONFIG.toml`, or name its endpoint"
                )
            time.sleep(_PAUSE_S)

    def reconnect(
        self, generation: int, deadline: float, gone: str, given_up: Callable[[], bool] = lambda: False
    ) -> None:
        """Shake hands with the daemon that takes the place of an earlier one.

        Args:
            generation: of the daemon that is gone.
            deadline: when to stop waiting, by `time.monotonic`.
            gone: why it is gone, for the error.
            given_up: tells whether nobody waits any more.

        Raises:
            ServiceClosedError: at the deadline, or where no daemon can come any more.
        """
        with self._reconnecting:
            if self.generation != generation:
                return
            while not (self.closed or given_up()) and self.can_return():
                left_s = deadline - time.monotonic()
                if self._shake_hands(min(left_s, _ATTEMPT_S)):
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
        """True while a daemon may come to the endpoint: the directory of an embedded one is removed with it."""
        return self._path.parent.is_dir()

    def close(self) -> None:
        """End the connection. Idempotent."""
        self.closed = True
        channel = self._channel
        if channel is not None:
            channel.close()
        self.leases.close()
        with self._exchange:
            self._replace_daemon(_Daemon(self._daemon.pid, streams=self._daemon.streams))

    def _shake_hands(self, timeout_s: float) -> bool:
        """Say Hello on a new connection, and use that from now on if a daemon answers; one that ends does not count."""
        check_trusted(self._path)
        with reserved():
            return self._say_hello(Channel(self.sockets), timeout_s)

    def _say_hello(self, channel: Channel, timeout_s: float) -> bool:
        try:
            welcome = channel.request(
                lambda request: Hello(request, os.getpid(), pid_namespace()), Welcome, max(0.0, timeout_s), "connecting"
            )
            self._adopt(channel, welcome, os.stat(self._path).st_uid)
        except (DeadlineError, ServiceClosedError, FileNotFoundError):
            channel.close()
            return False
        except BaseException:
            channel.close()
            raise
        return True

    def _adopt(self, channel: Channel, welcome: Welcome, owner_uid: int) -> None:
        """Take `channel` and the daemon that answered on it for those of now."""
        visible = welcome.pid_namespace == pid_namespace() != 0
        pidfd = open_pidfd(welcome.pid) if visible else None
        try:
            channel.watch(pidfd)
        except (OSError, zmq.ZMQError):
            if pidfd is not None:
                os.close(pidfd)
            require_descriptors()
            raise
        with self._exchange:
            old, self._channel = self._channel, channel
            self._replace_daemon(_Daemon(welcome.pid, pidfd, welcome.incarnation, owner_uid, tuple(welcome.streams)))
        if old is not None:
            old.close()

    def _replace_daemon(self, daemon: _Daemon) -> None:
        old, self._daemon = self._daemon, daemon
        if old.pidfd is not None:
            os.close(old.pidfd)
