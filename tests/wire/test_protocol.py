"""Messages: every class there and back, each field within its limits, and what is refused is told."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import msgpack
import pytest

from loader_service.errors import ProtocolError
from loader_service.sharing.placement import Placement
from loader_service.wire import messages
from loader_service.wire.messages import CLIENT_MESSAGES, DAEMON_MESSAGES, Message
from loader_service.wire.protocol import VERSION, decode, encode, request_of
from tests.wire.examples import BOTH, EXAMPLES, GET, KINDS, LARGEST, LONGEST_TEXT, packed

WRONG: dict[str, list[Any]] = {
    "int": [None, True, -1, -(2**63), 2**63, 2**64 - 1, 1.0, "1", b"1", [], {}],
    "bool": [None, 0, 1, "true", b"", [], {}],
    "str": [None, 3, b"x", LONGEST_TEXT + "é", [], {}],
    "Name": [None, 3, b"x", "é" * 201, [], {}],
    "list[int]": [None, 3, "12", {}, [True], [1, -1], [2**63], [1.0], ["1"], [[1]], [0] * (2**17 + 1)],
    "list[str]": [None, "ab", {}, [3], ["a", b"b"], [LONGEST_TEXT + "é"], [["a"]]],
    "bytes": [None, "ab", 3, [], {}, True],
    "Placement": [
        *(None, "a", 3, {}, [], ["a", 1], ["a", 1, 1, 1], ["a", True, 1], ["a", 1, -1], [b"a", 1, 1], [LARGEST, 1, 1]),
        *(["a", 2**63, 1], ["a", [1], 1], [LONGEST_TEXT + "é", 1, 1], {"segment": "a", "generation": 1, "nbytes": 1}),
    ],
    "dict[str, Any]": [None, "ab", 3, [], True],
    "dict[Name, Setting]": [
        *(None, "ab", 3, [], True, {"a": None}, {"a": []}, {"a": {}}, {"a": b""}, {"a": 2**63}, {"a": "é" * 201}),
        *({"é" * 201: 1}, {str(number): 0 for number in range(65)}),
    ],
}
RIGHT: dict[str, list[Any]] = {
    "int": [0, 1, *(2**k + d for k in (7, 8, 16, 32, 62) for d in (-1, 0, 1)), LARGEST],
    "bool": [True, False],
    "str": ["", "x", "\0", "😀", LONGEST_TEXT],
    "Name": ["", "x", "\0", "😀", "é" * 200],
    "list[int]": [[], [0], [LARGEST], list(range(1000)), [0] * 2**17],
    "list[str]": [[], [""], ["a"] * 257],
    "bytes": [b"", b"\0", b"ab" * 2**17],
    "Placement": [Placement("", 0, 0), Placement(LONGEST_TEXT, LARGEST, LARGEST)],
    "dict[str, Any]": [{}, {"": None}, {"a": {"b": [1.5, True, None, b"c"]}}],
    "dict[Name, Setting]": [{}, {"": 0}, {"a": True, "b": -(2**63), "c": 0.5, "é" * 200: "é" * 200}],
}


def cases(values: dict[str, list[Any]]) -> list[Any]:
    """(message, field, value) for every field of every class, by the type that it declares."""
    return [
        pytest.param(message, field.name, value, id=f"{message.kind}-{field.name}-{place}")
        for message in EXAMPLES
        for field in fields(message)
        for place, value in enumerate(values[str(field.type)])
    ]


LARGE = [
    b"\xdd\x00\x02\x00\x01" + b"\xc0" * (2**17 + 1),
    b"\xde\x00\x41" + b"".join(b"\xa2%02d\xc0" % number for number in range(65)),
    b"\xdb\x00\x04\x00\x01" + b"x" * (2**18 + 1),
    b"\xc6\x00\x01\x00\x01" + b"x" * (2**16 + 1),
    b"\xc9\x00\x01\x00\x01\x05" + b"x" * (2**16 + 1),
]
"""A list, a map, a text, bytes and an extension, each of one too many."""


def nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


def test_every_class_has_an_example() -> None:
    assert {type(message) for message in EXAMPLES} == set(BOTH.values())


@pytest.mark.parametrize("message", EXAMPLES, ids=KINDS)
def test_a_message_comes_back_as_it_was_sent(message: Message) -> None:
    assert decode(encode(message), BOTH) == message


@pytest.mark.parametrize(("message", "name", "value"), cases(RIGHT))
def test_a_field_takes_every_value_within_its_limits(message: Any, name: str, value: Any) -> None:
    changed = replace(message, **{name: value})
    assert decode(encode(changed), BOTH) == changed


@pytest.mark.parametrize(("message", "name", "value"), cases(WRONG))
def test_a_field_that_does_not_fit_is_refused_by_name(message: Any, name: str, value: Any) -> None:
    with pytest.raises(ProtocolError, match=f"field {name} of a {message.kind} message must be "):
        decode([VERSION + packed(message, **{name: value})], BOTH)


@pytest.mark.parametrize(
    ("message", "name"), [pytest.param(m, f.name, id=f"{m.kind}-{f.name}") for m in EXAMPLES for f in fields(m)]
)
def test_a_missing_field_is_refused(message: Any, name: str) -> None:
    with pytest.raises(ProtocolError, match=f"a {message.kind} message has the fields .*'{name}'.*others"):
        decode([VERSION + packed(message, **{name: ...})], BOTH)


@pytest.mark.parametrize("message", EXAMPLES, ids=KINDS)
def test_one_field_too_many_is_refused(message: Any) -> None:
    with pytest.raises(ProtocolError, match=f"a {message.kind} message has the fields"):
        decode([VERSION + packed(message, extra=1)], BOTH)


@pytest.mark.parametrize("message", EXAMPLES, ids=KINDS)
def test_a_side_takes_only_what_the_other_sends(message: Message) -> None:
    """Each message stands in one table, and the other refuses it by its kind."""
    own, other = (CLIENT_MESSAGES, DAEMON_MESSAGES)[:: 1 if message.kind in CLIENT_MESSAGES else -1]
    assert decode(encode(message), own) == message
    with pytest.raises(ProtocolError, match=f"kind is '{message.kind}'; this side takes {', '.join(other)}"):
        decode(encode(message), other)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("hola", "'hola'"),
        ("Hello", "'Hello'"),
        ("", "''"),
        ("x" * 100_000, "'xxx"),
        (None, "None"),
        (3, "3"),
        (b"hello", "b'hello'"),
        (..., "None"),
    ],
)
def test_an_unknown_kind_is_told_in_short(kind: Any, told: str) -> None:
    with pytest.raises(ProtocolError, match=f"the message's kind is {told}") as caught:
        decode([VERSION + packed(messages.Bye(), kind=kind)], CLIENT_MESSAGES)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("count", [0, 2, 3])
def test_a_message_has_one_frame(count: int) -> None:
    frames = [*encode(messages.Bye()), b"", b""][:count]
    with pytest.raises(ProtocolError, match=f"has {count} frames; it must have 1"):
        decode(frames, CLIENT_MESSAGES)


@pytest.mark.parametrize("version", [b"", b"loader-service/1\n", b"\0" + VERSION, b"x" * 100_000, b"\xff\xfe"])
def test_another_version_is_told_with_both(version: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"loader-service/2.*same release") as caught:
        decode([version + encode(messages.Bye())[0].removeprefix(VERSION)], CLIENT_MESSAGES)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("payload", "told"),
    [
        (b"", "no msgpack"),
        (b"\xc1", "no msgpack"),
        (packed(EXAMPLES[0]) + b"\0", "no msgpack: ExtraData"),
        (b"\x81\xa4kind\xa3\xff\xfe\xfd", "no msgpack: UnicodeDecodeError"),
        (b"\xdd\xff\xff\xff\xff", "no msgpack"),
        (b"\xdf\xff\xff\xff\xff", "no msgpack"),
        (b"\xc6\xff\xff\xff\xff", "no msgpack"),
        (msgpack.packb({1: "hello"}), "no msgpack: ValueError"),
        (msgpack.packb({float("nan"): "hello"}), "no msgpack: ValueError"),
        (msgpack.packb({None: "hello"}), "no msgpack: ValueError"),
        (b"\x81\x90\xc0", "no msgpack"),
        (b"\x81\x80\xc0", "no msgpack"),
        (msgpack.packb({b"kind": "bye"}), "kind is None"),
        (msgpack.packb(None), "is a NoneType; it must be a map"),
        (msgpack.packb(7), "is a int"),
        (msgpack.packb(["bye"]), "is a list"),
        (msgpack.packb("bye"), "is a str"),
        (msgpack.packb(msgpack.ExtType(5, b"bye")), "is a ExtType"),
        (msgpack.packb(msgpack.Timestamp(0)), "is a Timestamp"),
        (b"\xd6\xff\0\0\0\0", "is a Timestamp"),
        (b"\xc7\x0c\xff" + b"\xff" * 12, "message"),
        (b"\x81\xa4kind\xd4\x05x", "kind is ExtType"),
        (packed(messages.Close(1, 1, []), consumer=msgpack.ExtType(5, b"")), "field consumer"),
    ],
)
def test_what_is_no_map_of_texts_is_refused(payload: bytes, told: str) -> None:
    with pytest.raises(ProtocolError, match=told):
        decode([VERSION + payload], CLIENT_MESSAGES)


@pytest.mark.parametrize("depth", [31, 32, 33, 511, 512, 513, 990, 1000, 1023, 1024, 1025, 500_000])
def test_deep_nesting_is_refused_wherever_it_lies(depth: int) -> None:
    for payload in (
        nested(depth),
        b"\x81\xa4kind" + nested(depth),
        b"\x83\xa4kind\xa5close\xa7request\x01\xa8consumer" + nested(depth),
        b"\x81\xa4kind" + b"\x81\xa1k" * depth + b"\xc0",
    ):
        with pytest.raises(ProtocolError):
            decode([VERSION + payload], CLIENT_MESSAGES)


@pytest.mark.parametrize("large", LARGE, ids=["list", "map", "text", "bytes", "extension"])
def test_what_is_too_long_from_a_client_is_never_made(large: bytes) -> None:
    for payload in (large, b"\x81\xa4kind" + large, b"\x82\xa4kind\xa3bye\xa5extra\x91" + large):
        with pytest.raises(ProtocolError, match="no msgpack: ValueError") as caught:
            decode([VERSION + payload], CLIENT_MESSAGES)
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("message", EXAMPLES, ids=KINDS)
def test_a_truncated_message_is_refused_at_every_length(message: Message) -> None:
    [frame] = encode(message)
    for length in range(len(frame)):
        with pytest.raises(ProtocolError):
            decode([frame[:length]], BOTH)


@pytest.mark.parametrize(
    ("frames", "number"),
    [
        ([VERSION + packed(GET, step=2**63)], 7),
        ([VERSION + packed(messages.Get(LARGEST, 1, 0, 1, [], True), kind="got")], LARGEST),
        ([b"another version\n" + packed(GET)], 7),
        ([VERSION + packed(GET, request=-1)], 0),
        ([VERSION + packed(GET, request=True)], 0),
        ([VERSION + packed(GET, request=2**63)], 0),
        ([VERSION + packed(messages.Bye())], 0),
        ([VERSION + packed(GET)[:-1]], 0),
        ([VERSION], 0),
        ([b""], 0),
        ([], 0),
    ],
)
def test_the_reply_to_what_is_refused_finds_its_request(frames: list[bytes], number: int) -> None:
    assert request_of(frames) == number
