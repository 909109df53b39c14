"""One connection: requests out, answers in, and word of the daemon's end.

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

from loader_client.session import CLIENT_CLOSED, Session
from loader_service.errors import DeadlineError, ProtocolError, ServiceClosedError, from_record
from loader_service.wire.messages import DAEMON_MESSAGES, Closing, Error, Message
from loader_service.wire.protocol import decode, encode

__all__ = ["LOOK_S", "Channel"]

LOOK_S = 0.1
"""How often a request that waits looks whether it is still wanted."""

_LAST_WORDS_MS = 100
"""How long what a daemon said before its end may still be on its way when its process is gone."""

_Reply = TypeVar("_Reply", bound=Message)


class Channel:
    """A socket of this client. `request` is safe to call from several threads, the rest from one at a time.

    daemon_pidfd: readable when the daemon's process has ended; None: the end of the connection tells. incarnation: of
    the daemon that was greeted on it.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.socket = session.new_socket()
        self._lock = threading.Lock()
        self._requests = 0
        self._closing = False
        self._end: str | None = None
        self._poller = zmq.Poller()
        self._poller.register(self.socket, zmq.POLLIN)
        self._monitor: zmq.Socket[bytes] | None = None
        self.daemon_pidfd: int | None = None
        self.incarnation = 0

    def watch(self, daemon_pidfd: int | None) -> None:
        """From now on, notice that the daemon has ended; None where its process cannot be seen."""
        if daemon_pidfd is not None:
            self.daemon_pidfd = os.dup(daemon_pidfd)  # whoever greets its successor closes the other
            self._poller.register(self.daemon_pidfd, zmq.POLLIN)
        else:
            self._monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            self._poller.register(self._monitor, zmq.POLLIN)

    def send(self, make: Callable[[int], Message]) -> int:
        """Send `make(number)`, a request; its number. Raises ForkedClientError, ServiceClosedError."""
        self._session.check_process()
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
        """Send a message whose answer nobody waits for; one that the daemon is gone for is dropped."""
        self.socket.send(encode(message)[0], zmq.NOBLOCK)

    def take(self, number: int, answer: type[_Reply]) -> _Reply | None:
        """The answer to request `number` if it is here. Raises the error that it is, ServiceClosedError."""
        while not self._closing:
            try:
                reply = decode(self.socket.recv_multipart(zmq.NOBLOCK), DAEMON_MESSAGES)
            except zmq.Again:
                break
            except zmq.ZMQError as error:  # it was closed in this moment
                raise ServiceClosedError(CLIENT_CLOSED) from error
            if isinstance(reply, Closing):
                self._end = f"it said that it ends: {reply.reason}"
            elif getattr(reply, "request", None) == number:
                return _checked(reply, answer)
        if self._closing or self.socket.closed:
            raise ServiceClosedError(CLIENT_CLOSED)
        if self._end is not None:
            raise ServiceClosedError(f"the daemon is gone ({self._end})")
        return None

    def wait(self, timeout_s: float) -> None:
        """Until something has come, the daemon has ended, or `timeout_s` seconds have passed."""
        if self.socket.closed:
            return
        try:
            ready = dict(self._poller.poll(math.ceil(max(0.0, timeout_s) * 1000)))
        except zmq.ZMQError:  # it was closed in this moment: whoever asks next is told
            return
        if ready and self.socket not in ready and not self.socket.poll(_LAST_WORDS_MS):
            self._end = self._end or "its process or connection has ended"

    def has_message(self) -> bool:
        """Whether something has come. Resets the edge of the socket's descriptor."""
        if self.socket.closed:
            return True
        return bool(int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def request(self, make: Callable[[int], Message], answer: type[_Reply], timeout_s: float, what: str) -> _Reply:
        """Send a request and wait for its answer; `what` names it in errors.

        Raises the daemon's error, DeadlineError, ServiceClosedError.
        """
        self._session.check_process()
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

    def close(self) -> None:
        """End the connection; a `request` that waits in another thread raises. Idempotent."""
        self._closing = True
        if not self._session.forked:  # else the socket is the parent's, and so may be the lock
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


def _checked(reply: Message, answer: type[_Reply]) -> _Reply:
    if isinstance(reply, Error):
        raise from_record(reply.error)
    if not isinstance(reply, answer):
        raise ProtocolError(f"a request was answered by a {reply.kind} message; it must be {answer.kind}")
    return reply
