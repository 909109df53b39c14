"""A process's connection to the daemon.

Owns `connect` and `Client`. Invariant: a client belongs to the process that connected it. Fails with
ServiceUnavailableError where nothing answers within the deadline.
"""

from __future__ import annotations

import math
import select
import warnings
import weakref
from operator import index
from types import TracebackType
from typing import Any, Literal, Self

from loader_client.consumer import Consumer
from loader_client.daemon_connection import DaemonConnection, OpenOptions
from loader_service.contract.checks import checked_span
from loader_service.contract.shards import Shard
from loader_service.errors import ArgumentError
from loader_service.wire.endpoint import default_endpoint
from loader_service.wire.messages import Done, Report, Status, Stop, Tune

__all__ = ["Client", "connect"]

_TIMEOUT_S = 10.0
_RECONNECT_S = 30.0
_MAX_PATIENCE_S = 1e6
_MAX_HOLD = 65535


class Client:
    """One process's connection to a daemon; `connect` makes it. Any number of consumers, from any threads."""

    def __init__(self, endpoint: str, timeout_s: float, reconnect_s: float) -> None:
        self.endpoint = endpoint
        self._consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()
        self._gateway = DaemonConnection(endpoint, timeout_s, reconnect_s)
        self._closed = False
        try:
            self._gateway.greet()
        except BaseException:
            self.close()
            raise

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of the daemon's streams."""
        return self._gateway.streams

    @property
    def daemon_pid(self) -> int:
        """The process of the daemon that was last greeted."""
        return self._gateway.daemon_pid

    def open(
        self,
        stream: str,
        start_step: int | Literal["live"] = 0,
        stop_step: int | None = None,
        *,
        pace: Literal["split", "wait"] = "split",
        patience_s: float = 1.0,
        hold: int | None = None,
        shard: tuple[int, int] = (0, 1),
        hold_timeout_s: float = 5.0,
    ) -> Consumer:
        """A consumer of `stream` whose next step is `start_step` >= 0, or "live": where the most consumers are now.

        stop_step: iteration ends before it (None: never). pace: what happens when this consumer holds others up:
        "wait", they wait for it; "split", after patience_s seconds of it they go on without it. hold: batches that it
        may keep unreleased at once, fewer than prefetch (None: 2, or what fits); hold_timeout_s: seconds that a request
        waits at that limit before HoldLimitError. shard: (rank, world size), whose rows of each global batch it gets.
        Raises UnknownStreamError, ArgumentError, MemoryLimitError, SharedMemoryError.
        """
        live = start_step == "live"
        start, stop = checked_span(0 if live else start_step, stop_step)
        terms = (_microseconds("patience_s", patience_s), _checked_hold(hold))
        _microseconds("hold_timeout_s", hold_timeout_s)
        plan = OpenOptions(stream, pace, *terms, Shard.of(shard), hold_timeout_s)
        consumer = Consumer(self._gateway, plan, None if live else start, stop, self)
        self._consumers.add(consumer)
        return consumer

    def status(self, *, builds: bool = False) -> dict[str, Any]:
        """The daemon's streams, slots, workers and consumers; with `builds`, how often steps were built."""
        return self._gateway.request(lambda request, _: Status(request, builds), Report, "asking for the status").status

    def tune(self, stream: str | None = None, **settings: Any) -> None:
        """Change the running daemon: workers, memory_limit, evict_after_s, and of `stream` (None: of each) prefetch and
        max_lanes. No byte of any batch depends on them. Raises ConfigurationError, ArgumentError, MemoryLimitError.
        """
        for name, value in settings.items():
            if not isinstance(value, int | float | str) or (isinstance(value, int) and abs(value) >= 2**63):
                raise ArgumentError(f"{name} is {value!r}; a setting is a text or a number of at most 64 bits")
        name = stream or ""
        self._gateway.request_once(
            lambda request, daemon: Tune(request, name, settings, daemon), Done, "changing settings"
        )

    def stop_service(self) -> None:
        """Ask the daemon to end; it tells all its clients."""
        self._gateway.request_once(Stop, Done, "stopping the daemon")

    def wait_for_end(self, timeout_s: float) -> bool:
        """Wait until the daemon's process has ended; false where it has not, or cannot be seen from here."""
        pidfd = self._gateway.daemon_pidfd
        return pidfd is not None and bool(select.select([pidfd], [], [], timeout_s)[0])

    def close(self) -> None:
        """Close the consumers and the connection. Idempotent. Arrays that are alive stay valid."""
        if self._closed:
            return
        self._closed = True
        for consumer in list(self._consumers):
            consumer.close()
        self._gateway.close()

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


def _microseconds(name: str, seconds: float) -> int:
    if not isinstance(seconds, int | float) or not 0 <= seconds <= _MAX_PATIENCE_S:
        raise ArgumentError(f"{name} is {seconds!r}; it must lie in [0, {_MAX_PATIENCE_S:.0f}] seconds")
    return math.ceil(seconds * 1e6)


def _checked_hold(hold: int | None) -> int:
    """As the message says it: 0 for the daemon's choice."""
    try:
        number = 0 if hold is None else index(hold)
    except TypeError:
        raise ArgumentError(f"hold is {hold!r}; it must be an integer of at least 1") from None
    if hold is not None and not 1 <= number <= _MAX_HOLD:
        raise ArgumentError(f"hold is {number}; it must lie in [1, {_MAX_HOLD}]")
    return number


def connect(endpoint: str | None = None, *, timeout_s: float = _TIMEOUT_S, reconnect_s: float = _RECONNECT_S) -> Client:
    """Connect to the daemon at `endpoint` (None: LOADER_SERVICE_ENDPOINT, else the default one of this user).

    Waits up to `timeout_s` seconds for a daemon that is starting. When the daemon goes away, a request waits up to
    `reconnect_s` seconds for one to come back under that endpoint, and each consumer goes on at its step. Raises
    ServiceUnavailableError, EndpointError.
    """
    return Client(endpoint or default_endpoint(), timeout_s, reconnect_s)
