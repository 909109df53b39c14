"""Messages between client and daemon, and the frames that carry them.

Owns the message classes, `encode` and `decode`. Invariant: what `decode` returns has every field, of the declared
type and within its limits; anything else is a ProtocolError and nothing more. Never pickle.

    one frame, for a send of several can be interrupted between two of them: VERSION, then a msgpack map
    {"kind": name, field: value, ...}; a ROUTER puts the sender's identity before
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgpack

from loader_service.errors import ProtocolError

__all__ = [
    "CLIENT_MESSAGES",
    "DAEMON_MESSAGES",
    "MAX_MESSAGE_BYTES",
    "VERSION",
    "Bye",
    "Close",
    "Closing",
    "Done",
    "Error",
    "Get",
    "Hello",
    "Message",
    "Open",
    "Opened",
    "Ping",
    "Ready",
    "Release",
    "Report",
    "Status",
    "Stop",
    "Welcome",
    "decode",
    "encode",
    "request_of",
]

VERSION = b"loader-service/1\n"
MAX_MESSAGE_BYTES = 1 << 20
"""The daemon's limit for one message from a client."""
_MAX_TEXT = 1 << 16


class Message:
    """Base of all messages; `kind` is the name on the wire."""

    __slots__ = ()
    kind: ClassVar[str]


@dataclass(frozen=True, slots=True)
class Hello(Message):
    """The first message of a client. pid: its process; pid_namespace: in which that number means something."""

    kind: ClassVar[str] = "hello"
    request: int
    pid: int
    pid_namespace: int


@dataclass(frozen=True, slots=True)
class Welcome(Message):
    """Answers Hello: the daemon's process and the names of its streams."""

    kind: ClassVar[str] = "welcome"
    request: int
    pid: int
    pid_namespace: int
    streams: list[str]


@dataclass(frozen=True, slots=True)
class Open(Message):
    """Open a stream at a global step. consumer: a number that the client has not used before."""

    kind: ClassVar[str] = "open"
    request: int
    consumer: int
    stream: str
    start_step: int


@dataclass(frozen=True, slots=True)
class Opened(Message):
    """Answers Open."""

    kind: ClassVar[str] = "opened"
    request: int
    prefetch: int
    steps_per_epoch: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Get(Message):
    """Ask for the batch of a global step; the answer comes when it is built.

    holds: all leases of the consumer that live. Every other one has ended, also one whose Ready never arrived.
    """

    kind: ClassVar[str] = "get"
    request: int
    consumer: int
    step: int
    holds: list[int]


@dataclass(frozen=True, slots=True)
class Ready(Message):
    """Answers Get: where the batch lies, and the lease that keeps it there."""

    kind: ClassVar[str] = "ready"
    request: int
    lease: int
    lane: int
    step: int
    epoch: int
    step_in_epoch: int
    slot: int
    segment: str
    generation: int
    nbytes: int
    layout: list[Any]


@dataclass(frozen=True, slots=True)
class Release(Message):
    """End leases of a consumer; has no answer."""

    kind: ClassVar[str] = "release"
    consumer: int
    leases: list[int]


@dataclass(frozen=True, slots=True)
class Close(Message):
    """Close a consumer; the leases that it holds (as in Get) last until they are released.

    Closing one that is not open does nothing: it may be an Open that was given up.
    """

    kind: ClassVar[str] = "close"
    request: int
    consumer: int
    holds: list[int]


@dataclass(frozen=True, slots=True)
class Bye(Message):
    """The client is done: its consumers are closed and its leases have ended. Has no answer."""

    kind: ClassVar[str] = "bye"


@dataclass(frozen=True, slots=True)
class Status(Message):
    """Ask for the daemon's state. builds: also how often each of the latest steps was built."""

    kind: ClassVar[str] = "status"
    request: int
    builds: bool


@dataclass(frozen=True, slots=True)
class Report(Message):
    """Answers Status."""

    kind: ClassVar[str] = "report"
    request: int
    status: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stop(Message):
    """Ask the daemon to end."""

    kind: ClassVar[str] = "stop"
    request: int


