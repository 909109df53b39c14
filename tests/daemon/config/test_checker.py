"""Tables into dataclasses: each kind of option, what it takes, and the one message that refuses the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_service.daemon.config.checker import Range, check_keys, read_table
from loader_service.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Options:
    """One option of each kind."""

    name: str
    count: Annotated[int, Range(1, 8)] = 2
    pause_s: Annotated[float, Range(0, 10, above=True)] = 1.0
    size: int | str = 0
    paths: list[str] = field(default_factory=list)
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)


def read(**table: Any) -> Options:
    return read_table(Options, {"name": "n", **table}, "[here]")


def refusal(**table: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read(**table)
    return caught.value.message


def test_a_table_fills_the_fields_and_the_rest_have_their_defaults() -> None:
    assert read() == Options("n")
    made = read(count=8, pause_s=10, size="1MiB", paths=("a", "b"), tables={"t": {"x": [1]}})
    assert made == Options("n", 8, 10.0, "1MiB", ["a", "b"], {"t": {"x": [1]}})


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_an_integer_of_any_library_becomes_pythons(value: Any) -> None:
    made = read(count=value, size=value, pause_s=value)
    assert [type(one) for one in (made.count, made.size, made.pause_s)] == [int, int, int]
    assert made.count == 3


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), np.float64(0.5), Fraction(1, 2)])
def test_a_number_of_any_library_becomes_pythons(value: Any) -> None:
    made = read(pause_s=value)
    assert (made.pause_s, type(made.pause_s)) == (0.5, float)


def test_any_mapping_is_a_table() -> None:
    assert read_table(Options, MappingProxyType({"name": "n"}), "[here]") == Options("n")


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"name": 3}, "[here] name is 3; it must be text"),
        ({"count": 0}, "[here] count is 0; it must be an integer from 1 to 8"),
        ({"count": 9}, "[here] count is 9; it must be an integer from 1 to 8"),
        ({"count": True}, "[here] count is True; it must be an integer from 1 to 8"),
        ({"count": np.bool_(True)}, "[here] count is np.True_; it must be an integer from 1 to 8"),
        ({"count": 2.0}, "[here] count is 2.0; it must be an integer from 1 to 8"),
        ({"count": None}, "[here] count is None; it must be an integer from 1 to 8"),
        ({"pause_s": 0}, "[here] pause_s is 0; it must be a number above 0, at most 10"),
        ({"pause_s": float("nan")}, "[here] pause_s is nan; it must be a number above 0, at most 10"),
        ({"pause_s": float("inf")}, "[here] pause_s is inf; it must be a number above 0, at most 10"),
        ({"pause_s": False}, "[here] pause_s is False; it must be a number above 0, at most 10"),
        ({"pause_s": 1j}, "[here] pause_s is 1j; it must be a number above 0, at most 10"),
        ({"size": 1.5}, "[here] size is 1.5; it must be an integer or text"),
        ({"paths": "a"}, "[here] paths is 'a'; it must be a list"),
        ({"paths": ["a", 3]}, "[here] paths[1] is 3; it must be text"),
        ({"tables": 3}, "[here] tables is 3; it must be a table"),
        ({"tables": {"t": 3}}, "[here] tables.t is 3; it must be a table"),
        ({"tables": {3: {}}}, "[here] tables has the key 3; its keys must be text"),
        ({"counts": 3}, "[here] has no key 'counts'; did you mean 'count'? known keys: name, count, pause_s, size"),
        ({"zzz": 3}, "[here] has no key 'zzz'; known keys: name, count, pause_s, size, paths, tables"),
    ],
)
def test_what_does_not_fit_is_told_with_place_value_and_limit(table: dict[str, Any], told: str) -> None:
    if "np.True_" in told:
        told = told.replace("np.True_", repr(np.bool_(True)))
    assert refusal(**table).startswith(told)


def test_a_key_that_must_be_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"\[here\] must have the key `name`"):
        read_table(Options, {}, "[here]")


@pytest.mark.parametrize("table", [None, 3, "text", ["name"], Options("n")])
def test_what_is_no_table_is_told_so(table: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"\[here\] is .*; it must be a table"):
        read_table(Options, table, "[here]")


@given(st.integers() | st.floats() | st.none() | st.text(max_size=3) | st.booleans())
def test_a_value_is_either_within_its_range_or_refused(value: Any) -> None:
    try:
        made = read(count=value)
    except ConfigurationError:
        assert type(value) is not int or not 1 <= value <= 8
    else:
        assert made.count == value


def test_keys_that_are_no_text_are_refused_too() -> None:
    check_keys({"a": 1}, ["a"], "[here]")
    with pytest.raises(ConfigurationError, match=r"\[here\] has no key 3; known keys: a"):
        check_keys({3: 1}, ["a"], "[here]")


def test_a_very_long_value_is_told_in_short() -> None:
    assert len(refusal(paths="x" * 10_000)) < 200
