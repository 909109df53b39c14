"""One connection of a client: a stream socket that never blocks, what has come on it, and what is to go out.

Owns `Connection`. Invariant: at most `_MAX_QUEUED_BYTES` wait to go out; a reply beyond that is dropped, for a peer
that does not read must cost nothing. What is sent is sent whole.
"""

from __future__ import annotations

import socket
from collections import deque

from loader_service.daemon.server.zmtp import GREETING, READY, FrameReader, PeerError, frame

__all__ = ["Connection"]

_READ_BYTES = 1 << 12
_MAX_QUEUED, _MAX_QUEUED_BYTES = 1000, 1 << 22


class Connection:
    """One peer, as the daemon knows it.

    Attributes:
        reader: the frames that come.
        pending_bytes: how much waits to go out.
    """

    def __init__(self, peer: socket.socket) -> None:
        peer.setblocking(False)
        self._socket = peer
        self.fd = peer.fileno()
        self.reader = FrameReader()
        self.pending_bytes = 0
        self._queue: deque[bytes] = deque()
        self._send(GREETING + READY)

    @property
    def identity(self) -> bytes | None:
        return self.reader.identity

    @property
    def is_sent(self) -> bool:
        """True where nothing waits to go out."""
        return not self._queue

    def receive(self) -> None:
        """Take what has come: 4 KiB, or all of a frame that was allowed. Raises PeerError at its end."""
        try:
            data = self._socket.recv(max(_READ_BYTES, self.reader.missing))
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise PeerError("") from error  # the peer is gone
        if not data:
            raise PeerError("")
        self.reader.feed(data)

    def send(self, body: bytes) -> None:
        """Send a message, or keep it until the peer reads; one too many is dropped. Raises PeerError."""
        self.send_bytes(frame(body))

    def send_bytes(self, data: bytes) -> None:
        """Send bytes of the protocol itself, dropped like messages: a peer may ask for them without end."""
        if len(self._queue) < _MAX_QUEUED and self.pending_bytes < _MAX_QUEUED_BYTES:
            self._send(data)

    def flush(self) -> None:
        """Send what waits, as far as the peer takes it. Raises PeerError."""
        try:
            while self._queue:
                data = self._queue.popleft()
                sent = self._socket.send(data)
                self.pending_bytes -= sent
                if sent < len(data):
                    self._queue.appendleft(data[sent:])
                    return
        except (BlockingIOError, InterruptedError):
            self._queue.appendleft(data)
        except OSError as error:
            raise PeerError("") from error  # the peer is gone

    def close(self) -> None:
        """Hang up. Idempotent."""
        self._socket.close()

    def _send(self, data: bytes) -> None:
        self._queue.append(data)
        self.pending_bytes += len(data)
        if len(self._queue) == 1:
            self.flush()
