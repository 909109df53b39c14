"""The daemon's log: each line structured, none of them able to end or to stall the daemon, or to fill a disk.

Owns `configure`, `LogHandler` and the two formats. Invariant: whoever logs never waits and never fails. A line is
formatted by its thread and put into a bounded queue (`logging.handlers.QueueHandler`); a thread of the log's own writes
it (`QueueListener`). A line that does not fit, or cannot be written (a full disk, a closed descriptor, a pipe that
nobody reads), is dropped and counted, and the count is told as soon as writing works. Of lines of one kind (a logger
and its text before the values) at most `MAX_A_SECOND` are written a second; the next one says how many were left out.

    error    data or the service is affected: a step failed, a stream is impure, no worker is left
    warning  something died, was refused or was taken away, and the daemon has dealt with it
    info     lifecycle: start and end, clients that end, settings that change
    debug    each build

Fields beside time, level, logger and message, where they apply: stream, step, worker (its number), consumer (the
daemon's number) and pid (of the worker or client that the line is about).
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from queue import Full, Queue
from typing import Any

from loader_service.errors import ConfigurationError

__all__ = [
    "ENVIRONMENT_VARIABLE",
    "FIELDS",
    "MAX_A_SECOND",
    "JsonFormatter",
    "LogHandler",
    "TextFormatter",
    "configure",
    "wants_json",
]

ENVIRONMENT_VARIABLE = "LOADER_SERVICE_LOG"
FIELDS = ("stream", "step", "worker", "consumer", "pid")
MAX_A_SECOND = 20
_MAX_KINDS = 1000
_MAX_LINES = 4096
_MAX_TEXT = 16_384
_CLOSE_S = 1.0


def wants_json(environment: str) -> bool:
    """Return whether the value of LOADER_SERVICE_LOG asks for JSON. Raises ConfigurationError."""
    if environment not in ("", "text", "json"):
        raise ConfigurationError(f"{ENVIRONMENT_VARIABLE} is {environment!r}; it must be 'text' or 'json'")
    return environment == "json"


def configure(level: str, *, as_json: bool) -> LogHandler:
    """Send everything that this process logs, from `level` on, to its standard error. Returns the handler."""
    handler = LogHandler(_standard_error(), JsonFormatter() if as_json else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    return handler


def _standard_error() -> int | None:
    """A descriptor of its own; None where there is none: number 2 may be something else then."""
    try:
        return os.dup(sys.stderr.fileno()) if sys.stderr is not None else None
    except (OSError, ValueError):
        return None


class TextFormatter(logging.Formatter):
    """A line of text; the further lines of a message are indented, so that none can pass for a record of its own."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)[:_MAX_TEXT].replace("\n", "\n    ")
        left_out = getattr(record, "left_out", 0)
        return line + (f" ({left_out} more like it were left out)" if left_out else "")


class JsonFormatter(logging.Formatter):
    """One JSON object in ASCII, whatever the message holds."""

    def format(self, record: logging.LogRecord) -> str:
        content: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:_MAX_TEXT],
        }
        content |= {name: vars(record)[name] for name in FIELDS if vars(record).get(name) is not None}
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)[-_MAX_TEXT:]
        left_out = getattr(record, "left_out", 0)
        return json.dumps(content | ({"left_out": left_out} if left_out else {}), default=str)


