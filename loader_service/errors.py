"""Every error that a user can meet, with its code.

Owns one base class and the ways an error travels: `to_record` makes plain values of it, `from_record` makes the same
class again in another process, so that a trainer catches what a worker raised; pickle and copy keep class, text and
fields. Invariant: a code belongs to one class, and every class can be made from its text alone. A message says what was
got, what the limit is and what to do about it.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

__all__ = [
    "AlreadyRunningError",
    "ArgumentError",
    "BuildError",
    "ConfigurationError",
    "ConsumerClosedError",
    "DataError",
    "DeadlineError",
    "EndpointError",
    "EvictedError",
    "FactoryError",
    "FileAccessError",
    "FingerprintError",
    "ForkedClientError",
    "HoldLimitError",
    "IntegrityError",
    "LoaderServiceError",
    "MemoryLimitError",
    "ProtocolError",
    "ReleasedError",
    "ServiceClosedError",
    "ServiceUnavailableError",
    "SharedMemoryError",
    "StreamChangedError",
    "UnknownStreamError",
    "WorkerStartError",
    "from_record",
]


def _sendable(value: Any) -> Any:
    """A text as UTF-8 can carry it: one may name a file whose name has bytes of another encoding."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


class LoaderServiceError(Exception):
    """Base of all errors of this package.

    Every class takes its text as its only positional argument and as `message`, and keeps what else it says as plain
    attributes. So an error stays what it is in pickle, copy and deepcopy, and where a library raises it again with a
    text of its own, as the workers of torch's DataLoader do.

    Attributes:
        code: stable across releases; a class has one.

    >>> error = ArgumentError("batch_size is 0")
    >>> error.code, error.message, str(error)
    ('E1101', 'batch_size is 0', 'E1101: batch_size is 0')
    """

    code: str = "E1000"

    def __init__(self, message: str = "") -> None:
        super().__init__(message)

    @property
    def message(self) -> str:
        """The text without its code."""
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def details(self) -> dict[str, Any]:
        """Details beside the message: plain values, the keyword arguments of its constructor."""
        return {}

    def to_record(self) -> dict[str, Any]:
        """Return this error as plain values, for a message to another process; `from_record` makes it again."""
        details = {key: _sendable(value) for key, value in self.details().items()}
        return {"code": self.code, "message": _sendable(self.message), "details": details}


class ConfigurationError(LoaderServiceError):
    """Raised where a configuration is read: an unknown key, a wrong type, a value out of range."""

    code = "E1001"


class FactoryError(ConfigurationError):
    """Raised at start, in a worker: a stream's factory cannot be imported, called or used."""

    code = "E1002"


class WorkerStartError(LoaderServiceError):
    """Raised at start: a worker process ended, or said nothing, before it was ready."""

    code = "E1003"


class ArgumentError(LoaderServiceError, ValueError):
    """Raised at construction or call: an argument outside its range."""

    code = "E1101"


class FileAccessError(ArgumentError, OSError):
    """Raised where a file that was named cannot be read or written: it is missing, not permitted, no regular file."""

    code = "E1103"


class FingerprintError(LoaderServiceError, TypeError):
    """Raised where a fingerprint is asked for and a part of the stream has no stable description."""

    code = "E1102"


class BuildError(LoaderServiceError):
    """Raised when a consumer comes to a step whose build failed; the stream ends there (R8, R39).

    Args:
        message: by default it is put together from the other arguments.
        step: the global step; None where it is not known.
        slot: the position in the global batch, or None.
        index: the dataset index, or None.
        cause_type: the qualified name of the class of the exception that ended the build.
        cause_message: its text.
        remote_traceback: as the process that built printed it; shown below the error's own.

    >>> raise BuildError(step=7, slot=1, index=30, cause_type="OSError", cause_message="gone")
    Traceback (most recent call last):
    loader_service.errors.BuildError: E2001: step 7 could not be built at slot 1 (dataset index 30): OSError: gone
    """

    code = "E2001"

    def __init__(
        self,
        message: str = "",
        *,
        step: int | None = None,
        slot: int | None = None,
        index: int | None = None,
        cause_type: str = "",
        cause_message: str = "",
        remote_traceback: str = "",
    ) -> None:
        where = "" if slot is None else f" at slot {slot}"
        where += "" if index is None else f" (dataset index {index})"
        if isinstance(message, str) and not message and step is not None:
            message = f"step {step} could not be built{where}: {cause_type}: {cause_message}"
        super().__init__(message)
        self.step, self.slot, self.index = step, slot, index
        self.cause_type, self.cause_message = cause_type, cause_message
        self.remote_traceback = remote_traceback
        if remote_traceback:
            self.add_note(f"Where the build failed:\n{remote_traceback}")

    def details(self) -> dict[str, Any]:
        """The keyword arguments of the constructor."""
        return {
            "step": self.step,
            "slot": self.slot,
            "index": self.index,
            "cause_type": self.cause_type,
            "cause_message": self.cause_message,
            "remote_traceback": self.remote_traceback,
        }


