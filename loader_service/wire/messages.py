"""The messages between client and daemon.

Owns the message classes: what each says, and who answers it. Invariant: plain values only, of the types that
`wire.protocol` checks; what a client sends is flat, with nothing nested in a list or a map.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from loader_service.sharing.placement import Placement

__all__ = [
    "CLIENT_MESSAGES",
    "DAEMON_MESSAGES",
    "Bye",
    "Close",
    "Closing",
    "Demand",
    "Done",
    "Error",
    "Get",
    "Hello",
    "Message",
    "Name",
    "Open",
    "Opened",
    "Ping",
    "Ready",
    "Release",
    "Report",
    "Setting",
    "Status",
    "Stop",
    "Tune",
    "Welcome",
]


Name = str
"""A short text: of a stream, or a word of the protocol."""
Setting = int | float | str
"""The value of an option."""


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
    """Answers Hello: the daemon's process, the names of its streams, and a number that no other daemon has."""

    kind: ClassVar[str] = "welcome"
    request: int
    pid: int
    pid_namespace: int
    streams: list[str]
    incarnation: int


@dataclass(frozen=True, slots=True)
class Open(Message):
    """Open a stream at a global step. consumer: a number that the client has not used before.

    live: where the most consumers are now, whatever start_step says; pace: "split" or "wait", patience_us microseconds;
    hold: batches that it may keep unreleased, 0 for the daemon's choice; rank, world: told by `status` only;
    incarnation: of the daemon that is meant, for a socket delivers what it has left to the next one.
    """

    kind: ClassVar[str] = "open"
    request: int
    consumer: int
    stream: Name
    start_step: int
    live: bool
    pace: Name
    patience_us: int
    hold: int
    rank: int
    world: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Opened(Message):
    """Answers Open. start_step: where it begins; hold: the limit that holds for it; description: see fingerprint."""

    kind: ClassVar[str] = "opened"
    request: int
    start_step: int
    prefetch: int
    hold: int
    steps_per_epoch: int
    fingerprint: str
    description: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Get(Message):
    """Ask for the batches of `steps` >= 1 global steps from `step` on; each has an answer of its own, once it is built.

    The answers come one by one, never more of them than the consumer may hold and one ahead; an Error ends them, and
    so does the next Get. holds: all leases of the consumer that live; every other one has ended, also one whose Ready
    never arrived. demanded: the consumer cannot go on without the first; else a Demand follows when it comes to that.
    """

    kind: ClassVar[str] = "get"
    request: int
    consumer: int
    step: int
    steps: int
    holds: list[int]
    demanded: bool


@dataclass(frozen=True, slots=True)
class Demand(Message):
    """The consumer cannot go on without this step, which it has asked for. Has no answer but that of the Get."""

    kind: ClassVar[str] = "demand"
    consumer: int
    step: int


@dataclass(frozen=True, slots=True)
class Ready(Message):
    """Answers Get: where the batch lies, and the lease that keeps it there.

    nbytes: of the batch, after the segment's header; rows: of the global batch; layout: see `wire.layouts`; blocked:
    another consumer kept the step from being built, so that a Demand is to come at once if the next one is not here.
    """

    kind: ClassVar[str] = "ready"
    request: int
    lease: int
    lane: int
    step: int
    epoch: int
    step_in_epoch: int
    slot: int
    placement: Placement
    nbytes: int
    rows: int
    layout: bytes
    prefetch: int
    blocked: bool


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
class Tune(Message):
    """Change what cannot change data on the running daemon; settings: by name, of `stream` (empty: of each).

    incarnation: as in Open.
    """

    kind: ClassVar[str] = "tune"
    request: int
    stream: Name
    settings: dict[Name, Setting]
    incarnation: int


@dataclass(frozen=True, slots=True)
class Stop(Message):
    """Ask the daemon to end; incarnation: as in Open."""

    kind: ClassVar[str] = "stop"
    request: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Done(Message):
    """Answers Close, Tune and Stop."""

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


CLIENT_MESSAGES = _table(Hello, Open, Get, Demand, Release, Close, Bye, Status, Tune, Stop)
DAEMON_MESSAGES = _table(Welcome, Opened, Ready, Report, Done, Error, Closing, Ping)
