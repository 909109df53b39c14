"""The frames that carry the messages between client and daemon.

Owns `encode` and `decode`. Invariant: what `decode` returns has every field, of the declared type and within its
limits; anything else is a ProtocolError of a few hundred characters, and nothing more. What clients send is limited
in bytes, in the lengths of its texts, lists and maps, and in depth: nothing in it is nested. Never pickle.

    one frame, for a send of several can be interrupted between two of them: VERSION, then a msgpack map
    {"kind": name, field: value, ...}; a ROUTER puts the sender's identity before. A value of a class, a
    Placement, is the list of its fields' values, in their order
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgpack

from loader_service.errors import ProtocolError
from loader_service.sharing.placement import Placement
from loader_service.wire.messages import CLIENT_MESSAGES, DAEMON_MESSAGES, Message

__all__ = ["MAX_MESSAGE_BYTES", "VERSION", "decode", "encode", "request_of"]

VERSION = b"loader-service/2\n"
MAX_MESSAGE_BYTES = 1 << 20
"""The daemon's limit for one message from a client."""
_MAX_TEXT = 1 << 16
_MAX_NAME = 200
_MAX_LIST = 1 << 17
"""Twice what a consumer can hold, for a ring has at most 65,536 slots."""
_MAX_SETTINGS = 64
_FROM_CLIENTS = {
    "max_str_len": 4 * _MAX_TEXT,
    "max_bin_len": _MAX_TEXT,
    "max_ext_len": _MAX_TEXT,
    "max_array_len": _MAX_LIST,
    "max_map_len": _MAX_SETTINGS,
}
"""msgpack's own limits: nothing larger is ever made of what a client sent."""


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_TEXT


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_NAME


def _is_setting(value: Any) -> bool:
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return isinstance(value, float) or _is_name(value)


def _are_settings(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= _MAX_SETTINGS
        and all(_is_name(name) and _is_setting(one) for name, one in value.items())
    )


def _is_list_of(fits: Callable[[Any], bool], value: Any) -> bool:
    return isinstance(value, list) and len(value) <= _MAX_LIST and all(map(fits, value))


# By the text of a field's annotation: what its value must be.
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (_is_number, "an integer in [0, 2^63)"),
    "bool": (lambda value: isinstance(value, bool), "true or false"),
    "str": (_is_text, f"text of at most {_MAX_TEXT} characters"),
    "Name": (_is_name, f"text of at most {_MAX_NAME} characters"),
    "list[int]": (partial(_is_list_of, _is_number), f"a list of at most {_MAX_LIST} integers"),
    "list[str]": (partial(_is_list_of, _is_text), f"a list of at most {_MAX_LIST} texts"),
    "bytes": (lambda value: isinstance(value, bytes), "bytes"),
    "dict[str, Any]": (lambda value: isinstance(value, dict), "a map"),
    "dict[Name, Setting]": (
        _are_settings,
        f"a map of at most {_MAX_SETTINGS} names to numbers of 64 bits or texts of at most {_MAX_NAME} characters",
    ),
}
_CLASSES: dict[str, type[Any]] = {"Placement": Placement}
"""Values that stand in a field, by the text of its annotation."""


def _fits_class(checks: Sequence[Callable[[Any], bool]], value: Any) -> bool:
    fitting = isinstance(value, list) and len(value) == len(checks)
    return fitting and all(fits(one) for fits, one in zip(checks, value, strict=True))


def _check_of_class(cls: type[Any]) -> tuple[Callable[[Any], bool], str]:
    fields = [(one.name, *_CHECKS[str(one.type)]) for one in dataclasses.fields(cls)]
    limits = ", ".join(f"{name}: {limit}" for name, _, limit in fields)
    return partial(_fits_class, [fits for _, fits, _ in fields]), f"a list of {limits}"


_CHECKS |= {name: _check_of_class(cls) for name, cls in _CLASSES.items()}


def _types_of(cls: type[Message]) -> dict[str, str]:
    return {one.name: str(one.type) for one in dataclasses.fields(cls)}  # type: ignore[arg-type]  # dataclasses all


_ALL = (*CLIENT_MESSAGES.values(), *DAEMON_MESSAGES.values())
_FIELDS = {cls: {name: _CHECKS[kind] for name, kind in _types_of(cls).items()} for cls in _ALL}
_FIELDS_OF_CLASSES = {
    cls: {name: _CLASSES[kind] for name, kind in _types_of(cls).items() if kind in _CLASSES} for cls in _ALL
}


def _values_of(value: Any) -> list[Any]:
    """The values of the fields of a value of a class; `dataclasses.astuple` copies deeply, at ten times the cost."""
    return [getattr(value, name) for name in value.__dataclass_fields__]


def encode(message: Message) -> list[bytes]:
    """The frame of a message, without an identity, as the list that zmq takes."""
    fields = {name: getattr(message, name) for name in _FIELDS[type(message)]}
    for name in _FIELDS_OF_CLASSES[type(message)]:
        fields[name] = _values_of(fields[name])
    return [VERSION + msgpack.packb({"kind": message.kind, **fields}, unicode_errors="backslashreplace")]


def _unpacked(frames: Sequence[bytes], limits: dict[str, int]) -> dict[str, Any]:
    if len(frames) != 1:
        raise ProtocolError(f"the message has {len(frames)} frames; it must have 1")
    if not frames[0].startswith(VERSION):
        peer = frames[0][:32].partition(b"\n")[0]
        raise ProtocolError(f"the peer speaks {peer!r} and this side {VERSION!r}; install the same release on both")
    try:
        content = msgpack.unpackb(frames[0][len(VERSION) :], strict_map_key=True, **limits)
    except Exception as error:  # msgpack documents no common base for what malformed input raises
        raise ProtocolError(f"the message is no msgpack: {type(error).__name__}") from error
    if not isinstance(content, dict):
        raise ProtocolError(f"the message is a {type(content).__name__}; it must be a map with a `kind`")
    return content


def decode(frames: Sequence[bytes], table: dict[str, type[Message]]) -> Message:
    """The message in `frames`, of one of the classes in `table`. Raises ProtocolError for anything else."""
    content = _unpacked(frames, _FROM_CLIENTS if table is CLIENT_MESSAGES else {})
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
    for name, made in _FIELDS_OF_CLASSES[cls].items():
        content[name] = made(*content[name])
    return cls(**content)


def request_of(frames: Sequence[bytes]) -> int:
    """The request number of a message that does not decode, for the reply; 0 where it cannot be read that far."""
    try:  # whatever the version before the map
        number: Any = _unpacked([VERSION + frames[0].partition(b"\n")[2]], _FROM_CLIENTS).get("request")
    except (IndexError, ProtocolError):
        return 0
    return int(number) if _is_number(number) else 0
