"""Layouts as bytes: read back as they were, and refused where they are none."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_service.contract.layout import Layout, ragged
from loader_service.errors import ProtocolError
from loader_service.wire.layouts import pack_layout, unpack_layout

RAGGED = Layout.plan([("n", "int32", [2]), ("words", "<f8", [5, 3], ragged("n")), ("é\udcff", "bool", [0], "whole")])


@pytest.mark.parametrize("tensors", [0, 1, 2, 100, 5000])
def test_a_layout_comes_back_as_it_was(tensors: int) -> None:
    """Also one that is too large to be kept."""
    layout = Layout.plan([(f"t{number}", "float32", [number % 7, 3]) for number in range(tensors)])
    for _ in range(2):
        assert unpack_layout(pack_layout(layout)) == layout


junk = st.recursive(st.none() | st.integers(-5, 2**63) | st.text(max_size=3) | st.binary(max_size=3), st.lists)


@given(st.binary(max_size=40) | junk.map(msgpack.packb))
def test_whatever_is_no_layout_is_refused(packed: bytes) -> None:
    if packed != b"\x90":  # a layout of no tensors
        for _ in range(2):
            with pytest.raises(ProtocolError) as caught:
                unpack_layout(packed)
            assert len(str(caught.value)) < 300


@given(st.data())
def test_a_changed_byte_gives_a_layout_or_an_error(data: st.DataObject) -> None:
    packed = bytearray(pack_layout(RAGGED))
    packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    found: Any = None
    try:
        found = unpack_layout(bytes(packed))
    except ProtocolError:
        return
    assert unpack_layout(pack_layout(found)) == found
