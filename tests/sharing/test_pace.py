"""Pace and terms: what a consumer may say, and how its debt goes up and down."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_service.errors import ArgumentError
from loader_service.sharing.pace import DEFAULT_HOLD, ConsumerOptions, Pace, debt_after, seconds_until

SECONDS = st.floats(0, 1e6)


@pytest.mark.parametrize("policy", ["", "Split", "drop"])
def test_a_policy_is_split_or_wait(policy: str) -> None:
    with pytest.raises(ArgumentError, match="'split' or 'wait'"):
        Pace(policy)


@pytest.mark.parametrize("patience_s", [-1.0, -1e-9, 1e6 + 1, math.inf, math.nan])
def test_patience_is_a_number_of_seconds_that_ends(patience_s: float) -> None:
    with pytest.raises(ArgumentError, match="patience_s"):
        Pace("split", patience_s)


@pytest.mark.parametrize("patience_s", [0, 0.5, 1, 1e6])
def test_one_who_splits_is_overdue_at_its_patience_and_one_for_whom_others_wait_never(patience_s: float) -> None:
    assert Pace("split", patience_s).limit_s == patience_s
    assert Pace("wait", patience_s).limit_s == math.inf


@pytest.mark.parametrize(("prefetch", "hold"), [(1, 1), (2, 2), (3, 2), (8, 2)])
def test_who_asks_for_no_hold_gets_two_or_what_fits(prefetch: int, hold: int) -> None:
    assert ConsumerOptions().hold_in(prefetch) == hold <= DEFAULT_HOLD


@pytest.mark.parametrize("prefetch", [1, 2, 3, 4, 5, 7, 8, 9])
def test_a_hold_leaves_one_slot_of_the_ring_to_be_built(prefetch: int) -> None:
    for hold in range(1, prefetch):
        assert ConsumerOptions(hold=hold).hold_in(prefetch) == hold
    for hold in (-1, 0, prefetch, prefetch + 1):
        with pytest.raises(ArgumentError, match=f"hold is {hold} and prefetch {prefetch}"):
            ConsumerOptions(hold=hold).hold_in(prefetch)


@given(SECONDS, SECONDS, st.booleans(), st.booleans())
@settings(deadline=None)
def test_a_debt_rises_only_for_those_to_blame_and_is_never_negative(
    debt_s: float, elapsed_s: float, blamed: bool, waits: bool
) -> None:
    after_s = debt_after(debt_s, elapsed_s, blamed=blamed, someone_waits=waits)
    assert after_s >= 0
    assert after_s == debt_s + elapsed_s if blamed else after_s <= debt_s
    assert blamed or not waits or after_s == debt_s, "it is not forgiven while others wait"


@pytest.mark.parametrize(("late_s", "on_time_s", "overdue"), [(1, 9, False), (1, 4, False), (1, 3, True), (1, 1, True)])
def test_only_one_who_is_late_more_than_a_fifth_of_the_time_becomes_overdue(
    late_s: float, on_time_s: float, overdue: bool
) -> None:
    debt_s = 0.0
    for _ in range(100):
        debt_s = debt_after(debt_s, late_s, blamed=True, someone_waits=True)
        latest_s = debt_s
        debt_s = debt_after(debt_s, on_time_s, blamed=False, someone_waits=False)
    assert (latest_s >= 10) is overdue


def test_the_time_that_is_left_is_never_negative_and_may_be_infinite() -> None:
    assert seconds_until(0.25, 1.0) == 0.75
    assert seconds_until(3.0, 1.0) == 0
    assert seconds_until(3.0, math.inf) == math.inf
