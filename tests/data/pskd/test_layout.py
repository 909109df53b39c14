"""Layouts: their leaves in storage order, trees of values, and the values that none has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loader_service.data.pskd import DataError, Enc, Layout, Leaf, Record, Tuple, idx_width
from loader_service.data.pskd.layout import check_arrays, checked_encodings, flatten, leaves, unflatten
from loader_service.errors import ArgumentError, LoaderServiceError

_NESTED = Tuple((Leaf(9, ()), Record((("a", Leaf(None, (2,))), ("b", Tuple((Leaf(None, ()), Leaf(3, (0,)))))))))


def test_leaves_come_in_the_order_of_the_tree() -> None:
    assert [leaf.shape for leaf in leaves(_NESTED)] == [(), (2,), (), (0,)]


def test_a_tree_of_values_is_taken_apart_and_put_together() -> None:
    sample: Any = (1, {"a": [2, 3], "b": (4, [])})
    values = list(flatten(_NESTED, sample))
    assert values == [1, [2, 3], 4, []]
    assert unflatten(_NESTED, iter(values)) == sample
    assert list(flatten(_NESTED, [1, {"b": [4, []], "a": [2, 3]}])) == values


@pytest.mark.parametrize(
    ("sample", "path"),
    [
        (1, "sample is no tuple of 2 parts"),
        ((1,), "sample is no tuple of 2 parts"),
        ((1, {"a": 1}), r"sample\[1\] is no dict of the fields \['a', 'b'\]"),
        ((1, {"a": 1, "b": 2}), r"sample\[1\]\.b is no tuple"),
    ],
)
def test_another_tree_is_refused_by_its_path(sample: Any, path: str) -> None:
    with pytest.raises(DataError, match=path) as raised:
        list(flatten(_NESTED, sample))
    assert raised.value.code == "E9005"


@pytest.mark.parametrize("bound", [0, -1, 2**64, 2**70])
def test_a_bound_that_no_idx_has_is_refused(bound: int) -> None:
    with pytest.raises(ArgumentError):
        idx_width(bound)
    with pytest.raises(ArgumentError):
        Leaf(bound, ())


@pytest.mark.parametrize("shape", [(-1,), (2**63,), (1,) * 32])
def test_a_shape_that_no_tensor_has_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError):
        Leaf(None, shape)


def test_numpy_integers_and_lists_are_taken_as_ints_and_tuples() -> None:
    bound: Any = np.uint64(9)
    shape: Any = [np.int64(3)]
    leaf = Leaf(bound, shape)
    assert leaf == Leaf(9, (3,))
    assert repr(leaf) == "Leaf(bound=9, shape=(3,))"
    parts: Any = [leaf]
    assert Tuple(parts) == Tuple((leaf,))
    fields: Any = [["x", leaf]]
    assert Record(fields) == Record((("x", leaf),))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Tuple((5,)),  # type: ignore[arg-type]  # that is what is tested
        lambda: Record((("x", 5),)),  # type: ignore[arg-type]  # the same
        lambda: Record((5,)),  # type: ignore[arg-type]  # the same
    ],
)
def test_what_is_no_layout_is_refused(make: Any) -> None:
    with pytest.raises(ArgumentError):
        make()


def test_a_record_names_each_field_once() -> None:
    leaf = Leaf(None, ())
    with pytest.raises(DataError, match="a name of its own") as raised:
        Record((("x", leaf), ("x", leaf)))
    assert raised.value.code == "E9005"


@pytest.mark.parametrize(("bound", "dtype"), [(1, "u1"), (256, "u1"), (257, "u2"), (2**32, "u4"), (2**32 + 1, "u8")])
def test_an_idx_is_stored_in_the_narrowest_dtype(bound: int, dtype: str) -> None:
    assert Leaf(bound, ()).dtype(Enc.F64) == np.dtype(f"<{dtype}")


def test_a_real_is_stored_in_the_dtype_of_its_encoding() -> None:
    assert [Leaf(None, ()).dtype(enc).str for enc in Enc] == ["<f8", "<f4", "<u2"]


@pytest.mark.parametrize("value", [3, -1, 10**50, True, 1.0, "F32", None])
def test_an_encoding_that_there_is_not_is_one_error_of_ours(value: Any) -> None:
    for use in (lambda: Enc(value), lambda: checked_encodings("encodings", [value])):
        with pytest.raises(LoaderServiceError) as raised:
            use()
        assert raised.value.code == ("E9002" if type(value) is int else "E1101")


def test_encodings_are_taken_by_their_numbers() -> None:
    given: Any = [0, np.uint8(1), Enc.BF16]
    assert checked_encodings("encodings", given) == (Enc.F64, Enc.F32, Enc.BF16)


@pytest.mark.parametrize(("layout", "fits"), [(Leaf(None, (2**47, 0)), True), (Leaf(None, (0, 2**48)), False)])
def test_a_leaf_that_no_array_can_hold_is_refused(layout: Layout, fits: bool) -> None:
    if fits:
        check_arrays(leaves(layout))
        return
    with pytest.raises(DataError, match="more than an array can hold"):
        check_arrays(leaves(layout))
