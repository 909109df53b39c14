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
from operator import itemgetter
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


def _is_placement(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 3
        and _is_text(value[0])
        and _is_number(value[1])
        and _is_number(value[2])
    )


# By the text of a field's annotation: a check of its value, and the limit in words. A class stands for itself alone.
_CHECKS: dict[str, tuple[type | Callable[[Any], bool], str]] = {
    "int": (_is_number, "an integer in [0, 2^63)"),
    "bool": (bool, "true or false"),
    "str": (_is_text, f"text of at most {_MAX_TEXT} characters"),
    "Name": (_is_name, f"text of at most {_MAX_NAME} characters"),
    "list[int]": (partial(_is_list_of, _is_number), f"a list of at most {_MAX_LIST} integers"),
    "list[str]": (partial(_is_list_of, _is_text), f"a list of at most {_MAX_LIST} texts"),
    "bytes": (bytes, "bytes"),
    "dict[str, Any]": (dict, "a map"),
    "dict[Name, Setting]": (
        _are_settings,
        f"a map of at most {_MAX_SETTINGS} names to numbers of 64 bits or texts of at most {_MAX_NAME} characters",
    ),
    "Placement": (_is_placement, f"[text of at most {_MAX_TEXT} characters, two integers in [0, 2^63)]"),
}


class _Fields:
    """The fields of one class of messages, grouped by how they are checked.

    Numbers are most of what a message holds, so they are checked together, without a call for each.
    """

    __slots__ = ("_numbers_of", "checked", "names", "numbers", "placements", "typed")

    def __init__(self, cls: type[Message]) -> None:
        kinds = {one.name: str(one.type) for one in dataclasses.fields(cls)}  # type: ignore[arg-type]  # dataclasses all
        self.names = kinds.keys()
        self.numbers = tuple(name for name, kind in kinds.items() if kind == "int")
        self._numbers_of: Callable[[dict[str, Any]], Any] | None = None
        if self.numbers:
            self._numbers_of = itemgetter(*self.numbers, self.numbers[0])  # the first one twice: always a tuple
        rest = [(name, *_CHECKS[kind]) for name, kind in kinds.items() if kind != "int"]
        self.typed = tuple((name, check, limit) for name, check, limit in rest if isinstance(check, type))
        self.checked = tuple((name, check, limit) for name, check, limit in rest if not isinstance(check, type))
        self.placements = tuple(name for name, kind in kinds.items() if kind == "Placement")

    def misfit(self, content: dict[str, Any]) -> tuple[str, str] | None:
        """The name and the limit of a field whose value does not fit; None where all do."""
        if self._numbers_of is not None:
            numbers = self._numbers_of(content)
            if set(map(type, numbers)) != _INT or min(numbers) < 0 or max(numbers) >= 2**63:
                return next(name for name in self.numbers if not _is_number(content[name])), _CHECKS["int"][1]
        for name, cls, limit in self.typed:
            if type(content[name]) is not cls:
                return name, limit
        for name, check, limit in self.checked:
            if not check(content[name]):
                return name, limit
        return None


_INT = {int}
_FIELDS = {cls: _Fields(cls) for cls in (*CLIENT_MESSAGES.values(), *DAEMON_MESSAGES.values())}


def encode(message: Message) -> list[bytes]:
    """Encode a message as its frame, without an identity, in the list that zmq takes."""
    fields = _FIELDS[type(message)]
    content: dict[str, Any] = {"kind": message.kind}
    for name in fields.names:
        content[name] = getattr(message, name)
    for name in fields.placements:
        placement: Placement = content[name]
        content[name] = [placement.segment, placement.generation, placement.nbytes]
    return [VERSION + msgpack.packb(content, unicode_errors="backslashreplace")]


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
    """Decode the message in `frames`.

    Args:
        frames: one frame, without an identity.
        table: the classes that this side takes, by kind: CLIENT_MESSAGES or DAEMON_MESSAGES.

    Raises:
        ProtocolError: it is anything else than a message of one of these classes, within its limits.
    """
    content = _unpacked(frames, _FROM_CLIENTS if table is CLIENT_MESSAGES else {})
    kind = content.pop("kind", None)
    cls = table.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ProtocolError(f"the message's kind is {reprlib.repr(kind)}; this side takes {', '.join(table)}")
    fields = _FIELDS[cls]
    if content.keys() != fields.names:
        raise ProtocolError(f"a {kind} message has the fields {sorted(fields.names)}; this one has others")
    misfit = fields.misfit(content)
    if misfit is not None:
        raise ProtocolError(f"field {misfit[0]} of a {kind} message must be {misfit[1]}")
    for name in fields.placements:
        content[name] = Placement(*content[name])
    return cls(**content)


def request_of(frames: Sequence[bytes]) -> int:
    """The request number of a message that does not decode, for the reply; 0 where it cannot be read that far."""
    try:  # whatever the version before the map
        number: Any = _unpacked([VERSION + frames[0].partition(b"\n")[2]], _FROM_CLIENTS).get("request")
    except (IndexError, ProtocolError):
        return 0
    return int(number) if _is_number(number) else 0
