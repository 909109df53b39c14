"""What one client shares among its consumers: the identity, the sockets' context, the leases.

Owns `Session`. Invariant: every lease of a view is in the book until the view's last array is dead, and then its end
is told to the daemon, at once, also when it died in a garbage collection, in another thread or under a Ctrl-C. The
death of a view runs no Python code: the callback of its weak reference is `SimpleQueue.put`, written in C, which no
signal interrupts. A thread of the session's own wakes up, looks who is dead, and says so; what it has not said it
finds again. A forked child has no such thread and says nothing: the socket is its parent's.
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from queue import SimpleQueue
from typing import Any

import zmq

from loader_service.errors import ForkedClientError, ServiceClosedError, ServiceUnavailableError
from loader_service.wire.messages import Bye, Close, Message, Release
from loader_service.wire.protocol import encode

__all__ = ["CLIENT_CLOSED", "Lease", "Session"]

CLIENT_CLOSED = "this client is closed; connect again"

_LINGER_MS = 500
_MAX_SOCKETS = 8192
"""Each consumer has one, and a daemon lets a client have 4,096 consumers."""
_JOIN_S = 5.0


class Lease(weakref.ref[Any]):
    """A lease as the book keeps it: a weak reference to what numpy builds the arrays on, and where they lie."""

    __slots__ = ("lane", "step")
    lane: int
    step: int


class Session:
    """Identity, context and lease book of one client.

    The sockets of one client are told from another's by their first 16 bytes of identity. leases: (consumer, lease
    number) -> Lease; consumers: number -> weak reference, so that one that is dropped without being closed is closed.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.leases: dict[tuple[int, int], Lease] = {}
        self.consumers: dict[int, weakref.ref[Any]] = {}
        self._pid = os.getpid()
        self._token = os.urandom(16)
        self._channels = 0
        self._context = zmq.Context()
        self._context.max_sockets = _MAX_SOCKETS
        self._deaths: SimpleQueue[Any] = SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(
            target=self._tell_deaths, args=(self.new_socket(),), name="loader-client", daemon=True
        )
        self._thread.start()

    def new_socket(self) -> zmq.Socket[bytes]:
        """One more connection of this client. Raises ServiceClosedError, ServiceUnavailableError."""
        try:
            socket = self._context.socket(zmq.DEALER)
        except zmq.ZMQError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise ServiceClosedError(CLIENT_CLOSED) from error
            raise ServiceUnavailableError(
                f"no more connections can be made ({error.strerror}); each consumer takes one, with its descriptors: "
                "close some, or raise the limit (`ulimit -n`)"
            ) from error
        socket.linger = _LINGER_MS
        socket.sndhwm = 0  # an end of a lease is never dropped
        socket.rcvhwm = 0  # nor what the daemon sends: never more than a consumer may hold
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

    def keep(self, number: int, memory: object, consumer: int, lane: int, step: int) -> None:
        """Book a lease that lasts as long as `memory` does."""
        lease = Lease(memory, self._deaths.put)
        lease.lane, lease.step = lane, step
        self.leases[consumer, number] = lease

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that connected."""
        return os.getpid() != self._pid

    def say(self, message: Message) -> None:
        """Tell the daemon something that has no answer, from any thread; no signal comes between."""
        self._deaths.put(message)

    def dismiss(self, consumer: int) -> None:
        """Close a consumer that nobody reads any more, also one whose Open was given up; what it holds stays leased."""
        self.say(Close(0, consumer, self.holds(consumer)))
        self.consumers.pop(consumer, None)

    def holds(self, consumer: int) -> list[int]:
        """The numbers of the leases of a consumer that live."""
        return [lease for _, lease in self.held(consumer)]

    def enlist(self, number: int, consumer: object) -> None:
        """Book a consumer: it is closed when it is dropped."""
        self.consumers[number] = weakref.ref(consumer, self._deaths.put)

    def held(self, consumer: int) -> dict[tuple[int, int], Lease]:
        """The leases of a consumer whose memory is alive, by (consumer, number)."""
        found = list(self.leases.items())
        return {key: lease for key, lease in found if key[0] == consumer and lease() is not None}

    def close(self) -> None:
        """Say Bye as soon as no lease lives any more; waits for it if that is now. Idempotent."""
        self._closed = True
        if os.getpid() == self._pid:
            self._deaths.put(None)
            if not any(lease() is not None for lease in list(self.leases.values())):
                self._thread.join(_JOIN_S)

    def _tell_deaths(self, socket: zmq.Socket[bytes]) -> None:
        """The thread: tell what has died, until the session is closed and nothing is left to die."""
        while not (self._closed and not self.leases):
            said = self._deaths.get()
            if isinstance(said, Message):
                _say(socket, said)
            for key, lease in list(self.leases.items()):
                if lease() is None:
                    _say(socket, Release(key[0], [key[1]]))
                    self.leases.pop(key)
            for number, consumer in list(self.consumers.items()):
                if consumer() is None:
                    _say(socket, Close(0, number, self.holds(number)))
                    self.consumers.pop(number, None)
        _say(socket, Bye())
        self._context.destroy(linger=_LINGER_MS)


def _say(socket: zmq.Socket[bytes], message: Message) -> None:
    socket.send(encode(message)[0], zmq.NOBLOCK)