class LogHandler(QueueHandler):
    """Puts formatted lines into a queue, from which a thread writes them to the descriptor `fd`, which it owns.

    dropped: lines that were not written, for whatever reason, and have not been told of yet.

    Args:
        fd: where to write; None for nowhere.
        formatter: makes a line of a record, in the thread that logs it.
        clock: seconds, monotonic.
    """

    def __init__(
        self, fd: int | None, formatter: logging.Formatter, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lines: Queue[Any] = Queue(_MAX_LINES)
        super().__init__(self._lines)
        self.dropped = 0
        self.setFormatter(formatter)
        self.addFilter(_Quotas(clock))
        self._listener = None if fd is None else _Listener(self._lines, _LineWriter(fd, self))
        self._is_closing = False

    def enqueue(self, record: logging.LogRecord) -> None:
        """Hand the line to the thread. Raises Full, which `handleError` counts."""
        if self._listener is None:
            return
        if self._is_closing:
            raise Full
        self._lines.put_nowait(record)
        self._listener.start_once()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Count a line that cannot be written: its values do not fit it, or the queue is full."""
        self.dropped += 1

    def told_of(self) -> str:
        """Return the line that tells of the lines that were dropped, empty if there are none."""
        lost, self.dropped = self.dropped, 0
        text = f"{lost} log lines were dropped: they came too fast, or could not be written"
        return self.format(logging.LogRecord(__name__, logging.WARNING, "", 0, text, (), None)) if lost else ""

    def close(self) -> None:
        """Wait a second at most until all is written. Idempotent; logging calls it at the end of the process too."""
        if not self._is_closing and self._listener is not None:
            self._is_closing = True
            self._listener.stop()
        super().close()


class _Listener(QueueListener):
    """The thread that writes. Its descriptor may block for ever: then it alone does, and the process may end."""

    def __init__(self, lines: Queue[Any], writer: _LineWriter) -> None:
        super().__init__(lines)
        self._lines, self._writer, self._is_started = lines, writer, False

    def handle(self, record: logging.LogRecord) -> None:
        """Write one line; without the lock of a handler, which the end of the process would wait for."""
        self._writer.write(record)

    def start_once(self) -> None:
        """Start the thread, if it is not there; where none can be had, the next line tries again."""
        if self._is_started:
            return
        self._is_started = True
        try:
            self.start()
        except RuntimeError:
            self._thread, self._is_started = None, False

    def stop(self) -> None:
        """End the thread, which writes what is queued until then, for a second at most."""
        thread, self._thread = self._thread, None
        if thread is not None:
            deadline = time.monotonic() + _CLOSE_S
            with suppress(Full):  # it does not write, and has no end to be told
                self._lines.put(self._sentinel, timeout=_CLOSE_S)  # type: ignore[attr-defined]  # typeshed lacks it
            thread.join(max(0.0, deadline - time.monotonic()))
        if thread is None or not thread.is_alive():
            self._writer.close_descriptor()


class _LineWriter:
    """Writes lines to a descriptor, and after each that was written the number of those that were not."""

    def __init__(self, fd: int, log: LogHandler) -> None:
        self._fd, self._log, self._torn = fd, log, False

    def write(self, record: logging.LogRecord) -> None:
        """Write one line, which the record's message is."""
        if self._write(str(record.msg)):
            told = self._log.told_of()
            if told:
                self._write(told)
        else:
            self._log.dropped += 1

    def close_descriptor(self) -> None:
        """Close it, once the thread has ended. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, line: str) -> bool:
        """Write all of the line; False where that failed."""
        data = ("\n" * self._torn + line + "\n").encode(errors="backslashreplace")
        self._torn = False
        try:
            while data:
                data = data[os.write(self._fd, data) :]
                self._torn = bool(data)
        except OSError:
            return False
        return True


class _Quotas(logging.Filter):
    """Lets `MAX_A_SECOND` lines of each kind pass; `left_out` of a record says how many before it did not."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock, self._second = clock, -1
        self._written: dict[tuple[str, int, str], int] = {}
        self._left_out: dict[tuple[str, int, str], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Count the record; false where its kind has had its lines for this second."""
        with suppress(Exception):  # a message without a text is found out when it is formatted
            left_out = self._take((record.name, record.levelno, str(record.msg)))
            record.left_out = left_out
            return left_out is not None
        return True

    def _take(self, kind: tuple[str, int, str]) -> int | None:
        """None: leave it out; else the number of those before it that were."""
        second = int(self._clock())
        if second != self._second:
            self._second, self._written = second, {}
        if len(self._written) >= _MAX_KINDS and kind not in self._written:
            kind = ("", 0, "")  # texts without end are one kind
        self._written[kind] = self._written.get(kind, 0) + 1
        if self._written[kind] > MAX_A_SECOND:
            if len(self._left_out) < _MAX_KINDS or kind in self._left_out:
                self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return None
        return self._left_out.pop(kind, 0)
