"""Layouts: aligned, apart, the same after a journey, and nothing malformed gets through."""

from __future__ import annotations

import math
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_service.contract.layout import ALIGNMENT, EACH_ROW, WHOLE, Layout, align, ragged
from loader_service.errors import ArgumentError, ProtocolError

Planned = list[tuple[str, str, list[int]]]

dtypes = st.sampled_from(["|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u8", "<f2", "<f4", "<f8", "<c16", ">f4"])
shapes = st.lists(st.integers(0, 9), max_size=4)
tensors = st.tuples(st.text(max_size=5), dtypes, shapes)
plans = st.lists(tensors, max_size=8, unique_by=lambda tensor: str(tensor[0]))
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.binary(max_size=6)
junk = st.recursive(
    leaves | dtypes,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)


@given(st.integers(0, 2**50), st.integers(1, 4096))
def test_align_gives_the_next_multiple(nbytes: int, unit: int) -> None:
    aligned = align(nbytes, unit)
    assert aligned % unit == 0
    assert nbytes <= aligned < nbytes + unit


@given(plans)
def test_tensors_are_aligned_in_order_and_apart(planned: Planned) -> None:
    layout = Layout.plan(planned)
    end = 0
    for spec, (name, dtype, shape) in zip(layout.tensors, planned, strict=True):
        assert (spec.name, spec.dtype, spec.shape) == (name, np.dtype(dtype), tuple(shape))
        assert spec.offset % ALIGNMENT == 0
        assert end <= spec.offset < end + ALIGNMENT
        end = spec.offset + np.dtype(dtype).itemsize * math.prod(shape)
    assert layout.nbytes == end


@given(plans, st.data())
def test_a_layout_survives_the_wire(planned: Planned, data: st.DataObject) -> None:
    """With how rows lie in each tensor."""
    rows = st.sampled_from([EACH_ROW, WHOLE, *(ragged(name) for name, _, _ in planned)])
    told = [(*tensor, data.draw(rows)) for tensor in planned]
    layout = Layout.plan(told)
    assert [spec.rows for spec in layout.tensors] == [tensor[3] for tensor in told]
    back = Layout.from_wire(layout.to_wire())
    assert back == layout
    assert [spec.lengths for spec in back.tensors] == [spec.lengths for spec in layout.tensors]


def test_rows_are_those_of_the_first_axis_where_nothing_else_is_said() -> None:
    layout = Layout.plan([("a", "i4", [2]), ("b", "i4", [2], WHOLE), ("c", "i4", [5], ragged("a")), ("d", "i4", [])])
    assert [spec.rows for spec in layout.tensors] == [EACH_ROW, WHOLE, "ragged:a", EACH_ROW]
    assert [spec.lengths for spec in layout.tensors] == [None, None, "a", None]


@pytest.mark.parametrize("name", ["", "each", "whole", "ragged:", "ragged:x", "é\n"])
def test_lengths_may_stand_before_or_behind_and_have_any_name(name: str) -> None:
    tensors: list[tuple[str, str, list[int], str]] = [(name, "i4", [1], EACH_ROW), ("r", "i4", [1], ragged(name))]
    for planned in (tensors, tensors[::-1]):
        layout = Layout.plan(planned)
        assert {spec.name: spec.lengths for spec in layout.tensors} == {name: None, "r": name}
        assert Layout.from_wire(layout.to_wire()) == layout


@pytest.mark.parametrize("rows", ["", "Each", "all", "ragged", "ragged:", "ragged:b ", ragged("nothing"), "each:a"])
def test_rows_that_nothing_explains_are_refused_where_they_are_planned(rows: str) -> None:
    with pytest.raises(ArgumentError, match=f"tensor 'a' has the rows '{rows}'; they must be EACH_ROW, WHOLE, or"):
        Layout.plan([("a", np.int8, [2], rows), ("b", np.int32, [2])])


@given(plans)
def test_what_is_written_through_one_view_shows_in_no_other(planned: Planned) -> None:
    layout = Layout.plan(planned)
    views = layout.views(np.zeros(layout.nbytes, np.uint8))
    for name, view in views.items():
        view.fill(1)
        assert all((other == 0).all() for key, other in views.items() if key != name)
        view.fill(0)


def test_views_share_the_buffer_and_keep_it_alive() -> None:
    layout = Layout.plan([("a", np.int32, [2]), ("b", np.float64, [])])
    buffer = np.zeros(layout.nbytes + 100, np.uint8)
    views = layout.views(buffer)
    views["b"][...] = 1.5
    assert np.frombuffer(buffer[64:72].tobytes()).tolist() == [1.5]
    del buffer
    assert views["b"].tolist() == 1.5


