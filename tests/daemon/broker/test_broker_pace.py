"""The broker and time: who is too slow is split or put out when its time has come, and nobody is woken for nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loader_service.errors import ArgumentError, EvictedError
from loader_service.sharing.fairness import Limits
from loader_service.wire.messages import Close, Done, Message, Opened, Ready, Release
from tests.daemon.broker.broker_harness import PAGE, BrokerHarness, identity

FOR_EVER = 2**62


def run_ahead(harness: BrokerHarness, consumer: int, client: int, until: int) -> None:
    """Let a consumer take and release all steps before `until`, and ask for that one, which is not there."""
    for step in range(until):
        replies = harness.get(consumer, step, client)
        while not replies:
            replies = [message for socket, message in harness.build() if socket == identity(client)]
        harness.say(client, Release(consumer, [harness.ready(replies).lease]))
    while harness.steps():
        harness.build()
    assert harness.get(consumer, until, client) == []


def two(pace: str = "split", limits: Limits | None = None, limit_bytes: int = 2**30) -> tuple[BrokerHarness, int, int]:
    """A slow consumer of client 1, at step 0, and a fast one of client 2, which waits for step 2 of a ring of two."""
    harness = BrokerHarness(prefetch=2, limits=limits, limit_bytes=limit_bytes, streams="a")
    slow, fast = harness.open(1, pace=pace), harness.open(2)
    run_ahead(harness, fast, 2, 2)
    harness.sent.clear()
    return harness, slow, fast


def sent_steps(harness: BrokerHarness) -> list[tuple[bytes, int]]:
    return [(socket, message.step) for socket, message in harness.sent if isinstance(message, Ready)]


def build_all(harness: BrokerHarness) -> None:
    while harness.steps():
        harness.build()


# --- opening ---------------------------------------------------------------------------------------------


def test_live_is_where_the_most_are_whatever_the_start_step_says() -> None:
    harness = BrokerHarness(prefetch=4)
    live = replace(harness.opening(1, step=7), live=True)
    assert [reply.start_step for reply in harness.say(1, live) if isinstance(reply, Opened)] == [0]
    for step in (100, 101, 5000):
        harness.open(2, "b", step)
    [reply] = harness.say(1, replace(live, stream="b", consumer=2))
    assert isinstance(reply, Opened)
    assert reply.start_step == 100
    assert len(harness.broker.streams["b"].lanes.lanes) == 2


@pytest.mark.parametrize(("hold", "prefetch"), [(1, 1), (2, 2), (3, 2), (8, 8), (9, 8), (2**62, 8)])
def test_a_hold_that_leaves_no_slot_to_build_in_is_refused(hold: int, prefetch: int) -> None:
    harness = BrokerHarness(prefetch=prefetch)
    error = harness.error(harness.say(1, harness.opening(1, hold=hold)))
    assert type(error) is ArgumentError
    assert error.message.startswith(f"hold is {hold} and prefetch {prefetch}; ")
    assert "lower hold, or raise prefetch" in error.message
    assert not harness.broker.consumers
    assert isinstance(harness.say(1, harness.opening(1))[0], Opened), "the number is free"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"pace": "slow"}, "pace is 'slow'; it must be 'split' or 'wait'"),
        ({"pace": ""}, "pace is ''; it must be"),
        ({"patience_us": 10**12 + 1}, r"patience_s is 1000000.000001; it must lie in \[0, 1000000\] seconds"),
        ({"patience_us": 2**63 - 1}, "patience_s is 9223372036854.775; it must lie in"),
    ],
)
def test_terms_that_are_none_are_refused(change: dict[str, object], told: str) -> None:
    harness = BrokerHarness()
    message: Message = replace(harness.opening(1), **change)  # type: ignore[arg-type]  # any field of it
    with pytest.raises(ArgumentError, match=told):
        raise harness.error(harness.say(1, message))
    assert not harness.broker.consumers


# --- split and wait --------------------------------------------------------------------------------------


def test_a_slow_one_is_split_after_its_patience_and_who_waited_gets_its_step() -> None:
    harness, slow, fast = two()
    harness.timer.pass_time(0.75)
    assert (harness.sent, harness.steps()) == ([], [])
    harness.timer.pass_time(0.25)
    assert harness.steps() == [2, 3]
    build_all(harness)
    assert sent_steps(harness) == [(identity(2), 2)]
    assert harness.broker.streams["a"].consumer(slow)["lane"] is None
    assert harness.get(slow, 0) == []
    assert harness.steps() == [0, 1], "in a lane of its own they are built again"
    build_all(harness)
    assert sent_steps(harness) == [(identity(2), 2), (identity(1), 0)]
    assert harness.broker.streams["a"].consumer(slow)["lane"] != harness.broker.streams["a"].consumer(fast)["lane"]


def test_time_counts_from_message_to_message_too() -> None:
    """A consumer that is to leave when a message comes has left before it is acted on, however late the loop wakes."""
    harness, slow, _ = two()
    harness.timer.now += 1.0
    harness.say(1, Release(slow, [99]))
    assert harness.steps() == [2, 3]


def test_a_split_keeps_what_the_slow_one_holds() -> None:
    harness = BrokerHarness(prefetch=2, streams="a")
    slow, fast = harness.open(1), harness.open(2)
    harness.get(slow, 0)
    [(_, held)] = harness.build()
    assert isinstance(held, Ready)
    run_ahead(harness, fast, 2, 2)
    harness.timer.pass_time(1.0)
    build_all(harness)
    assert sent_steps(harness)[-1] == (identity(2), 2)
    assert held.placement.segment in harness.leased()
    assert held.placement.segment not in {build.placement.segment for build in harness.workers.given if build.step >= 2}
    harness.say(1, Release(slow, [held.lease]))
    assert held.placement.segment not in harness.leased()


def test_where_the_pace_is_wait_they_go_in_lockstep() -> None:
    harness, slow, fast = two("wait")
    harness.timer.pass_time(100_000.0)
    assert (harness.sent, harness.timer.wanted, harness.timer.armed) == ([], [], 0)
    for step in range(5):
        lease = harness.ready(harness.get(slow, step)).lease
        build_all(harness)
        assert sent_steps(harness)[-1] == (identity(1), step)
        harness.say(1, Release(slow, [lease]))
        build_all(harness)
        [taken] = harness.holds(fast)
        assert sent_steps(harness)[-1] == (identity(2), step + 2)
        harness.say(2, Release(fast, [taken]))
        assert harness.get(fast, step + 3, client=2) == []


# --- eviction --------------------------------------------------------------------------------------------


def test_one_that_is_put_out_hears_it_at_its_next_get() -> None:
    harness, slow, fast = two("wait", Limits(evict_after_s=2.0))
    harness.timer.pass_time(1.75)
    assert harness.sent == []
    harness.timer.pass_time(0.25)
    build_all(harness)
    assert sent_steps(harness) == [(identity(2), 2)]
    assert len(harness.sent) == 1, "nobody waits on its side"
    for _ in range(2):
        error = harness.error(harness.get(slow, 0))
        assert type(error) is EvictedError
        assert "others waited 2.0 s for it, and evict_after_s is 2.0; " in error.message
    assert harness.broker.streams["a"].consumer(slow)["evicted"] == error.message
    assert harness.say(1, Close(99, slow, [])) == [Done(99)]
    assert list(harness.broker.consumers) == [fast]
    assert isinstance(harness.say(1, harness.opening(slow))[0], Opened)


def test_one_that_is_put_out_while_it_waits_hears_it_at_once_and_its_run_ends() -> None:
    """It has asked ahead of what it holds, and what it holds keeps the others from going on."""
    harness = BrokerHarness(prefetch=2, limits=Limits(evict_after_s=2.0), streams="a")
    slow, fast = harness.open(1, pace="wait"), harness.open(2)
    harness.get(slow, 0, steps=FOR_EVER, socket=3)
    run_ahead(harness, fast, 2, 2)
    held = [message for socket, message in harness.sent if socket == identity(1, 3) and isinstance(message, Ready)]
    assert [one.step for one in held] == [0, 1]
    harness.sent.clear()
    harness.timer.pass_time(2.0)
    [(socket, reply)] = harness.sent
    assert socket == identity(1, 3)
    assert type(harness.error([reply])) is EvictedError
    build_all(harness)
    assert sent_steps(harness) == [(identity(2), 2)]
    written = {build.placement.segment for build in harness.workers.given if build.step >= 2}
    assert not written & {one.placement.segment for one in held}, "it may go on reading"
    assert not {one.placement.segment for one in held} & set(harness.memory.sizes), "unlinked; it keeps its mapping"


def test_one_that_is_closed_and_put_out_with_what_it_kept_is_forgotten() -> None:
    """There is memory for one ring, and what it leases stands where the other must go on."""
    harness = BrokerHarness(prefetch=2, limits=Limits(evict_after_s=2.0), streams="a", limit_bytes=2 * PAGE)
    keeper, fast = harness.open(1), harness.open(2)
    harness.get(keeper, 0, steps=FOR_EVER)
    build_all(harness)
    harness.close(keeper)
    assert len(harness.leased()) == 2
    for step in (0, 1):
        harness.say(2, Release(fast, [harness.ready(harness.get(fast, step, client=2)).lease]))
    assert harness.get(fast, 2, client=2) == []
    harness.timer.pass_time(1.75)
    assert (harness.steps(), list(harness.broker.consumers)) == ([], [keeper, fast])
    harness.timer.pass_time(0.25)
    assert list(harness.broker.consumers) == [fast]
    harness.build()
    assert sent_steps(harness)[-1] == (identity(2), 2)
    assert type(harness.error(harness.get(keeper, 0))).code == "E3005"


# --- the timer -------------------------------------------------------------------------------------------


def test_the_timer_is_armed_once_for_one_who_will_be_overdue_and_then_no_more() -> None:
    harness, slow, _ = two()
    for _ in range(64):
        harness.timer.pass_time(1 / 128)
        harness.say(1, Release(slow, [99]))
        harness.broker.pump()
    assert (harness.timer.armed, len(harness.timer.wanted)) == (1, 1)
    harness.timer.pass_time(1.0)
    build_all(harness)
    harness.timer.pass_time(1000.0)
    assert (harness.timer.armed, harness.timer.wanted) == (1, [])


def test_one_who_is_overdue_earlier_arms_it_again_and_the_later_call_does_nothing() -> None:
    harness = BrokerHarness(prefetch=2, streams="ab")
    harness.open(1, "a", patience_us=8_000_000)
    fast = harness.open(2, "a")
    run_ahead(harness, fast, 2, 2)
    assert [at - harness.timer.now for at, _ in harness.timer.wanted] == [8.0]
    slow, other = harness.open(1, "b"), harness.open(2, "b")
    run_ahead(harness, other, 2, 2)
    assert sorted(at - harness.timer.now for at, _ in harness.timer.wanted) == [1.0, 8.0]
    harness.timer.pass_time(1.0)
    assert harness.broker.streams["b"].consumer(slow)["lane"] is None
    armed = harness.timer.armed
    assert armed <= 3
    harness.timer.pass_time(1000.0)
    assert (harness.timer.armed, harness.timer.wanted) == (armed, [])
    assert len(harness.broker.streams["a"].lanes.lanes) == 1
    assert harness.steps()[0] == 2


def test_calls_that_came_too_late_do_not_multiply() -> None:
    """Each time somebody is overdue earlier than the last one; all that were armed end, and none begets another."""
    harness = BrokerHarness(prefetch=2, workers=1, streams="abcdefgh")
    for number, name in enumerate("abcdefgh"):
        harness.open(1, name, patience_us=(16 - number) * 1_000_000)
        run_ahead(harness, harness.open(2, name), 2, 2)
    assert harness.timer.armed == 8
    harness.timer.pass_time(9.0)
    build_all(harness)
    harness.timer.pass_time(6.5)
    build_all(harness)
    assert harness.timer.armed <= 16
    harness.timer.pass_time(1000.0)
    assert harness.timer.wanted == []


@pytest.mark.parametrize("evict_after_s", [0.0, 2.0])
def test_nobody_is_called_while_nobody_waits_for_anybody(evict_after_s: float) -> None:
    harness = BrokerHarness(prefetch=4, limits=Limits(evict_after_s=evict_after_s))
    consumers = [harness.open(1), harness.open(2), harness.open(2, step=1000)]
    for consumer in consumers:
        harness.get(
            consumer, harness.broker.consumers[consumer].stream.consumer(consumer)["position"], 1 + (consumer > 1)
        )
    build_all(harness)
    harness.timer.pass_time(1000.0)
    assert (harness.timer.armed, harness.timer.wanted) == (0, [])


def test_where_no_memory_allows_a_split_nobody_is_called_in_vain() -> None:
    """The lane waits, as `status` tells; when the room is there, the split comes at once."""
    harness, slow, _ = two(limit_bytes=2 * PAGE)
    harness.timer.pass_time(1000.0)
    assert (harness.sent, harness.timer.armed) == ([], 0)
    assert harness.broker.streams["a"].consumer(slow)["held_others_up_s"] == 0
    harness.memory.limit_bytes = 2**30
    harness.broker.pump()
    harness.timer.pass_time(1.0)
    assert harness.steps() == [2, 3]
