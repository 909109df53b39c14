"""Descriptors: as many as this process may have, and never all of them.

Owns `raise_limit` and `ConnectionLimiter`. Invariant: connections of clients use at most half of the
descriptors. ZeroMQ ends the
process when it cannot accept a connection for want of a descriptor (libzmq 4.3.5, ipc_listener.cpp: errno_assert), so
whoever comes when half are used is hung up on at once; a client tries again by itself. ZeroMQ's thread tells of each
connection and waits where it is more than 1001 ahead (and as many may have been hung up on and not be closed yet), so
that with 8,192 descriptors or more this cannot come too late. Fails with EndpointError where there are too few to
begin with.
"""

from __future__ import annotations

import logging
import os
import resource
import socket
import struct
from contextlib import suppress
from pathlib import Path

import zmq

from loader_service.daemon.server.event_loop import Loop
from loader_service.errors import EndpointError

__all__ = ["ConnectionLimiter", "raise_limit"]

_log = logging.getLogger("loader_service.descriptors")
_OWN, _PER_WORKER = 128, 4
_EVENT = struct.Struct("=HI")  # the event's number and its value: of EVENT_ACCEPTED, the descriptor
_FEW = 8192


def raise_limit(workers: int) -> None:
    """Let this process have all the descriptors that it may have. Raises EndpointError where they are too few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    needed = _OWN + _PER_WORKER * workers
    if soft != resource.RLIM_INFINITY and soft < needed:
        raise EndpointError(
            f"this process may have {soft} open files, and {workers} workers and their clients need at least {needed}; "
            "raise the limit (ulimit -n, LimitNOFILE= of a systemd unit)"
        )
    if soft != resource.RLIM_INFINITY and soft < _FEW:
        _log.info("this process may have %d open files only; with %d a flood of connections cannot end it", soft, _FEW)


def _is_over(fd: int) -> bool:
    """Whether half of the descriptors are used: the lowest that was free was as high as that."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit != resource.RLIM_INFINITY and fd >= limit // 2


class ConnectionLimiter:
    """Watches who connects to `listener`, bound at `path`, and hangs up on them while descriptors are short."""

    def __init__(self, loop: Loop, context: zmq.Context[zmq.Socket[bytes]], listener: zmq.Socket[bytes]) -> None:
        self._loop, self._listener = loop, listener
        self._path = b""
        self._events = context.socket(zmq.PAIR)
        self._events.rcvhwm = 1  # and 1000 on its side

    def open(self, path: Path) -> None:
        """Begin, before the socket is bound at `path`."""
        self._path = os.fsencode(path)
        place = f"inproc://gate-{id(self)}"
        self._listener.monitor(place, zmq.EVENT_ACCEPTED)
        self._events.connect(place)
        self._loop.watch(self._events, self._look)

    def close(self) -> None:
        """Before the context ends. Idempotent."""
        self._loop.unwatch(self._events)
        if not self._events.closed:
            if self._path:
                self._look()  # ZeroMQ's thread may wait for that, and the next call for it
                self._listener.disable_monitor()
            self._events.close(linger=0)

    def _look(self) -> None:
        with suppress(zmq.Again):
            while True:
                event, fd = _EVENT.unpack(self._events.recv_multipart(zmq.NOBLOCK)[0])
                if event == zmq.EVENT_ACCEPTED and _is_over(fd):
                    self._hang_up(fd)

    def _hang_up(self, fd: int) -> None:
        """End a connection; the number may be another's by now, so that only one of this listener's is touched."""
        with suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:
            if os.fsencode(connection.getsockname()) == self._path:
                connection.shutdown(socket.SHUT_RDWR)
                _log.warning(
                    "a connection was refused: descriptor %d of at most %d",
                    fd,
                    resource.getrlimit(resource.RLIMIT_NOFILE)[0],
                )