def test_views_of_a_read_only_buffer_are_read_only() -> None:
    buffer = np.zeros(64, np.uint8)
    buffer.flags.writeable = False
    view = Layout.plan([("a", np.int8, [3])]).views(buffer)["a"]
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_no_tensors_need_no_bytes() -> None:
    assert Layout.plan([]) == Layout((), 0)
    assert Layout.from_wire([]) == Layout((), 0)


@pytest.mark.parametrize("dtype", [object, "S4", "U4", "M8[s]", "V8", "i4,f4"], ids=str)
def test_what_is_no_number_has_no_place_in_a_batch(dtype: Any) -> None:
    with pytest.raises(ArgumentError, match=r"tensor 'a' has dtype .*; a batch holds numbers only"):
        Layout.plan([("a", dtype, [2])])


def test_a_name_that_stands_twice_is_refused() -> None:
    with pytest.raises(ArgumentError, match="names a tensor twice"):
        Layout.plan([("a", np.int8, [2]), ("a", np.int8, [2])])


@pytest.mark.parametrize(
    "entries",
    [
        None,
        {},
        "text",
        [None],
        [["a", "<f4", [2]]],
        [["a", "<f4", [2], 0]],
        [["a", "<f4", [2], 0, "each", 0]],
        [[b"a", "<f4", [2], 0, "each"]],
        [["a", None, [2], 0, "each"]],
        [["a", "", [2], 0, "each"]],
        [["a", "f4", [2], 0, "each"]],
        [["a", "<f3", [2], 0, "each"]],
        [["a", "|O8", [2], 0, "each"]],
        [["a", "|O", [2], 0, "each"]],
        [["a", "|S4", [2], 0, "each"]],
        [["a", "<M8[s]", [2], 0, "each"]],
        [["a", "(2,)<f4", [2], 0, "each"]],
        [["a", "<f4,<f4", [2], 0, "each"]],
        [["a", "<f4\n", [2], 0, "each"]],
        [["a", "<f4", None, 0, "each"]],
        [["a", "<f4", 2, 0, "each"]],
        [["a", "<f4", [-1], 0, "each"]],
        [["a", "<f4", [True], 0, "each"]],
        [["a", "<f4", [2.0], 0, "each"]],
        [["a", "<f4", [2**48], 0, "each"]],
        [["a", "<f4", [2**47, 2**47], 0, "each"]],
        [["a", "<f4", [0, 2**47, 2**47], 0, "each"]],
        [["a", "<f4", [1] * 33, 0, "each"]],
        [["a", "<f4", [2], None, "each"]],
        [["a", "<f4", [2], -64, "each"]],
        [["a", "<f4", [2], 8, "each"]],
        [["a", "<f4", [2], 2**48, "each"]],
        [["a", "<f4", [2], 64.0, "each"]],
        [["a", "<f4", [2], 0, "each"], ["a", "<f4", [2], 64, "each"]],
        [["a", "<f4", [20], 0, "each"], ["b", "<f4", [2], 64, "each"]],
        [["a", "<f4", [2], 64, "each"], ["b", "<f4", [2], 0, "each"]],
        *[[["a", "<f4", [2], 0, rows]] for rows in (None, 0, b"each", ["each"], "", "Each", "ragged", "x" * 100_000)],
        [["a", "<f4", [2], 0, "ragged:b"]],
        [["a", "<f4", [2], 0, "ragged:"]],
        [["a", "<f4", [2], 0, "ragged:b:"], ["b", "<i4", [2], 64, "each"]],
    ],
    ids=lambda entries: repr(entries)[:60],
)
def test_a_malformed_layout_is_refused(entries: Any) -> None:
    with pytest.raises(ProtocolError) as caught:
        Layout.from_wire(entries)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("offset", [64, 0])
def test_what_only_compares_equal_to_an_offset_is_none(offset: int) -> None:
    """Also when the true one was seen before, for tensors are cached."""
    for _ in range(2):
        assert Layout.from_wire([["a", "<f4", [2], offset, "each"]]).tensors[0].offset == offset
        wrong: list[Any] = [float(offset), bool(offset), [], {}]
        for other in wrong:
            with pytest.raises(ProtocolError, match="tensor 'a' has an offset that is no multiple of 64"):
                Layout.from_wire([["a", "<f4", [2], other, "each"]])


@given(junk | st.lists(st.tuples(junk, junk, junk, junk, junk).map(list), max_size=3))
def test_whatever_comes_is_a_layout_or_a_protocol_error(entries: Any) -> None:
    try:
        layout = Layout.from_wire(entries)
    except ProtocolError:
        return
    assert Layout.from_wire(layout.to_wire()) == layout


