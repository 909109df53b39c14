"""The connection to a daemon.

Owns `connect` and `Client`. Invariant: a client belongs to the process that connected it. Fails with
ServiceUnavailableError where nothing answers within the deadline.
"""

from __future__ import annotations

import os
import select
import warnings
import weakref
from itertools import count
from types import TracebackType
from typing import Any, Self

from loader_client.channel import Channel
from loader_client.consumer import Consumer, Link, Span
from loader_client.session import Session
from loader_service.core.steps import checked_span
from loader_service.errors import DeadlineError, LoaderServiceError, ServiceUnavailableError
from loader_service.wire.endpoint import default_endpoint, socket_path
from loader_service.wire.process import open_pidfd, pid_namespace
from loader_service.wire.protocol import Close, Done, Hello, Open, Opened, Report, Status, Stop, Welcome

__all__ = ["Client", "connect"]

_TIMEOUT_S = 10.0


class Client:
    """One process's connection to a daemon; `connect` makes it. Any number of consumers, from any threads."""

    def __init__(self, endpoint: str, timeout_s: float) -> None:
        socket_path(endpoint)
        self.endpoint = endpoint
        self._timeout_s = timeout_s
        self._daemon_pidfd: int | None = None
        self._consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()
        self._numbers = count(1)
        self._session = Session(endpoint)
        self._channel = Channel(self._session)
        self._closed = False
        try:
            self._greet()
        except LoaderServiceError:
            self.close()
            raise

    def _greet(self) -> None:
        try:
            welcome = self._channel.request(
                lambda request: Hello(request, os.getpid(), pid_namespace()), Welcome, self._timeout_s, "connecting"
            )
        except DeadlineError:
            raise ServiceUnavailableError(
                f"no daemon answered at {self.endpoint} within {self._timeout_s} s; start one with "
                "`loader-service serve CONFIG.toml`, or name its endpoint"
            ) from None
        self.streams = tuple(welcome.streams)
        self.daemon_pid = welcome.pid
        if welcome.pid_namespace == pid_namespace():
            self._daemon_pidfd = open_pidfd(welcome.pid)
            self._channel.watch(self._daemon_pidfd)

    def open(
        self,
        stream: str,
        start_step: int = 0,
        stop_step: int | None = None,
        *,
        hold_timeout_s: float = 5.0,
    ) -> Consumer:
        """A consumer of `stream` whose next step is `start_step` >= 0.

        stop_step: iteration ends before it (None: never). hold_timeout_s: seconds that a request waits at the hold
        limit before HoldLimitError. Raises UnknownStreamError, MemoryLimitError, SharedMemoryError.
        """
        start, stop = checked_span(start_step, stop_step)
        number = next(self._numbers)
        try:
            opened = self._channel.request(
                lambda request: Open(request, number, stream, start), Opened, self._timeout_s, f"opening {stream!r}"
            )
            link = Link(self, self._session, self._daemon_pidfd)
            consumer = Consumer(link, number, opened, Span(stream, start, stop, hold_timeout_s))
        except BaseException:  # Ctrl-C too: the daemon may have opened it, and others would wait for it
            self._channel.post(Close(0, number, []))
            raise
        self._consumers.add(consumer)
        return consumer

    def status(self, *, builds: bool = False) -> dict[str, Any]:
        """The daemon's streams, slots, workers and consumers; with `builds`, how often steps were built."""
        report = self._channel.request(
            lambda request: Status(request, builds), Report, self._timeout_s, "asking for the status"
        )
        return report.status

    def stop_service(self) -> None:
        """Ask the daemon to end; it tells all its clients."""
        self._channel.request(Stop, Done, self._timeout_s, "stopping the daemon")

    def wait_for_end(self, timeout_s: float) -> bool:
        """Wait until the daemon's process has ended; false where it has not, or cannot be seen from here."""
        return self._daemon_pidfd is not None and bool(select.select([self._daemon_pidfd], [], [], timeout_s)[0])

    def close(self) -> None:
        """Close the consumers and the connection. Idempotent. Arrays that are alive stay valid."""
        if self._closed:
            return
        self._closed = True
        for consumer in list(self._consumers):
            consumer.close()
        self._channel.close()
        self._session.close()
        if self._daemon_pidfd is not None:
            os.close(self._daemon_pidfd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()
            warnings.warn(f"the client of {self.endpoint} was not closed", ResourceWarning, stacklevel=2, source=self)


def connect(endpoint: str | None = None, *, timeout_s: float = _TIMEOUT_S) -> Client:
    """Connect to the daemon at `endpoint` (None: LOADER_SERVICE_ENDPOINT, else the default one of this user).

    Waits up to `timeout_s` seconds for a daemon that is starting. Raises ServiceUnavailableError, EndpointError.
    """
    return Client(endpoint or default_endpoint(), timeout_s)