class ReleasedError(LoaderServiceError):
    """Raised by a batch whose own references were dropped by `release()` or by leaving `with`."""

    code = "E2101"


class HoldLimitError(LoaderServiceError):
    """Raised by a consumer that keeps as many batches alive as `hold` allows and asks for one more."""

    code = "E2102"


class ServiceUnavailableError(LoaderServiceError, ConnectionError):
    """Raised by the client: nothing answers at the endpoint within the deadline."""

    code = "E3001"


class ServiceClosedError(LoaderServiceError, ConnectionError):
    """Raised by the client: the daemon said that it stops, or its process is gone."""

    code = "E3002"


class ProtocolError(LoaderServiceError):
    """Raised where a message is decoded: a wrong version, an unknown kind, a field that does not fit."""

    code = "E3003"


class UnknownStreamError(LoaderServiceError, LookupError):
    """Raised by `open`: the daemon serves no stream of that name."""

    code = "E3004"


class ConsumerClosedError(LoaderServiceError):
    """Raised by a consumer that was closed, that failed, or that the daemon does not know."""

    code = "E3005"


class DeadlineError(LoaderServiceError, TimeoutError):
    """Raised by the client: a step was not ready within `timeout_s`. The consumer is still usable."""

    code = "E3006"


class ForkedClientError(LoaderServiceError):
    """Raised in a forked child that uses the client of its parent."""

    code = "E3007"


class EvictedError(LoaderServiceError):
    """Raised at the next request of a consumer that the daemon has put out; `Consumer.reopen()` goes on at its step."""

    code = "E3008"


class StreamChangedError(LoaderServiceError):
    """Raised where a run would go on with other bytes: the stream has another fingerprint than it had."""

    code = "E3009"


class SharedMemoryError(LoaderServiceError, OSError):
    """Raised by the daemon: shared memory cannot be had (full, not permitted, gone)."""

    code = "E4001"


class MemoryLimitError(LoaderServiceError):
    """Raised by the daemon: `[server] memory_limit` does not allow what was asked for."""

    code = "E4002"


class AlreadyRunningError(LoaderServiceError):
    """Raised at start: a living daemon serves under the same endpoint."""

    code = "E4003"


class EndpointError(LoaderServiceError):
    """Raised at start or at connect: the endpoint's path cannot be used."""

    code = "E4004"


class IntegrityError(LoaderServiceError):
    """Raised where a segment's header does not say what its message says: a bug, never a user's mistake."""

    code = "E5001"


class DataError(LoaderServiceError, ValueError):
    """Raised by the `.psk.d` container and its text tools, with one of five codes (R92 to R96).

    E9001: a type that is not closed or no data type; E9002: no `.psk.d` file; E9003: truncated; E9004: a value out of
    its bound or unparsable; E9005: a type mismatch.

    Args:
        code: one of these. Where a library raises the error again with a text alone, it is the code that the text
            names, else E9000.
        message: the text.
    """

    code = "E9000"
    CODES: ClassVar[frozenset[str]] = frozenset({"E9001", "E9002", "E9003", "E9004", "E9005"})

    def __init__(self, code: str = "", message: str | None = None) -> None:
        text = code if message is None else message
        super().__init__(text)
        named = re.search(r"\bE900[1-5]\b", text)
        if code in self.CODES and message is not None:
            self.code = code
        elif named is not None:
            self.code = named[0]

    def __repr__(self) -> str:
        return f"DataError({self.code!r}, {self.message!r})"


def _classes(base: type[LoaderServiceError]) -> dict[str, type[LoaderServiceError]]:
    """The class of each code; a subclass of a user's that keeps its base's code does not take its place."""
    found: dict[str, type[LoaderServiceError]] = {}
    for child in base.__subclasses__():
        found = _classes(child) | found
    return found | {base.code: base}


def from_record(record: dict[str, Any]) -> LoaderServiceError:
    """Make the error again that `to_record` described.

    Args:
        record: its code, message and details; a code that this release does not know gives the base class, with
            code and text kept.

    >>> from_record(ArgumentError("batch_size is 0").to_record())
    ArgumentError('batch_size is 0')
    """
    code, message = str(record.get("code")), str(record.get("message"))
    if code in DataError.CODES:
        return DataError(code, message)
    if code == BuildError.code:
        return BuildError(message, **record["details"])
    cls = _classes(LoaderServiceError).get(code)
    return LoaderServiceError(f"{code}: {message}") if cls is None else cls(message)