@given(plans, st.data())
def test_one_changed_field_gives_a_usable_layout_or_an_error(planned: Planned, data: st.DataObject) -> None:
    entries = Layout.plan(planned).to_wire()
    if not entries:
        return
    entry, field = data.draw(st.integers(0, len(entries) - 1)), data.draw(st.integers(0, 4))
    entries[entry][field] = data.draw(junk | st.integers(0, 5).map(lambda k: k * ALIGNMENT))
    try:
        layout = Layout.from_wire(entries)
    except ProtocolError:
        return
    if layout.nbytes < 2**20:
        layout.views(np.zeros(layout.nbytes, np.uint8))


CARRIED: list[Any] = [bool, np.int8, np.uint64, np.float16, np.float64, np.complex64, np.complex128, ">f4", ">u8"]
CARRIED += [ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu]


@pytest.mark.parametrize("dtype", CARRIED, ids=lambda dtype: np.dtype(dtype).name)
def test_a_dtype_that_is_carried_is_the_same_behind_the_wire(dtype: Any) -> None:
    layout = Layout.plan([("a", dtype, [3])])
    again = Layout.from_wire(layout.to_wire())
    assert again == layout
    assert again.tensors[0].dtype == np.dtype(dtype)
    view = again.views(np.zeros(layout.nbytes, np.uint8))["a"]
    view[...] = 1
    assert view.astype(np.complex128).tolist() == [1, 1, 1]


NOT_CARRIED: list[Any] = [None, np.longdouble, np.clongdouble, "foo", "i4,f4", dict, ml_dtypes.int4, 5]
NOT_CARRIED += [ml_dtypes.float4_e2m1fn, np.dtype(("f4", (2,)))]


@pytest.mark.parametrize("dtype", NOT_CARRIED, ids=str)
def test_a_dtype_that_is_not_carried_is_refused_where_it_is_planned(dtype: Any) -> None:
    with pytest.raises(ArgumentError, match="tensor 'a' has dtype"):
        Layout.plan([("a", dtype, [3])])


@pytest.mark.parametrize("text", ["<f16", "<c32", "<f1", "<i3", "float8", "int4", "longdouble", "|V2", "float8_e5m2 "])
def test_a_dtype_that_is_not_carried_is_refused_behind_the_wire(text: str) -> None:
    with pytest.raises(ProtocolError, match="tensor 'a' has dtype"):
        Layout.from_wire([["a", text, [3], 0, EACH_ROW]])


def test_a_reader_without_the_package_of_a_dtype_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ProtocolError, match="dtype float8_e3m4, of the package ml_dtypes; install it"):
        Layout.from_wire([["only here", "float8_e3m4", [3], 0, EACH_ROW]])


PLANS: list[tuple[Any, str]] = [
    (None, "tensors is None"),
    ("abc", "tensors is 'abc'"),
    ([("a", "f4")], r"a tensor is planned as \('a', 'f4'\)"),
    (["a"], "a tensor is planned as 'a'"),
    ([(5, "f4", [1])], "the name of a tensor is 5"),
    ([("a", "f4", [2.7])], r"the shape of tensor 'a'\[0\] is 2\.7; it must be an integer"),
    ([("a", "f4", [True])], r"the shape of tensor 'a'\[0\] is True"),
    ([("a", "f4", [-1])], r"the shape of tensor 'a'\[0\] is -1"),
    ([("a", "f4", 3)], "the shape of tensor 'a' is 3; it must be a sequence"),
    ([("a", "f4", [2**48])], r"the tensors need 1125899906842624 bytes; a batch has at most 2\^48"),
    ([("a", "f4", [1] * 33)], "tensor 'a' has 33 dimensions; a batch holds at most 32"),
    ([("a", "f4", [1], 5)], "rows is 5"),
]


@pytest.mark.parametrize(("planned", "told"), PLANS, ids=[told for _, told in PLANS])
def test_a_plan_that_is_none_is_refused(planned: Any, told: str) -> None:
    with pytest.raises(ArgumentError, match=told):
        Layout.plan(planned)


def test_numpy_integers_are_sizes() -> None:
    sizes: Any = [np.uint8(200), np.int64(2), np.array(3)]
    assert Layout.plan([("a", "i1", sizes)]).tensors[0].shape == (200, 2, 3)


@pytest.mark.parametrize("buffer", [None, bytes(64), np.zeros(63, np.uint8), np.zeros(64), np.zeros((2, 64), np.uint8)])
def test_a_buffer_that_cannot_hold_the_layout_is_refused(buffer: Any) -> None:
    with pytest.raises(ArgumentError, match="buffer"):
        Layout.plan([("a", "i1", [64])]).views(buffer)
