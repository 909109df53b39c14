"""The messages between daemon and worker: each arrives as it was sent, and nothing else is taken for one."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from typing import Any, get_args

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_service.daemon.workers.messages import (
    Built,
    Failed,
    FromWorker,
    Retire,
    Start,
    Started,
    StreamFacts,
    StreamSpec,
    ToWorker,
    Verified,
    decode_from_worker,
    decode_to_worker,
    encode,
)
from loader_service.errors import ProtocolError
from loader_service.sharing.placement import Placement

SPEC = StreamSpec("train", "a:b", {"seed": 2**63, "deep": [None, {"x": 0.5}], "text": "é"}, measure=True)
FACTS = StreamFacts("train", 12, "f" * 64, {"sampler": {"size": 5}}, None)


def example(cls: Any) -> Any:
    """An instance with a value of the right type in each field."""
    values = {"int": 7, "str": "text", "bool": True, "bytes": b"\0\xff", "list[int]": [1, 2], "list[str]": ["a", "é"]}
    values |= {"dict[str, Any]": {"code": "E1000", "details": {"step": 1}}, "list[StreamSpec]": [SPEC]}
    values |= {
        "list[StreamFacts]": [FACTS, dataclasses.replace(FACTS, batch_bytes=9)],
        "int | None": None,
        "Placement": Placement("lsv-1", 3, 4096),
    }
    return cls(**{one.name: values[one.type] for one in _fields(cls)})


def _fields(cls: Any) -> Any:
    return dataclasses.fields(cls)


@pytest.mark.parametrize("cls", get_args(ToWorker))
def test_what_the_daemon_sends_arrives_as_it_was(cls: Any) -> None:
    assert decode_to_worker(encode(example(cls))) == example(cls)


@pytest.mark.parametrize("cls", get_args(FromWorker))
def test_what_a_worker_sends_arrives_as_it_was(cls: Any) -> None:
    assert decode_from_worker(encode(example(cls))) == example(cls)


def test_each_side_takes_only_what_the_other_sends() -> None:
    with pytest.raises(ProtocolError, match="is no message between daemon and worker"):
        decode_to_worker(encode(example(Built)))
    with pytest.raises(ProtocolError, match="is no message between daemon and worker"):
        decode_from_worker(encode(Retire("lsv-1")))


@pytest.mark.parametrize("content", [[], ["Retire"], ["Retire", "a", "b"], ["Retire", 3], ["Retire", None]])
def test_fields_that_do_not_fit_are_refused(content: list[Any]) -> None:
    with pytest.raises(ProtocolError):
        decode_to_worker(msgpack.packb(content))


@pytest.mark.parametrize(("field", "value"), [("steps_per_epoch", True), ("steps_per_epoch", 2.0), ("batch_bytes", "")])
def test_fields_of_what_stands_within_a_message_are_checked_too(field: str, value: Any) -> None:
    wrong: Any = {field: value}
    with pytest.raises(ProtocolError, match=rf"StreamFacts\.{field} is of type {type(value).__name__}; it must be int"):
        decode_from_worker(encode(Started([dataclasses.replace(FACTS, **wrong)])))


@given(st.binary(max_size=64))
def test_bytes_of_any_kind_are_a_message_or_an_error_of_ours(data: bytes) -> None:
    for decode in (decode_to_worker, decode_from_worker):
        with suppress(ProtocolError):
            assert type(decode(data)) in get_args(ToWorker | FromWorker)


def test_numbers_of_numpy_arrive_as_pythons() -> None:
    """A sampler of the user's may count with them."""
    twelve: Any = np.int64(12)
    assert decode_from_worker(encode(Started([dataclasses.replace(FACTS, steps_per_epoch=twelve)]))) == Started([FACTS])


def test_half_characters_arrive_as_escapes() -> None:
    assert decode_from_worker(encode(Verified(1, ["\udcff"]))) == Verified(1, ["\\udcff"])


def test_what_no_message_can_carry_is_an_error_of_the_sender() -> None:
    with pytest.raises(TypeError, match="a message cannot carry a set"):
        encode(Failed(1, {"details": {1, 2}}))
    assert encode(Start([], [])) == msgpack.packb(["Start", [], [], "auto"])
