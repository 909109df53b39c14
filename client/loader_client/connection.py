"""A process's connection to the daemon.

Owns `connect` and `Client`. Invariant: a client belongs to the process that connected it. Fails with
ServiceUnavailableError where nothing answers within the deadline, or no connection can be made.
"""

from __future__ import annotations

import math
import select
import warnings
import weakref
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, NoReturn, Self

from loader_client.consumer import Consumer
from loader_client.daemon_connection import DaemonConnection, OpenOptions
from loader_service.contract.checks import (
    checked_bool,
    checked_choice,
    checked_float,
    checked_int,
    checked_span,
    checked_text,
    shown,
)
from loader_service.contract.shards import Shard
from loader_service.errors import ArgumentError
from loader_service.wire.endpoint import default_endpoint
from loader_service.wire.messages import Done, Report, Status, Stop, Tune

__all__ = ["Client", "connect"]

_TIMEOUT_S = 10.0
_RECONNECT_S = 30.0
_MAX_PATIENCE_S = 1e6
_MAX_SECONDS = 1e9
_MAX_WAIT_S = 2e6
"""`poll` counts milliseconds in 32 bits."""
_MAX_HOLD = 65535


class Client:
    """One process's connection to a daemon; `connect` makes it. Any number of consumers, from any threads.

    Attributes:
        endpoint: where the daemon listens.
    """

    def __init__(self, endpoint: str, timeout_s: float, reconnect_s: float) -> None:
        self.endpoint = endpoint
        self._consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()
        self._connection = DaemonConnection(endpoint, timeout_s, reconnect_s)
        self._closed = False
        try:
            self._connection.handshake()
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"daemon pid {self.daemon_pid}, streams {list(self.streams)}"
        return f"Client({self.endpoint!r}, {state})"

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of the daemon's streams."""
        return self._connection.streams

    @property
    def daemon_pid(self) -> int:
        """The process of the daemon that last answered a handshake."""
        return self._connection.process_id

    @property
    def closed(self) -> bool:
        """True once it was closed."""
        return self._closed

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
        """Open a stream by its name.

        Args:
            start_step: of the first batch, >= 0, or "live": where most consumers are. stop_step: end before it.
            pace: when this consumer holds others up, they "wait" for it, or "split": after patience_s they go on.
            patience_s: seconds in [0, 10^6].
            hold: how many batches may be alive, fewer than prefetch; None: 2, or what fits.
            hold_timeout_s: seconds that a request waits at that limit before HoldLimitError.
            shard: (rank, world size), whose rows of each global batch it gets.

        Raises:
            UnknownStreamError, ArgumentError: there is no such stream; an argument is out of its range.
            MemoryLimitError, SharedMemoryError: there is no memory for a ring at this step.
            ServiceUnavailableError: no connection can be made.
        """
        live = isinstance(start_step, str) and start_step == "live"
        start, stop = checked_span(0 if live else start_step, stop_step)
        options = OpenOptions(
            stream=checked_text("stream", stream),
            slow_consumer_policy=checked_choice("pace", pace, ("split", "wait")),
            patience_us=math.ceil(checked_float("patience_s", patience_s, 0.0, _MAX_PATIENCE_S) * 1e6),
            max_leases=0 if hold is None else checked_int("hold", hold, 1, _MAX_HOLD),
            shard=Shard.of(shard),
            hold_timeout_s=checked_float("hold_timeout_s", hold_timeout_s, 0.0, _MAX_PATIENCE_S),
        )
        consumer = Consumer(self._connection, options, None if live else start, stop, self)
        self._consumers.add(consumer)
        return consumer

    def status(self, *, builds: bool = False) -> dict[str, Any]:
        """Return the daemon's streams, slots, workers and consumers; with `builds`, how often steps were built."""
        report = self._connection.request(
            lambda request, _: Status(request, checked_bool("builds", builds)), Report, "asking for the status"
        )
        return report.status

    def tune(self, stream: str | None = None, **settings: Any) -> None:
        """Change the running daemon; no byte of any batch depends on it.

        Args:
            stream: the stream to change; None: each of them.
            settings: workers, memory_limit, evict_after_s, and of streams prefetch and max_lanes.

        Raises:
            ConfigurationError: there is no such setting, or its value is out of range.
            ArgumentError: the value is no text and no number of 64 bits, or what consumers hold does not allow it.
            MemoryLimitError: `memory_limit` does not allow it.
        """
        checked = {name: _checked_setting(name, value) for name, value in settings.items()}
        name = "" if stream is None else checked_text("stream", stream)
        self._connection.request_once(
            lambda request, incarnation: Tune(request, name, checked, incarnation), Done, "changing settings"
        )

    def stop_service(self) -> None:
        """Ask the daemon to end; it tells all its clients."""
        self._connection.request_once(Stop, Done, "stopping the daemon")

    def wait_for_end(self, timeout_s: float) -> bool:
        """Wait until the daemon's process has ended; false where it has not, or cannot be seen from here."""
        timeout_s = checked_float("timeout_s", timeout_s, 0.0, _MAX_WAIT_S)
        pidfd = self._connection.process_descriptor
        if pidfd is None:
            return False
        end = select.poll()  # a descriptor above 1023 is too high for `select`
        end.register(pidfd, select.POLLIN)
        return bool(end.poll(timeout_s * 1000))

    def close(self) -> None:
        """Close the consumers and the connection. Idempotent. Arrays that are alive stay valid."""
        if self._closed:
            return
        self._closed = True
        for consumer in list(self._consumers):
            consumer.close()
        self._connection.close()

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

    def __reduce__(self) -> NoReturn:
        raise ArgumentError(
            f"a client (of {self.endpoint}) cannot be pickled or copied: its connection belongs to this process; call "
            "loader_client.connect() in the other one"
        )


def _checked_setting(name: str, value: Any) -> int | float | str:
    """A setting as a plain value; the daemon checks which of them its option takes. Raises ArgumentError."""
    if isinstance(value, str | bool):
        return value
    for check in (lambda: checked_int(name, value, -(2**63), 2**63 - 1), lambda: checked_float(name, value)):
        with suppress(ArgumentError):
            return check()
    raise ArgumentError(f"{name} is {shown(value)}; a setting is a text or a finite number of at most 64 bits")


def connect(endpoint: str | None = None, *, timeout_s: float = _TIMEOUT_S, reconnect_s: float = _RECONNECT_S) -> Client:
    """Connect to the daemon at `endpoint`.

    Args:
        endpoint: `ipc://` with the absolute path of its socket; None: LOADER_SERVICE_ENDPOINT, else the default one of
            this user.
        timeout_s: seconds to wait for a daemon that is starting, and for each answer.
        reconnect_s: seconds that a request waits for a daemon to come back under that endpoint when it has gone away;
            then each consumer goes on at its step.

    Raises:
        ServiceUnavailableError: nothing answers, or this process has too few descriptors.
        EndpointError: the endpoint cannot be used.
    """
    return Client(
        checked_text("endpoint", endpoint or default_endpoint()),
        checked_float("timeout_s", timeout_s, 0.0, _MAX_SECONDS),
        checked_float("reconnect_s", reconnect_s, 0.0, _MAX_SECONDS),
    )
