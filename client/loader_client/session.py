"""What one client shares among its consumers: the identity, the sockets' context, the leases.

Owns `Session`. Invariant: every lease of a view is in `leases` until the view's last array is dead, and each end
is told to the daemon exactly once, at once, from whichever thread (or garbage collection) the array died in.
A forked child sends nothing: the socket is its parent's.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

import zmq

from loader_service.errors import ForkedClientError
from loader_service.wire.protocol import Bye, Message, Release, encode

__all__ = ["Held", "Session"]

_LINGER_MS = 500


@dataclass(frozen=True, slots=True)
class Held:
    """A lease that lives: whose it is, and where it lies."""

    consumer: int
    lane: int
    step: int


class Session:
    """Identity, context and lease book of one client.

    The sockets of one client are told from another's by their first 16 bytes of identity. Ends of leases go over a
    socket of their own, so that they pass while a request waits for its answer in another thread.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.leases: dict[int, Held] = {}
        self._pid = os.getpid()
        self._token = os.urandom(16)
        self._channels = 0
        self._context = zmq.Context()
        self._ended: deque[Message] = deque()
        self._sending = threading.Lock()
        self._closed = False
        self._releases = self.new_socket()

    def new_socket(self) -> zmq.Socket[bytes]:
        """One more connection of this client."""
        socket = self._context.socket(zmq.DEALER)
        socket.linger = _LINGER_MS
        socket.sndhwm = 0  # an end of a lease is never dropped
        socket.routing_id = self._token + self._channels.to_bytes(4, "big")
        self._channels += 1
        socket.connect(self.endpoint)
        return socket

    def check_process(self) -> None:
        """Raises ForkedClientError in a child of the process that connected."""
        if os.getpid() != self._pid:
            raise ForkedClientError(
                f"this client was connected by process {self._pid} and is used in its forked child {os.getpid()}; "
                "call loader_client.connect() in the child, or start it with the spawn method"
            )

    def begin(self, number: int, held: Held) -> None:
        """Book a lease."""
        self.leases[number] = held

    def end(self, number: int) -> None:
        """End a lease; safe in `__del__`, in any thread and at any moment."""
        held = self.leases.pop(number, None)
        if held is None or os.getpid() != self._pid:
            return
        self._ended.append(Release(held.consumer, [number]))
        self._flush()
        if self._closed:
            self.close()

    def close(self) -> None:
        """Close the sockets as soon as no lease lives any more. Idempotent."""
        self._closed = True
        if self.leases or self._context.closed or os.getpid() != self._pid:
            return
        self._ended.append(Bye())
        self._flush()
        self._context.destroy(linger=_LINGER_MS)

    def _flush(self) -> None:
        """Whoever has the lock sends for all; one who comes meanwhile leaves its message and need not wait.

        The queue is looked at again after the lock is let go, so no message stays behind.
        """
        while self._ended and self._sending.acquire(blocking=False):
            try:
                while self._ended:
                    self._send(self._ended.popleft())
            finally:
                self._sending.release()

    def _send(self, message: Message) -> None:
        if not self._releases.closed:
            frames: list[Any] = encode(message)
            self._releases.send_multipart(frames, flags=zmq.NOBLOCK)
