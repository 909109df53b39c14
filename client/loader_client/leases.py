"""Leases of one client, and the thread that tells the daemon of their ends.

Owns `LeaseBook` and `Lease`. Invariant: every lease of a view is in the book until the view's last array is dead, and
then its end is told to the daemon, at once, also when it died in a garbage collection, in another thread or under a
Ctrl-C. The death of a view runs no Python code: the callback of its weak reference is `SimpleQueue.put`, written in C,
which no signal interrupts. The book's own thread takes the dead reference from the queue and sends the message. A
forked child has no such thread and sends nothing: the socket is its parent's.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

import zmq

from loader_client.sockets import SocketFactory
from loader_service.errors import ServiceUnavailableError
from loader_service.wire.messages import Bye, Close, Message, Release
from loader_service.wire.protocol import encode

__all__ = ["Lease", "LeaseBook"]

_JOIN_S = 5.0
_REST_S = 10.0
"""So often, the book's thread throws away what the daemon has sent and nobody waits for, such as pings."""


class Lease(weakref.ref[Any]):
    """A lease as the book keeps it: a weak reference to the memory on which numpy builds the arrays, and its place.

    lane_id: the lane that it is in, or -1 where it is in no step's way any more.
    """

    __slots__ = ("consumer_id", "lane_id", "lease_id", "step")
    consumer_id: int
    lease_id: int
    lane_id: int
    step: int


class _ConsumerReference(weakref.ref[Any]):
    """A weak reference to a consumer, by which one that is dropped without being closed is closed."""

    __slots__ = ("consumer_id",)
    consumer_id: int


class LeaseBook:
    """All leases of one client, by consumer.

    put: what a lease's weak reference calls when its memory dies; rest: called now and then by the book's thread.
    """

    def __init__(self, sockets: SocketFactory, rest: Callable[[], None]) -> None:
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self.put = self._queue.put
        self._sockets, self._rest = sockets, rest
        self._leases: dict[int, dict[int, Lease]] = {}
        self._consumers: dict[int, _ConsumerReference] = {}
        self._closed = False
        socket = sockets.new()
        self._thread = threading.Thread(target=self._tell_ends, args=(socket,), name="loader-client", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            socket.close(linger=0)
            raise ServiceUnavailableError(
                f"no thread can be started for this client ({error}); end some, or raise the limit (`ulimit -u`)"
            ) from error

    def enlist(self, consumer_id: int, consumer: object) -> dict[int, Lease]:
        """Book a consumer, which is closed when it is dropped.

        Returns:
            Its leases by their ids, for it to add to; those whose memory is dead go by themselves.
        """
        reference = _ConsumerReference(consumer, self.put)
        reference.consumer_id = consumer_id
        self._consumers[consumer_id] = reference
        return self._leases.setdefault(consumer_id, {})

    def holds(self, consumer_id: int) -> list[int]:
        """The ids of a consumer's leases whose memory is alive."""
        leases = list(self._leases.get(consumer_id, {}).values())
        return [lease.lease_id for lease in leases if lease() is not None]

    def dismiss(self, consumer_id: int) -> None:
        """Close a consumer without waiting for an answer, also one whose Open was given up; its leases last on."""
        self._consumers.pop(consumer_id, None)
        self.put(Close(0, consumer_id, self.holds(consumer_id)))

    def close(self) -> None:
        """Send Bye as soon as no memory is leased any more; wait for it if that is now. Idempotent."""
        self._closed = True
        if self._sockets.forked:
            return
        self.put(None)
        if not any(lease() is not None for leases in list(self._leases.values()) for lease in list(leases.values())):
            self._thread.join(_JOIN_S)

    # --- in its own thread -------------------------------------------------------------------------------

    def _tell_ends(self, socket: zmq.Socket[bytes]) -> None:
        """Tell of each end, until the book is closed and nothing is leased."""
        rest_at = monotonic() + _REST_S
        while not self._closed or any(list(self._leases.values())):
            with suppress(Empty):
                self._tell(socket, self._queue.get(timeout=max(0.0, rest_at - monotonic())))
            if monotonic() >= rest_at:
                rest_at = monotonic() + _REST_S
                _throw_away(socket)
                self._rest()
        _send(socket, Bye())
        socket.close()
        self._sockets.close()

    def _tell(self, socket: zmq.Socket[bytes], ended: Message | Lease | _ConsumerReference | None) -> None:
        if isinstance(ended, Lease):
            lease_id = getattr(ended, "lease_id", None)  # None: it died before it was booked; the next Get tells
            if lease_id is not None:
                _send(socket, Release(ended.consumer_id, [lease_id]))
                leases = self._leases.get(ended.consumer_id, {})
                leases.pop(lease_id, None)
                self._forget_if_done(ended.consumer_id)
        elif isinstance(ended, _ConsumerReference):
            if self._consumers.pop(ended.consumer_id, None) is not None:
                _send(socket, Close(0, ended.consumer_id, self.holds(ended.consumer_id)))
            self._forget_if_done(ended.consumer_id)
        elif isinstance(ended, Message):
            _send(socket, ended)
            if isinstance(ended, Close):
                self._forget_if_done(ended.consumer)
            _throw_away(socket)  # the answers to those before it

    def _forget_if_done(self, consumer_id: int) -> None:
        if consumer_id not in self._consumers and not self._leases.get(consumer_id):
            self._leases.pop(consumer_id, None)


def _send(socket: zmq.Socket[bytes], message: Message) -> None:
    socket.send(encode(message)[0], zmq.NOBLOCK)


def _throw_away(socket: zmq.Socket[bytes]) -> None:
    """Receive the answers that nobody waits for, which would pile up."""
    while int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
        socket.recv()
