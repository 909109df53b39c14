"""Checks of arguments: a value is taken as the equal plain Python value, or refused by one error that names it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_service.contract import checks
from loader_service.errors import ArgumentError

NO_INTEGER = [True, np.bool_(False), 1.0, np.float32(2), "3", b"4", None, math.nan, [5], np.array([6]), int, 1j]
NO_NUMBER = [True, np.bool_(True), "0.5", b"1", None, 1j, np.complex64(1), [0.5], np.array([0.5]), float]


class Broken:
    """An object whose own code raises whatever it is asked."""

    def __index__(self) -> int:
        raise RuntimeError("index")

    def __repr__(self) -> str:
        raise RuntimeError("repr")


@given(st.integers(-(2**70), 2**70))
def test_an_int_is_itself(value: int) -> None:
    assert checks.checked_int("x", value) == value


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.uint32, np.int64, np.uint64])
def test_an_integer_of_numpy_is_a_plain_int(kind: type[np.integer]) -> None:
    for value in (kind(5), np.array(5, kind)):
        found = checks.checked_int("x", value)
        assert (type(found), found) == (int, 5)


@pytest.mark.parametrize("value", [*NO_INTEGER, Broken()], ids=lambda value: type(value).__name__)
def test_what_is_no_integer_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^E1101: x is .*; it must be an integer"):
        checks.checked_int("x", value)


@pytest.mark.parametrize(
    ("low", "high", "limit"), [(1, None, "at least 1"), (0, 7, r"\[0, 7\]"), (0, 2**63, r"2\^63\]")]
)
def test_an_integer_out_of_its_range_is_refused_with_the_range(low: int, high: int | None, limit: str) -> None:
    assert checks.checked_int("x", low, low, high) == low
    with pytest.raises(ArgumentError, match=limit):
        checks.checked_int("x", low - 1, low, high)
    if high is not None:
        assert checks.checked_int("x", high, low, high) == high
        with pytest.raises(ArgumentError, match=limit):
            checks.checked_int("x", high + 1, low, high)


@pytest.mark.parametrize("value", [3, 0.5, np.float16(0.5), np.float64(2), np.int32(4), np.array(0.25)])
def test_a_number_is_a_plain_float(value: Any) -> None:
    found = checks.checked_float("x", value)
    assert (type(found), found) == (float, float(value))


@pytest.mark.parametrize("value", [*NO_NUMBER, math.nan, math.inf, -math.inf, 10**400, np.float16("inf")])
def test_what_is_no_finite_number_is_refused(value: Any) -> None:
    with pytest.raises(ArgumentError, match="x is "):
        checks.checked_float("x", value)


def test_a_number_that_float32_lacks_is_refused_there() -> None:
    assert checks.checked_float32("x", checks.FLOAT32_MAX) == checks.FLOAT32_MAX
    with pytest.raises(ArgumentError, match="float32"):
        checks.checked_float32("x", 1e39)


@pytest.mark.parametrize("value", [True, np.bool_(True), np.array(True)])
def test_a_bool_is_a_plain_bool(value: Any) -> None:
    assert checks.checked_bool("x", value) is True


@pytest.mark.parametrize("value", [1, 0, "false", "", None, [], np.array([True]), math.nan])
def test_what_is_only_true_or_false_is_no_bool(value: Any) -> None:
    with pytest.raises(ArgumentError, match="True or False"):
        checks.checked_bool("x", value)


@pytest.mark.parametrize("values", ["13", b"13", {1, 2}, {1: 2}, 5, None, iter([1]), np.array(1), np.ones((2, 2))])
def test_what_is_no_sequence_is_refused(values: Any) -> None:
    with pytest.raises(ArgumentError, match="it must be a sequence"):
        checks.checked_sequence("x", values, checks.checked_float)


def test_what_does_not_fit_in_a_sequence_is_named_by_its_place() -> None:
    with pytest.raises(ArgumentError, match=r"x\[1\] is 'a'"):
        checks.checked_sequence("x", [1, "a"], checks.checked_int)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8))
def test_integers_are_an_array_of_the_same_numbers(values: list[int]) -> None:
    assert checks.checked_integers("x", values).tolist() == values


@pytest.mark.parametrize(
    "values", [[[1], [1, 2]], [1.5], [True], "12", np.ones((2, 2), int), [2**64], [-1, 2**63], None]
)
def test_what_are_no_integers_are_refused(values: Any) -> None:
    with pytest.raises(ArgumentError, match="x"):
        checks.checked_integers("x", values)


def test_a_mask_is_not_dropped_silently() -> None:
    with pytest.raises(ArgumentError, match="mask"):
        checks.checked_integers("x", np.ma.masked_array([1, 2], [True, False]))


@pytest.mark.parametrize(("start", "stop"), [(-1, None), (0, -1), (5, 4), (2**63, None), ("a", None), (0, 1.5)])
def test_a_span_that_there_is_not_is_refused(start: Any, stop: Any) -> None:
    with pytest.raises(ArgumentError):
        checks.checked_span(start, stop)


def test_a_span_is_ints_and_may_be_empty_or_without_end() -> None:
    assert checks.checked_span(np.int64(3), np.int64(3)) == (3, 3)
    assert checks.checked_span(0, None) == (0, None)


def one_argument(sample: object) -> object:
    return sample


@pytest.mark.parametrize("value", [5, None, "f", dict, one_argument])
def test_what_cannot_be_called_as_it_will_be_is_refused(value: Any) -> None:
    with pytest.raises(ArgumentError, match="transform"):
        checks.checked_callable("transform", value, "sample", "rng")


@pytest.mark.parametrize("value", [max, lambda sample, rng: sample, lambda *all: all])
def test_what_can_be_called_is_taken_as_it_is(value: Callable[..., Any]) -> None:
    assert checks.checked_callable("transform", value, "sample", "rng") is value


def test_an_object_without_a_part_is_refused_with_the_part_and_the_remedy() -> None:
    with pytest.raises(ArgumentError, match="no plan, write; use a collator"):
        checks.checked_parts("collator", object(), ["plan", "write"], "use a collator")


@pytest.mark.parametrize(
    ("value", "text"),
    [(5, "5"), ("a", "'a'"), (np.ones((2, 3)), "float64[2, 3]"), (10**5000, "a int")],
    ids=["int", "text", "array", "digits"],
)
def test_a_value_is_shown_in_short(value: Any, text: str) -> None:
    assert checks.shown(value) == text


def test_a_value_whose_own_text_fails_is_shown_by_its_type() -> None:
    assert "Broken" in checks.shown(Broken())


@given(st.recursive(st.integers() | st.text(), st.lists))
def test_what_is_shown_is_bounded(value: Any) -> None:
    assert len(checks.shown(value)) <= 201
