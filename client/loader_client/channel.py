"""One request at a time, and its answer.

Owns `Channel`. Invariant: an answer belongs to the request whose number it carries; one whose request was given up is
dropped, and the next request says what its consumer holds, so that what it granted ends. Fails with DeadlineError
(slow), ServiceClosedError (the daemon ends, or is gone) and whatever error the daemon answers.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import zmq

from loader_client.session import Session
from loader_service.errors import ConsumerClosedError, DeadlineError, ProtocolError, ServiceClosedError, from_record
from loader_service.wire.protocol import (
    DAEMON_MESSAGES,
    Closing,
    Error,
    Message,
    decode,
    encode,
)

__all__ = ["Channel"]

_LOOK_S = 0.1
"""How often a request that waits looks whether it is still wanted."""

_LAST_WORDS_MS = 100
"""How long what a daemon said before its end may still be on its way when its process is gone."""

_Reply = TypeVar("_Reply", bound=Message)


class Channel:
    """A connection on which one thread at a time asks; others wait for the lock.

    daemon_pidfd: readable when the daemon's process has ended, or None where it cannot be watched; cancelled: while it
    is set, a request that waits raises ConsumerClosedError within a moment.
    """

    def __init__(self, session: Session, daemon_pidfd: int | None = None) -> None:
        self._session = session
        self._socket = session.new_socket()
        self._lock = threading.Lock()
        self._requests = 0
        self._closing: str | None = None
        self.cancelled = False
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._daemon_pidfd: int | None = None
        self.watch(daemon_pidfd)

    def watch(self, daemon_pidfd: int | None) -> None:
        """From now on, notice that the daemon's process has ended."""
        self._daemon_pidfd = daemon_pidfd
        if daemon_pidfd is not None:
            self._poller.register(daemon_pidfd, zmq.POLLIN)

    def request(
        self, make: Callable[[int], Message], answer: type[_Reply], timeout_s: float | None, what: str
    ) -> _Reply:
        """Send `make(request number)` and wait for the answer; `what` names the request in errors.

        timeout_s: seconds, None for ever. Raises the daemon's error, DeadlineError, ServiceClosedError.
        """
        self._session.check_process()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            self._requests += 1
            self._send(make(self._requests), what)
            while True:
                reply = self._receive(deadline, timeout_s, what)
                if getattr(reply, "request", None) != self._requests:
                    self._discard(reply)
                elif isinstance(reply, Error):
                    raise from_record(reply.error)
                elif isinstance(reply, answer):
                    return reply
                else:
                    raise ProtocolError(f"{what} was answered by a {reply.kind} message")

    def post(self, message: Message) -> None:
        """Send a message whose answer nobody waits for; one that the daemon is gone for is dropped."""
        if not self._socket.closed:
            self._socket.send(encode(message)[0], zmq.NOBLOCK)

    def close(self) -> None:
        """End the connection. Idempotent."""
        self._socket.close()

    def _send(self, message: Message, what: str) -> None:
        if self._socket.closed:
            raise ServiceClosedError(f"{what}: this client is closed; connect again")
        self._socket.send(encode(message)[0])

    def _receive(self, deadline: float | None, timeout_s: float | None, what: str) -> Message:
        ready = self._poll(deadline, what)
        if self._socket in ready or (ready and self._socket.poll(_LAST_WORDS_MS)):
            return decode(self._socket.recv_multipart(), DAEMON_MESSAGES)
        if ready:
            reason = self._closing or "its process has ended"
            raise ServiceClosedError(f"{what}: the daemon is gone ({reason}); start it and connect again")
        raise DeadlineError(
            f"{what}: no answer within {timeout_s} s; `loader-service status` tells whom the stream waits for"
        )

    def _poll(self, deadline: float | None, what: str) -> dict[Any, int]:
        """What is readable; nothing once the deadline has passed."""
        while True:
            left_s = _LOOK_S if deadline is None else deadline - time.monotonic()
            ready = dict(self._poller.poll(math.ceil(max(0.0, min(left_s, _LOOK_S)) * 1000)))
            if ready or left_s <= 0:
                return ready
            if self.cancelled:
                raise ConsumerClosedError(f"{what}: the consumer was closed while it waited")

    def _discard(self, message: Message) -> None:
        """What answers no request of now: the daemon's own words, or an answer that came too late."""
        if isinstance(message, Closing):
            self._closing = message.reason
            raise ServiceClosedError(f"the daemon ends: {message.reason}; connect again when it is back")
