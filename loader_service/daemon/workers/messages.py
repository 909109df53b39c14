"""Messages between the daemon and its workers.

Owns the message classes and their codec. Invariant: they travel over the worker's own socket pair only, in order;
the end of that connection is the order to end. What `decode_…` returns has every field, of the declared type; anything
else is a ProtocolError, for the user's code in a worker could write to its descriptors.

    on the wire: a msgpack array, the name of the class and then the values of its fields, in order; a field that is
    itself a dataclass is the array of its values
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, get_args, get_origin, get_type_hints

import msgpack

from loader_service.errors import ProtocolError
from loader_service.sharing.placement import Placement

__all__ = [
    "Build",
    "Built",
    "Denied",
    "Explained",
    "Failed",
    "FromWorker",
    "Larger",
    "Need",
    "Retire",
    "Start",
    "StartFailed",
    "Started",
    "StreamFacts",
    "StreamSpec",
    "ToWorker",
    "Verified",
    "Verify",
    "decode_from_worker",
    "decode_to_worker",
    "encode",
]


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """A stream as configured. measure: also report the bytes of its first batch."""

    name: str
    factory: str
    args: dict[str, Any]
    measure: bool


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """A stream as the worker made it. batch_bytes: of step 0, or None where that was not measured.

    description: what the fingerprint is a digest of.
    """

    name: str
    steps_per_epoch: int
    fingerprint: str
    description: dict[str, Any]
    batch_bytes: int | None


@dataclass(frozen=True, slots=True)
class Start:
    """The first message: what to import from where, which streams to make, and whether to compile (`set_compiled`)."""

    import_paths: list[str]
    streams: list[StreamSpec]
    compiled: str = "auto"


@dataclass(frozen=True, slots=True)
class Build:
    """Build `step` of stream number `stream` into the segment of `placement`.

    explain: say first which samples stand in it.
    """

    task: int
    stream: int
    step: int
    placement: Placement
    explain: bool = False


@dataclass(frozen=True, slots=True)
class Verify:
    """Build `step` once more, into memory of your own, and compare it with the `nbytes` that stand in `placement`."""

    task: int
    stream: int
    step: int
    placement: Placement
    nbytes: int
    layout: bytes


@dataclass(frozen=True, slots=True)
class Larger:
    """Answers Need: build into this segment instead."""

    task: int
    placement: Placement


@dataclass(frozen=True, slots=True)
class Denied:
    """Answers Need: there is no larger segment; the record of the error that the step fails with."""

    task: int
    error: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Retire:
    """The segment is used no more: unmap it."""

    segment: str


@dataclass(frozen=True, slots=True)
class Started:
    """READY: all streams are made."""

    streams: list[StreamFacts]


@dataclass(frozen=True, slots=True)
class StartFailed:
    """A stream could not be made: the error's record."""

    error: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Need:
    """The batch of this task needs a segment of `nbytes`."""

    task: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Built:
    """The step is in its segment: its place in the run, its bytes, its rows, its layout (packed)."""

    task: int
    epoch: int
    step_in_epoch: int
    nbytes: int
    rows: int
    layout: bytes


@dataclass(frozen=True, slots=True)
class Explained:
    """The first dataset indices of the step that is built now, and how many rows it has."""

    task: int
    indices: list[int]
    rows: int


@dataclass(frozen=True, slots=True)
class Verified:
    """The step was built once more: in which tensors it differs, in words. skipped: why it was not compared."""

    task: int
    differences: list[str]
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """The step cannot be built: the error's record."""

    task: int
    error: dict[str, Any]


ToWorker = Start | Build | Verify | Larger | Denied | Retire
FromWorker = Started | StartFailed | Explained | Need | Built | Verified | Failed


def encode(message: ToWorker | FromWorker) -> bytes:
    """The bytes of one message."""
    content = [type(message).__name__, *_values(message)]
    packed: bytes = msgpack.packb(content, default=_values, unicode_errors="backslashreplace")
    return packed


def decode_to_worker(data: bytes) -> ToWorker:
    """The message that the daemon sent. Raises ProtocolError."""
    message: ToWorker = _decode(data, _TO_WORKER)
    return message


def decode_from_worker(data: bytes) -> FromWorker:
    """The message that a worker sent. Raises ProtocolError."""
    message: FromWorker = _decode(data, _FROM_WORKER)
    return message


# --- the codec -------------------------------------------------------------------------------------------


def _values(value: Any) -> Any:
    """The values of a dataclass's fields; a number of numpy's, which user code may have put anywhere, as Python's."""
    if dataclasses.is_dataclass(value):
        cls: Any = type(value)
        return [getattr(value, name) for name in _field_names(cls)]
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"a message cannot carry a {type(value).__name__}")


@cache
def _field_names(cls: Any) -> tuple[str, ...]:
    return tuple(one.name for one in dataclasses.fields(cls))


def _decode(data: bytes, classes: dict[str, Any]) -> Any:
    try:
        kind, *values = msgpack.unpackb(data)
        cls = classes[kind]
    except Exception as error:  # msgpack documents no common base for what malformed input raises
        raise ProtocolError(f"{data[:40]!r} is no message between daemon and worker") from error
    return _read(cls, values)


def _read(cls: Any, values: Any) -> Any:
    readers = _readers(cls)
    if not isinstance(values, list) or len(values) != len(readers):
        raise ProtocolError(f"a {cls.__name__} has {len(readers)} fields; this one has others")
    return cls(*(read(value) for read, value in zip(readers, values, strict=True)))


@cache
def _readers(cls: Any) -> tuple[Callable[[Any], Any], ...]:
    """One function for each field of `cls`: it returns the field's value, or raises ProtocolError."""
    hints = get_type_hints(cls)
    return tuple(_reader(f"{cls.__name__}.{name}", hints[name]) for name in _field_names(cls))


def _reader(where: str, hint: Any) -> Callable[[Any], Any]:
    if dataclasses.is_dataclass(hint):
        return partial(_read, hint)
    if get_origin(hint) is list:
        return partial(_read_list, where, _reader(where, get_args(hint)[0]))
    allowed = get_args(hint) if isinstance(hint, types.UnionType) else (get_origin(hint) or hint,)
    return partial(_read_plain, where, allowed)


def _read_list(where: str, read: Callable[[Any], Any], value: Any) -> list[Any]:
    return [read(item) for item in _read_plain(where, (list,), value)]


def _read_plain(where: str, allowed: tuple[type, ...], value: Any) -> Any:
    if type(value) not in allowed:
        names = " or ".join(one.__name__ for one in allowed)
        raise ProtocolError(f"{where} is of type {type(value).__name__}; it must be {names}")
    return value


_TO_WORKER = {cls.__name__: cls for cls in get_args(ToWorker)}
_FROM_WORKER = {cls.__name__: cls for cls in get_args(FromWorker)}
