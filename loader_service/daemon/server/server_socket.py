"""The daemon's socket: frames in, checked messages out, replies back.

Owns `ServerSocket`. Invariant: what does not decode is answered by an error and goes no further; a peer that is gone,
or does not read, never blocks the daemon; connections never use up its descriptors. What a peer can cost is bounded:

- Whoever is no member (has not said Hello) may send messages of `_MAX_STRANGER_BYTES`; a longer one, or one of several
  frames, ends the connection before any of it is decoded, and so does a handshake that takes too long.
- Of each connection 4 KiB are read at a time, so that one with much to say does not keep the others waiting.
- A frame above `MAX_SMALL` bytes stays with its sender until it is its turn: one is read at a time, and for
  `_LARGE_PAUSE` times as long as the last one took none is, so four fifths of the daemon's time are left to others.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count

from loader_service.daemon.server.connection import Connection
from loader_service.daemon.server.connection_limiter import is_over
from loader_service.daemon.server.event_loop import Loop
from loader_service.daemon.server.permissions import Permissions
from loader_service.daemon.server.zmtp import Frame, PeerError, pong
from loader_service.errors import EndpointError, ProtocolError
from loader_service.wire.endpoint import socket_path
from loader_service.wire.messages import CLIENT_MESSAGES, Error, Message
from loader_service.wire.protocol import MAX_MESSAGE_BYTES, decode, encode, request_of

__all__ = ["ServerSocket"]

_log = logging.getLogger("loader_service.server")
_LINGER_S = 1.0
_HANDSHAKE_S = 5.0
"""For the handshake of a connection, and for a large frame that was begun."""
_MAX_STRANGER_BYTES = 1 << 12
_HEAD_BYTES = 9
_LARGE_PAUSE = 4.0
_MAX_REFUSED = 4096
_BACKLOG = 512
_RETRY_S = 0.1
_ANONYMOUS = b"\0"
_ACCEPTED = 16
"""Connections taken from the listener before others get their turn."""


class ServerSocket:
    """A listening socket in the loop, and its connections, each known by the identity of the peer's socket.

    Args:
        loop: where it waits.
        handle: called with each message and whose it is.
        handled: called after the messages of one turn of a connection.
        is_member: whether the peer of that identity has said Hello.
    """

    def __init__(
        self,
        loop: Loop,
        handle: Callable[[bytes, Message], None],
        handled: Callable[[], None],
        is_member: Callable[[bytes], bool] = lambda identity: True,
    ) -> None:
        self._loop, self._handle, self._handled, self._is_member = loop, handle, handled, is_member
        self._listener: socket.socket | None = None
        self._anonymous = count()
        self._taken = 0
        self._connections: dict[int, Connection] = {}
        self._by_identity: dict[bytes, Connection] = {}
        self._large: deque[Connection] = deque()
        self._reading: Connection | None = None
        self._reading_until_s = 0.0
        self._file: tuple[int, int] | None = None

    def bind(self, endpoint: str, access: Permissions | None = None) -> None:
        """Listen, for those who have access: by default this user only. Raises EndpointError.

        Called again, it listens anew; connections that are there stay.
        """
        path = socket_path(endpoint)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(path))
            (access or Permissions()).open_socket(path)
            listener.listen(_BACKLOG)
            found = os.stat(path)
        except OSError as error:
            listener.close()
            raise EndpointError(f"the endpoint {endpoint} cannot be bound: {error.strerror}") from error
        listener.setblocking(False)
        self._close_listener()
        self._listener, self._file = listener, (found.st_dev, found.st_ino)
        self._loop.watch(listener.fileno(), self._accept)

    def is_bound_at(self, endpoint: str) -> bool:
        """Return whether the endpoint's file still is this socket: somebody may have cleaned up."""
        try:
            found = os.stat(socket_path(endpoint))
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._file

    def send(self, identity: bytes, message: Message) -> bool:
        """Send to the socket of that identity; false where it is not connected any more."""
        connection = self._by_identity.get(identity)
        if connection is None:
            return False
        try:
            connection.send(encode(message)[0])
        except PeerError as error:
            self._end(connection, error)
            return False
        self._watch_queue(connection)
        return True

    def refuse(self, reply: Message) -> None:
        """Answer everything that has come in meanwhile with `reply`: at the end, when nobody handles it any more."""
        self._handle, self._handled = partial(self._answer, reply), lambda: None
        for connection in list(self._connections.values())[:_MAX_REFUSED]:  # a flood does not keep it from ending
            if connection is not self._reading and connection not in self._large:
                self._read(connection)

    def _answer(self, reply: Message, identity: bytes, message: Message) -> None:
        self.send(identity, reply)

    def close(self) -> None:
        """Send what is queued, for a second at most, then close. Idempotent."""
        self._close_listener()
        deadline = time.monotonic() + _LINGER_S
        while sum(map(self._is_pending, self._connections.values())) and time.monotonic() < deadline:
            time.sleep(0.01)
        for connection in list(self._connections.values()):
            self._end(connection)

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._loop.unwatch(self._listener.fileno())
            self._listener.close()
            self._listener = None

    @staticmethod
    def _is_pending(connection: Connection) -> bool:
        """Try once more; true where something still waits to go out to a peer that is there."""
        with suppress(PeerError):
            connection.flush()
            return not connection.is_sent
        return False

    # --- connections -------------------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._listener is not None  # it is watched only while it is open
        for _ in range(_ACCEPTED):
            try:
                peer, _ = self._listener.accept()
            except OSError as error:  # nobody else, or one that has gone again
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._pause_listener()
                return
            if is_over(peer.fileno()):
                peer.close()
            else:
                self._begin(peer)

    def _pause_listener(self) -> None:
        """No descriptor is left: whoever waits is accepted a moment later."""
        assert self._listener is not None  # it has just failed to accept
        listener = self._listener
        self._loop.watch(listener.fileno(), None)

        def resume() -> None:
            if self._listener is listener:
                self._loop.watch(listener.fileno(), self._accept)

        self._loop.after(_RETRY_S, resume)

    def _begin(self, peer: socket.socket) -> None:
        try:
            connection = Connection(peer)
        except PeerError:
            peer.close()
            return
        self._connections[connection.fd] = connection
        self._loop.watch(connection.fd, lambda: self._read(connection))
        self._watch_queue(connection)
        self._loop.after(_HANDSHAKE_S, lambda: self._end_silent(connection))

    def _end_silent(self, connection: Connection) -> None:
        if connection.identity is None:
            self._end(connection, f"no handshake within {_HANDSHAKE_S:g} s")

    def _end(self, connection: Connection, why: PeerError | str = "") -> None:
        """Hang up on a peer that is gone, or that broke a rule: then `why` says which. Idempotent."""
        if not self._is_open(connection):
            return  # its descriptor may be another's by now
        if str(why):
            _log.warning("a connection was ended: %s", why)
        self._loop.unwatch(connection.fd)
        del self._connections[connection.fd]
        if connection.identity is not None and self._by_identity.get(connection.identity) is connection:
            del self._by_identity[connection.identity]
        if connection in self._large:
            self._large.remove(connection)
        connection.close()
        if self._reading is connection:
            self._reading = None
            self._next_large()

    def _is_open(self, connection: Connection) -> bool:
        """False once it was ended: what it still had to say, and what waits for it, comes to nothing."""
        return self._connections.get(connection.fd) is connection

    def _watch_queue(self, connection: Connection) -> None:
        """Wait until the peer takes what is queued for it."""
        if connection.is_sent:
            self._loop.watch_writeable(connection.fd, None)
        else:
            self._loop.watch_writeable(connection.fd, lambda: self._flush(connection))

    def _flush(self, connection: Connection) -> None:
        try:
            connection.flush()
        except PeerError as error:
            self._end(connection, error)
        else:
            self._watch_queue(connection)

    # --- frames ------------------------------------------------------------------------------------------

    def _read(self, connection: Connection) -> None:
        began, taken = time.monotonic(), self._taken
        reader = connection.reader
        try:
            connection.receive()
            while (found := reader.next()) is not None:
                self._take(connection, found)
                if not self._is_open(connection):  # an answer found the peer gone
                    raise PeerError("")
            if reader.announced:
                self._announce(connection)
            elif len(reader) > _MAX_STRANGER_BYTES + _HEAD_BYTES and not self._knows(connection):
                raise PeerError(f"a message of more than {_MAX_STRANGER_BYTES} bytes before any Hello")
        except PeerError as error:
            self._end(connection, error)
        else:
            if self._reading is connection and not reader.is_within:
                self._reading = None
                self._loop.after(_LARGE_PAUSE * (time.monotonic() - began), self._next_large)
        if self._taken != taken:
            self._handled()

    def _knows(self, connection: Connection) -> bool:
        return connection.identity is not None and self._is_member(connection.identity)

    def _take(self, connection: Connection, found: Frame) -> None:
        identity = connection.identity
        assert identity is not None  # the reader gives no frame before
        if found.is_command:
            if self._by_identity.get(identity) is not connection:
                self._name(connection)
            if found.body.startswith(b"\x04PING"):
                connection.send_bytes(pong(found.body))
                self._watch_queue(connection)
            return
        if len(found.body) > _MAX_STRANGER_BYTES and not self._is_member(identity):
            raise PeerError(f"a message of {len(found.body)} bytes before any Hello")
        try:
            message = decode([found.body], CLIENT_MESSAGES)
        except ProtocolError as error:
            _log.warning("a message was refused: %s", error.message)
            self.send(identity, Error(request_of([found.body]), error.to_record()))
        else:
            self._taken += 1
            self._handle(identity, message)

    def _name(self, connection: Connection) -> None:
        """A peer is known by its identity from its handshake on; an earlier connection of the same socket ends."""
        reader = connection.reader
        reader.identity = reader.identity or _ANONYMOUS + next(self._anonymous).to_bytes(8, "big")
        before = self._by_identity.get(reader.identity)
        if before is not None:
            self._end(before)
        self._by_identity[reader.identity] = connection

    # --- large frames --------------------------------------------------------------------------------------

    def _announce(self, connection: Connection) -> None:
        """A frame above `MAX_SMALL` bytes has begun: read on when it is its turn. Raises PeerError."""
        length = connection.reader.announced
        if length > MAX_MESSAGE_BYTES or not self._knows(connection):
            raise PeerError(f"a message of {length} bytes")
        self._loop.watch(connection.fd, None)
        self._large.append(connection)
        if self._reading is None and len(self._large) == 1:
            self._loop.after(0, self._next_large)

    def _next_large(self) -> None:
        if self._reading is None and self._large:
            self._reading = connection = self._large.popleft()
            self._reading_until_s = self._loop.clock() + _HANDSHAKE_S
            connection.reader.allow()
            self._loop.watch(connection.fd, lambda: self._read(connection))
            self._loop.after(_HANDSHAKE_S, self._end_unfinished)

    def _end_unfinished(self) -> None:
        if self._reading is not None and self._loop.clock() >= self._reading_until_s:
            self._end(self._reading, "a large message that does not end")
