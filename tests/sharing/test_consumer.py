"""A consumer: the options that it may have, and what its record says of it."""

from __future__ import annotations

import math

import pytest

from loader_service.errors import ArgumentError
from loader_service.sharing.consumer import DEFAULT_MAX_LEASES, Consumer, ConsumerOptions, SlowConsumerPolicy


@pytest.mark.parametrize("name", ["", "Split", "drop"])
def test_a_policy_is_split_or_wait(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"pace is '{name}'; it must be 'split' or 'wait'"):
        SlowConsumerPolicy(name)


@pytest.mark.parametrize("patience_s", [-1.0, -1e-9, 1e6 + 1, math.inf, math.nan])
def test_patience_is_a_number_of_seconds_that_ends(patience_s: float) -> None:
    with pytest.raises(ArgumentError, match="patience_s"):
        SlowConsumerPolicy("split", patience_s)


@pytest.mark.parametrize("patience_s", [0, 0.5, 1, 1e6])
def test_one_who_splits_leaves_after_its_patience_and_one_for_whom_others_wait_never(patience_s: float) -> None:
    assert SlowConsumerPolicy("split", patience_s).limit_s == patience_s
    assert SlowConsumerPolicy("wait", patience_s).limit_s == math.inf


@pytest.mark.parametrize(("prefetch", "leases"), [(1, 1), (2, 2), (3, 2), (8, 2)])
def test_who_asks_for_no_number_of_leases_gets_two_or_what_fits(prefetch: int, leases: int) -> None:
    assert ConsumerOptions().max_leases_in(prefetch) == leases <= DEFAULT_MAX_LEASES


@pytest.mark.parametrize("prefetch", [1, 2, 3, 4, 5, 7, 8, 9])
def test_leases_leave_one_slot_of_the_ring_to_be_built(prefetch: int) -> None:
    for leases in range(1, prefetch):
        assert ConsumerOptions(max_leases=leases).max_leases_in(prefetch) == leases
    for leases in (-1, 0, prefetch, prefetch + 1):
        with pytest.raises(ArgumentError, match=f"hold is {leases} and prefetch {prefetch}"):
            ConsumerOptions(max_leases=leases).max_leases_in(prefetch)


def test_a_cursor_is_the_oldest_held_step_or_the_position_whichever_is_less() -> None:
    assert Consumer(1, 5, ConsumerOptions()).cursor == 5
    assert Consumer(1, 5, ConsumerOptions(), held_steps={1: 4, 2: 3}).cursor == 3
    assert Consumer(1, 2, ConsumerOptions(), held_steps={1: 4}).cursor == 2


def test_a_run_goes_on_while_no_step_is_waited_for_and_at_most_one_batch_too_many_is_held() -> None:
    consumer = Consumer(1, 5, ConsumerOptions(), max_leases=2, run_left=1, leases={1: "a", 2: "b"})
    assert consumer.goes_on
    consumer.leases[3] = "c"
    assert not consumer.goes_on
    del consumer.leases[3]
    consumer.wanted = 5
    assert not consumer.goes_on
    consumer.end_run()
    assert (consumer.wanted, consumer.run_left, consumer.asked_until, consumer.goes_on) == (None, 0, 5, False)


@pytest.mark.parametrize(("asked", "least"), [(None, 2), (2, 3)])
def test_a_ring_keeps_a_slot_beside_the_leases_that_were_asked_for(asked: int | None, least: int) -> None:
    assert Consumer(1, 0, ConsumerOptions(max_leases=asked), max_leases=2).least_prefetch == least
