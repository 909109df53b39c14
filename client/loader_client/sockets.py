"""Sockets of one client, and the descriptors that they need.

Owns `SocketFactory`, and `reserved`, within which connections are made. All clients of a process share one ZeroMQ
context. Invariant: that there are enough descriptors is checked before ZeroMQ is asked for anything, because it ends
the process where it cannot have those of a new context (libzmq 4.3.5, epoll.cpp: errno_assert), and tries for ever, in
silence, where it cannot have those of a connection. Fails with ServiceUnavailableError (too few descriptors),
ServiceClosedError (the client is closed), ForkedClientError.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import zmq

from loader_service.errors import ForkedClientError, ServiceClosedError, ServiceUnavailableError

__all__ = ["CLIENT_CLOSED", "SocketFactory", "is_shortage", "require_descriptors", "reserved"]

CLIENT_CLOSED = "this client is closed; connect again"
_LINGER_MS = 500
"""A closed socket goes on sending for so long what it was given."""

_MAX_SOCKETS = 16384
"""The limit for all clients of the process. Each consumer has one, and a daemon lets a client have 4,096 consumers."""
_CONTEXT_DESCRIPTORS = 16
"""A context takes 4, the first two sockets of a client 5; the rest is for what other threads open meanwhile."""
_CONNECTION_DESCRIPTORS = 8
"""A connection takes 2, the watch over the daemon 1, mapping a segment 2, waiting in an event loop 2."""
_OPEN_FILES = "/dev/fd"
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


def is_shortage(error: BaseException | None) -> bool:
    """True where an error says that this process, or the machine, can open no more files."""
    return isinstance(error, OSError | zmq.ZMQError) and error.errno in _NO_DESCRIPTORS


def require_descriptors(count: int = _CONNECTION_DESCRIPTORS) -> None:
    """Raises ServiceUnavailableError unless this process can open `count` more files now."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        free = limit - len(os.listdir(_OPEN_FILES)) + 1  # the listing has one of its own
    except OSError as error:
        if not is_shortage(error):
            return  # there is no such directory here
        raise _shortage_error(error, count) from None
    if limit != resource.RLIM_INFINITY and free < count:
        raise _shortage_error(OSError(errno.EMFILE, os.strerror(errno.EMFILE)), count)


@contextmanager
def reserved(count: int = _CONNECTION_DESCRIPTORS) -> Iterator[None]:
    """Connect within this: the `count` descriptors that it takes are promised to no other thread meanwhile.

    ZeroMQ's thread takes them a moment after it is asked to connect. Raises ServiceUnavailableError where there are not
    as many left.
    """
    _shared.reserve(count)
    try:
        yield
    finally:
        _shared.reserve(-count)


def _shortage_error(error: OSError | zmq.ZMQError, count: int) -> ServiceUnavailableError:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return ServiceUnavailableError(
        f"no more connections can be made ({error.strerror}): this process may have {limit} open files, and {count} "
        f"more are needed; close consumers or other files, or raise the limit (`ulimit -n`)"
    )


class _SharedContext:
    """The ZeroMQ context of this process while any client uses it."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget it in a forked child, to which its threads do not belong."""
        self._lock = threading.Lock()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._users = 0
        self._reserved = 0

    def reserve(self, count: int) -> None:
        with self._lock:
            if count > 0:
                require_descriptors(self._reserved + count)
            self._reserved += count

    def acquire(self) -> None:
        with self._lock:
            if self._context is None:
                require_descriptors(self._reserved + _CONTEXT_DESCRIPTORS)
                context = zmq.Context()
                context.max_sockets = _MAX_SOCKETS
                try:
                    context.socket(zmq.DEALER).close(linger=0)  # the first starts its threads, which need descriptors
                except zmq.ZMQError as error:
                    context.term()
                    raise _shortage_error(error, _CONTEXT_DESCRIPTORS) from error
                self._context = context
            self._users += 1

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
            context, self._context = self._context, None
        if context is not None:
            context.destroy(linger=_LINGER_MS)  # every client has closed its sockets: only what lingers is waited for

    def socket(self) -> zmq.Socket[bytes]:
        """A new DEALER socket, not connected. Raises zmq.ZMQError."""
        with self._lock:
            if self._context is None:
                raise ServiceClosedError(CLIENT_CLOSED)
            return self._context.socket(zmq.DEALER)


_shared = _SharedContext()
os.register_at_fork(after_in_child=_shared.reset)


class SocketFactory:
    """Makes the sockets of one client; safe to call from several threads.

    The sockets of one client are told from another's by the first 16 bytes of their identities; the last 4 number them.
    process_id: the process that connected.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint, self.process_id = endpoint, os.getpid()
        self._token = os.urandom(16)
        self._made = 0
        self._lock = threading.Lock()
        self._closed = False
        _shared.acquire()

    def new(self) -> zmq.Socket[bytes]:
        """Make a socket that connects to the endpoint, now or once somebody listens there.

        Raises:
            ServiceUnavailableError: this process has too few descriptors left.
            ServiceClosedError: the client is closed.
        """
        with self._lock:
            number, self._made = self._made, self._made + 1
            if self._closed:
                raise ServiceClosedError(CLIENT_CLOSED)
            try:
                socket = _shared.socket()
            except zmq.ZMQError as error:
                if not is_shortage(error):
                    raise ServiceClosedError(CLIENT_CLOSED) from error
                raise _shortage_error(error, _CONNECTION_DESCRIPTORS) from error
        socket.linger = _LINGER_MS
        socket.sndhwm = 0  # the end of a lease is never dropped
        socket.rcvhwm = 0  # nor an answer: there are never more of them than a consumer may hold, and one
        socket.routing_id = self._token + number.to_bytes(4, "big")
        socket.connect(self.endpoint)
        return socket

    @property
    def forked(self) -> bool:
        """True in a child of the process that connected."""
        return os.getpid() != self.process_id

    def check_process(self) -> None:
        """Raises ForkedClientError in a child of the process that connected."""
        if os.getpid() != self.process_id:
            raise ForkedClientError(
                f"this client was connected by process {self.process_id} and is used in its forked child "
                f"{os.getpid()}; call loader_client.connect() in the child, or start it with the spawn method"
            )

    def close(self) -> None:
        """Give the context back: the client has closed all its sockets. Idempotent."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed and not self.forked:
            _shared.release()
