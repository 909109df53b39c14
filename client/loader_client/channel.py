"""One connection to the daemon: requests out, answers in, and notice of the daemon's end.

Owns `Channel`. Invariant: an answer belongs to the request whose number it carries; one whose request was given up is
dropped, and the next request says what its consumer holds, so that what it granted ends. Fails with DeadlineError
(slow), ServiceClosedError (the daemon ends, or is gone) and whatever error the daemon answers.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import zmq

from loader_client.sockets import CLIENT_CLOSED, SocketFactory
from loader_service.errors import DeadlineError, ProtocolError, ServiceClosedError, from_record
from loader_service.wire.messages import DAEMON_MESSAGES, Closing, Error, Message
from loader_service.wire.protocol import decode, encode

__all__ = ["LOOK_S", "Channel"]

LOOK_S = 0.1
"""A request that waits looks so often whether it is still wanted."""

_LAST_WORDS_MS = 100
"""The last messages of a daemon may be on their way for so long when its process has ended."""

_Reply = TypeVar("_Reply", bound=Message)


class Channel:
    """A socket of this client. `request` and `throw_away` are for any thread, the rest for one at a time.

    daemon_pidfd: readable when the daemon's process has ended; None: the end of the connection tells.
    """

    def __init__(self, sockets: SocketFactory) -> None:
        self._sockets = sockets
        self.socket = sockets.new()
        self._lock = threading.Lock()
        self._requests = 0
        self._closing = False
        self._end: str | None = None
        self._poller = zmq.Poller()
        self._poller.register(self.socket, zmq.POLLIN)
        self._monitor: zmq.Socket[bytes] | None = None
        self.daemon_pidfd: int | None = None

    def watch(self, daemon_pidfd: int | None) -> None:
        """Notice from now on that the daemon has ended.

        Args:
            daemon_pidfd: a descriptor of its process, of which a duplicate is kept; None where it cannot be seen.
        """
        if daemon_pidfd is not None:
            self.daemon_pidfd = os.dup(daemon_pidfd)
            self._poller.register(self.daemon_pidfd, zmq.POLLIN)
        else:
            self._monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            self._poller.register(self._monitor, zmq.POLLIN)

    def send(self, make: Callable[[int], Message]) -> int:
        """Send `make(number)`, a request, and return its number. Raises ForkedClientError, ServiceClosedError."""
        self._sockets.check_process()
        if self.socket.closed:
            raise ServiceClosedError(CLIENT_CLOSED)
        self._requests += 1
        message = encode(make(self._requests))[0]
        try:
            self.socket.send(message)
        except zmq.ZMQError as error:  # it was closed in this moment
            raise ServiceClosedError(CLIENT_CLOSED) from error
        return self._requests

    def post(self, message: Message) -> None:
        """Send a message that has no answer; it is lost where the daemon is gone."""
        self.socket.send(encode(message)[0], zmq.NOBLOCK)

    def take(self, number: int, answer: type[_Reply]) -> _Reply | None:
        """The answer to request `number` if it is here. Never waits.

        Raises:
            LoaderServiceError: the error that the daemon answered.
            ServiceClosedError: the daemon ends or is gone, or the channel is closed.
        """
        while not self._closing:
            try:
                frame = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            except zmq.ZMQError as error:  # it was closed in this moment
                raise ServiceClosedError(CLIENT_CLOSED) from error
            reply = decode([frame], DAEMON_MESSAGES)
            if getattr(reply, "request", None) == number:
                if isinstance(reply, answer):
                    return reply
                raise _error_of(reply, answer)
            if isinstance(reply, Closing):
                self._end = f"it said that it ends: {reply.reason}"
        if self._closing or self.socket.closed:
            raise ServiceClosedError(CLIENT_CLOSED)
        if self._end is not None:
            raise ServiceClosedError(f"the daemon is gone ({self._end})")
        return None

    def wait(self, timeout_s: float) -> None:
        """Wait until something has come, the daemon has ended, or `timeout_s` seconds have passed."""
        if self.socket.closed:
            return
        try:
            ready = dict(self._poller.poll(math.ceil(max(0.0, timeout_s) * 1000)))
        except zmq.ZMQError:  # it was closed in this moment: the next `take` tells
            return
        if ready and self.socket not in ready and not self.socket.poll(_LAST_WORDS_MS):
            self._end = self._end or "its process or connection has ended"

    def has_message(self) -> bool:
        """True where something has come. Resets the edge of the socket's descriptor."""
        if self.socket.closed:
            return True
        return bool(int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def request(self, make: Callable[[int], Message], answer: type[_Reply], timeout_s: float, what: str) -> _Reply:
        """Send a request and wait for its answer.

        Args:
            make: makes the message of its request number.
            answer: the class of the answer.
            timeout_s: seconds to wait.
            what: names the request in errors.

        Raises:
            LoaderServiceError: the error that the daemon answered.
            DeadlineError: no answer in time.
            ServiceClosedError: the daemon ends or is gone, or the channel is closed.
        """
        self._sockets.check_process()
        deadline = time.monotonic() + timeout_s
        with self._lock:
            number = self.send(make)
            while (reply := self.take(number, answer)) is None:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise DeadlineError(
                        f"{what}: no answer within {timeout_s} s; `loader-service status` tells what the daemon does"
                    )
                self.wait(min(left_s, LOOK_S))
            return reply

    def throw_away(self) -> None:
        """Receive what nobody waits for, such as pings, which would pile up; nothing is done while a request waits."""
        if self._lock.acquire(blocking=False):
            try:
                while not self.socket.closed and self.has_message():
                    reply = decode([self.socket.recv()], DAEMON_MESSAGES)
                    if isinstance(reply, Closing):
                        self._end = f"it said that it ends: {reply.reason}"
            finally:
                self._lock.release()

    def close(self) -> None:
        """End the connection; a `request` that waits in another thread raises. Idempotent."""
        self._closing = True
        if not self._sockets.forked:  # else the socket is the parent's, and so may be the lock
            with self._lock:
                self._close()

    def _close(self) -> None:
        if self._monitor is not None:
            self._poller.unregister(self._monitor)
            self._monitor.close()
            self._monitor = None
            self.socket.disable_monitor()
        if self.daemon_pidfd is not None:
            self._poller.unregister(self.daemon_pidfd)
            os.close(self.daemon_pidfd)
            self.daemon_pidfd = None
        self.socket.close()


def _error_of(reply: Message, answer: type[Message]) -> Exception:
    """The error to raise for an answer that is not the expected one."""
    if isinstance(reply, Error):
        return from_record(reply.error)
    return ProtocolError(f"a request was answered by a {reply.kind} message; it must be {answer.kind}")
