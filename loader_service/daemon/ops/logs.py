"""The daemon's log: each line structured, none of them able to end or to stall the daemon, or to fill a disk.

Owns `configure`, `LogHandler` and the two formats. Invariant: whoever logs never waits and never fails: lines go into
a bounded queue, and a thread of the log's own writes them; what does not fit, or cannot be written (a full disk, a
closed descriptor, a pipe that nobody reads), is dropped and counted, and the count is told as soon as writing works.
Of lines of one kind (a logger and its text before the values) at most `MAX_A_SECOND` are written a second; the next
one says how many were left out.

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
from queue import Empty, Full, SimpleQueue
from threading import Event, Lock, Thread
from typing import Any

from loader_service.errors import ConfigurationError

__all__ = ["ENVIRONMENT_VARIABLE", "FIELDS", "MAX_A_SECOND", "LogHandler", "configure", "wants_json"]

ENVIRONMENT_VARIABLE = "LOADER_SERVICE_LOG"
FIELDS = ("stream", "step", "worker", "consumer", "pid")
MAX_A_SECOND = 20
_MAX_KINDS = 1000
_MAX_LINES = 4096
_MAX_TEXT = 16_384
_CLOSE_S = 1.0
_TEXT = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")


def wants_json(environment: str) -> bool:
    """Whether LOADER_SERVICE_LOG asks for JSON. Raises ConfigurationError."""
    if environment not in ("", "text", "json"):
        raise ConfigurationError(f"{ENVIRONMENT_VARIABLE} is {environment!r}; it must be 'text' or 'json'")
    return environment == "json"


def configure(level: str, *, as_json: bool) -> LogHandler:
    """Let everything that this process logs, from `level` on, go to its standard error. Returns the handler."""
    handler = LogHandler(_standard_error(), _json_line if as_json else _text_line)
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


def _text_line(record: logging.LogRecord, left_out: int) -> str:
    line = _TEXT.format(record)[:_MAX_TEXT].replace("\n", "\n    ")
    return line + (f" ({left_out} more like it were left out)" if left_out else "")


def _json_line(record: logging.LogRecord, left_out: int) -> str:
    """One JSON object in ASCII, whatever the message holds."""
    content: dict[str, Any] = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage()[:_MAX_TEXT],
    }
    content |= {name: vars(record)[name] for name in FIELDS if vars(record).get(name) is not None}
    if record.exc_info:
        content["traceback"] = _TEXT.formatException(record.exc_info)[-_MAX_TEXT:]
    return json.dumps(content | ({"left_out": left_out} if left_out else {}), default=str)


class LogHandler(logging.Handler):
    """Writes to the descriptor `fd`, which it owns; line(record, left_out) gives a line's text.

    dropped: lines that were not written, for whatever reason, and have not been told of yet; clock: monotonic seconds.
    """

    def __init__(
        self,
        fd: int | None,
        line: Callable[[logging.LogRecord, int], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.dropped = 0
        self._line, self._quotas = line, _Quotas(clock)
        self._writer = None if fd is None else _Writer(fd, self._lost, self._told_of)

    def emit(self, record: logging.LogRecord) -> None:
        """Hand the line to the thread. Never waits, never raises."""
        try:
            left_out = self._quotas.take((record.name, record.levelno, str(record.msg)))
            if left_out is not None and self._writer is not None:
                self._writer.put(self._line(record, left_out))
        except Exception:  # a message whose values do not fit it, or a queue that is full
            self._lost()

    def close(self) -> None:
        """Wait a moment until all is written. Idempotent; logging calls it at the end of the process too."""
        if self._writer is not None:
            self._writer.close()
        super().close()

    def _lost(self) -> None:
        self.dropped += 1

    def _told_of(self) -> str:
        """The line that tells of the lines that were dropped, if there are any."""
        lost, self.dropped = self.dropped, 0
        if not lost:
            return ""
        text = f"{lost} log lines were dropped: they came too fast, or could not be written"
        return self._line(logging.LogRecord(__name__, logging.WARNING, "", 0, text, (), None), 0)


class _Quotas:
    """How many lines of each kind were written in the current second, and how many were left out."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._second = clock, -1
        self._written: dict[tuple[str, int, str], int] = {}
        self._left_out: dict[tuple[str, int, str], int] = {}

    def take(self, kind: tuple[str, int, str]) -> int | None:
        """None: leave it out; else how many before it were."""
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


class _Writer:
    """The thread that writes. Its descriptor may block for ever: then it alone does, and the process may end."""

    def __init__(self, fd: int, lost: Callable[[], None], told_of: Callable[[], str]) -> None:
        self._fd, self._lost, self._told_of = fd, lost, told_of
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._closing, self._lock, self._torn = Event(), Lock(), False
        self._thread: Thread | None = None

    def put(self, line: str) -> None:
        """Raises Full."""
        if self._closing.is_set() or self._lines.qsize() >= _MAX_LINES:
            raise Full
        self._lines.put(line)
        if self._thread is None:
            self._start()

    def close(self) -> None:
        self._closing.set()
        self._lines.put(None)
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
        if self._fd >= 0 and (self._thread is None or not self._thread.is_alive()):
            os.close(self._fd)
            self._fd = -1

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                thread = Thread(target=self._run, name="loader-service-log", daemon=True)
                with suppress(RuntimeError):  # there is no thread to be had: with the next line, perhaps
                    thread.start()
                    self._thread = thread

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            if self._write(line):
                told = self._told_of()
                if told:
                    self._write(told)
            else:
                self._lost()
        self._drain()

    def _drain(self) -> None:
        """What came in between the end and the word of it."""
        while True:
            try:
                line = self._lines.get_nowait()
            except Empty:
                return
            if line is not None:
                self._write(line)

    def _write(self, line: str) -> bool:
        """Whether all of the line was written."""
        data = ("\n" * self._torn + line + "\n").encode(errors="backslashreplace")
        self._torn = False
        try:
            while data:
                data = data[os.write(self._fd, data) :]
                self._torn = bool(data)
        except OSError:
            return False
        return True
