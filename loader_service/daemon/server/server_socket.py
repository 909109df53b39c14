"""The daemon's socket: frames in, checked messages out, replies back.

Owns `ServerSocket`. Invariant: what does not decode is answered by an error and goes no further; a peer that is
gone, or
does not read, never blocks the daemon; connections never use up its descriptors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

import zmq

from loader_service.daemon.server.connection_limiter import ConnectionLimiter
from loader_service.daemon.server.event_loop import Loop
from loader_service.daemon.server.permissions import Permissions
from loader_service.errors import EndpointError, ProtocolError
from loader_service.wire.endpoint import socket_path
from loader_service.wire.messages import CLIENT_MESSAGES, Error, Message
from loader_service.wire.protocol import MAX_MESSAGE_BYTES, decode, encode, request_of

__all__ = ["ServerSocket"]

_log = logging.getLogger("loader_service.front")
_LINGER_MS = 1000
_HANDSHAKE_MS = 5000
"""Who connects and says nothing is hung up on after that."""
_MAX_REFUSED = 4096
_BURST = 64
"""Messages taken from the socket before others get their turn."""


class ServerSocket:
    """A ROUTER socket in the loop; each message goes to `handle(identity, message)`, and `handled()` ends a burst."""

    def __init__(self, loop: Loop, handle: Callable[[bytes, Message], None], handled: Callable[[], None]) -> None:
        self._loop, self._handle, self._handled = loop, handle, handled
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = _LINGER_MS
        self._socket.handshake_ivl = _HANDSHAKE_MS
        self._gate = ConnectionLimiter(loop, self._context, self._socket)

    def bind(self, endpoint: str, access: Permissions | None = None) -> None:
        """Listen, for those who have access: by default this user only. Raises EndpointError."""
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        try:
            self._gate.open(socket_path(endpoint))
            self._socket.bind(endpoint)
            (access or Permissions()).open_socket(socket_path(endpoint))
        except (OSError, zmq.ZMQError) as error:
            raise EndpointError(f"the endpoint {endpoint} cannot be bound: {error.strerror}") from error
        self._loop.watch(self._socket, self._receive)

    def send(self, identity: bytes, message: Message) -> bool:
        """Send to the socket of that identity; false where it is not connected any more."""
        try:
            self._socket.send(identity, zmq.NOBLOCK | zmq.SNDMORE)
            self._socket.send(encode(message)[0], zmq.NOBLOCK)  # who takes the one takes the other
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return error.errno == zmq.EAGAIN  # its queue is full: it is there, and does not read
        return True

    def refuse(self, reply: Message) -> None:
        """Answer everything that has come in meanwhile with `reply`: at the end, when nobody handles it any more."""
        with suppress(zmq.Again):
            for _ in range(0 if self._socket.closed else _MAX_REFUSED):  # a flood does not keep it from ending
                self.send(self._socket.recv_multipart(zmq.NOBLOCK)[0], reply)

    def close(self) -> None:
        """Send what is queued, then close. Idempotent."""
        self._loop.unwatch(self._socket)
        self._gate.close()
        self._context.destroy(linger=_LINGER_MS)

    def _receive(self) -> None:
        with suppress(zmq.Again):
            for _ in range(_BURST):
                self._take(*self._socket.recv_multipart(zmq.NOBLOCK))
        self._handled()

    def _take(self, identity: bytes, *frames: bytes) -> None:
        try:
            message = decode(frames, CLIENT_MESSAGES)
        except ProtocolError as error:
            _log.warning("a message was refused: %s", error.message)
            self.send(identity, Error(request_of(frames), error.to_record()))
        else:
            self._handle(identity, message)