@dataclass(frozen=True, slots=True)
class Done(Message):
    """Answers Close and Stop."""

    kind: ClassVar[str] = "done"
    request: int


@dataclass(frozen=True, slots=True)
class Error(Message):
    """Answers any request that failed; request 0 where the message could not be read that far."""

    kind: ClassVar[str] = "error"
    request: int
    error: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Closing(Message):
    """Told to every client when the daemon ends."""

    kind: ClassVar[str] = "closing"
    reason: str


@dataclass(frozen=True, slots=True)
class Ping(Message):
    """Finds out whether a client that cannot be watched by pid is still connected; carries nothing."""

    kind: ClassVar[str] = "ping"


def _table(*classes: type[Message]) -> dict[str, type[Message]]:
    return {cls.kind: cls for cls in classes}


CLIENT_MESSAGES = _table(Hello, Open, Get, Release, Close, Bye, Status, Stop)
DAEMON_MESSAGES = _table(Welcome, Opened, Ready, Report, Done, Error, Closing, Ping)


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_TEXT


# By the text of a field's annotation: what its value must be.
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (_is_number, "an integer in [0, 2^63)"),
    "bool": (lambda value: isinstance(value, bool), "true or false"),
    "str": (_is_text, f"text of at most {_MAX_TEXT} characters"),
    "list[int]": (lambda value: isinstance(value, list) and all(map(_is_number, value)), "a list of integers"),
    "list[str]": (lambda value: isinstance(value, list) and all(map(_is_text, value)), "a list of texts"),
    "list[Any]": (lambda value: isinstance(value, list), "a list"),
    "dict[str, Any]": (lambda value: isinstance(value, dict), "a map"),
}
_FIELDS = {
    cls: {one.name: _CHECKS[str(one.type)] for one in dataclasses.fields(cls)}  # type: ignore[arg-type]  # dataclasses all
    for cls in (*CLIENT_MESSAGES.values(), *DAEMON_MESSAGES.values())
}


def encode(message: Message) -> list[bytes]:
    """The frame of a message, without an identity, as the list that zmq takes."""
    fields = {name: getattr(message, name) for name in _FIELDS[type(message)]}
    return [VERSION + msgpack.packb({"kind": message.kind, **fields}, unicode_errors="backslashreplace")]


def _unpacked(frames: Sequence[bytes]) -> dict[str, Any]:
    if len(frames) != 1:
        raise ProtocolError(f"the message has {len(frames)} frames; it must have 1")
    if not frames[0].startswith(VERSION):
        peer = frames[0][:32].partition(b"\n")[0]
        raise ProtocolError(f"the peer speaks {peer!r} and this side {VERSION!r}; install the same release on both")
    try:
        content = msgpack.unpackb(frames[0][len(VERSION) :], strict_map_key=True)
    except Exception as error:  # msgpack documents no common base for what malformed input raises
        raise ProtocolError(f"the message is no msgpack: {type(error).__name__}") from error
    if not isinstance(content, dict):
        raise ProtocolError(f"the message is a {type(content).__name__}; it must be a map with a `kind`")
    return content


def decode(frames: Sequence[bytes], table: dict[str, type[Message]]) -> Message:
    """The message in `frames`, of one of the classes in `table`. Raises ProtocolError for anything else."""
    content = _unpacked(frames)
    kind = content.pop("kind", None)
    cls = table.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ProtocolError(f"the message's kind is {reprlib.repr(kind)}; this side takes {', '.join(table)}")
    fields = _FIELDS[cls]
    if content.keys() != fields.keys():
        raise ProtocolError(f"a {kind} message has the fields {sorted(fields)}; this one has others")
    for name, (fits, limit) in fields.items():
        if not fits(content[name]):
            raise ProtocolError(f"field {name} of a {kind} message must be {limit}")
    return cls(**content)


def request_of(frames: Sequence[bytes]) -> int:
    """The request number of a message that does not decode, for the reply; 0 where it cannot be read that far."""
    try:  # whatever the version before the map
        number: Any = _unpacked([VERSION + frames[0].partition(b"\n")[2]]).get("request")
    except (IndexError, ProtocolError):
        return 0
    return int(number) if _is_number(number) else 0
