"""Whatever arrives instead of a message ends in one error, and nothing of it is run."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_service.errors import ProtocolError
from loader_service.wire import messages
from loader_service.wire.messages import CLIENT_MESSAGES, Message
from loader_service.wire.protocol import VERSION, decode, encode, request_of
from tests.wire.examples import BOTH, EXAMPLES, packed


class Trap:
    """Creates a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Path]]:
        return Path.touch, (self._path,)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_pickle_is_never_loaded(tmp_path: Path, wrapped: bool) -> None:
    trap = pickle.dumps(Trap(tmp_path / "sprung"))
    payload = packed(messages.Close(1, 1, []), consumer=trap) if wrapped else trap
    with pytest.raises(ProtocolError):
        decode([VERSION + payload], CLIENT_MESSAGES)
    assert not (tmp_path / "sprung").exists()


def decodes_or_is_refused(frames: list[bytes]) -> None:
    assert 0 <= request_of(frames) < 2**63
    try:
        message = decode(frames, BOTH)
    except ProtocolError:
        return
    sent = encode(message)  # compared as bytes, for a map may hold NaN
    assert encode(decode(sent, BOTH)) == sent


@given(st.lists(st.binary(max_size=64), max_size=4))
def test_any_frames_end_in_a_message_or_a_protocol_error(frames: list[bytes]) -> None:
    decodes_or_is_refused(frames)


@given(st.binary(max_size=256))
@settings(max_examples=300)
def test_any_payload_ends_in_a_message_or_a_protocol_error(payload: bytes) -> None:
    decodes_or_is_refused([VERSION + payload])


edits = st.lists(st.tuples(st.integers(0, 300), st.binary(max_size=3), st.integers(0, 3)), min_size=1, max_size=4)


@given(st.sampled_from(EXAMPLES), edits)
@settings(max_examples=500)
def test_a_mutated_message_ends_in_a_message_or_a_protocol_error(
    message: Message, edits: list[tuple[int, bytes, int]]
) -> None:
    [frame] = encode(message)
    for place, inserted, removed in edits:
        place %= len(frame) + 1
        frame = frame[:place] + inserted + frame[place + removed :]
    decodes_or_is_refused([frame])


leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=6)
junk = st.recursive(
    leaves | st.binary(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(EXAMPLES), st.data())
@settings(max_examples=250)
def test_any_values_in_the_fields_end_in_a_message_or_a_protocol_error(message: Any, data: st.DataObject) -> None:
    changes = data.draw(st.dictionaries(st.sampled_from([f.name for f in fields(message)] or ["extra"]), junk))
    decodes_or_is_refused([VERSION + packed(message, **changes)])
