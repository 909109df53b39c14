"""Runs: one Get for many steps, whose answers are pushed as they are built, as far as the consumer's credit reaches."""

from __future__ import annotations

from typing import Any

import pytest

from loader_service.errors import BuildError, ConsumerClosedError, ProtocolError
from loader_service.wire.messages import Close, Demand, Done, Error, Get, Message, Ready, Release
from tests.daemon.broker.broker_harness import BrokerHarness, identity

FOR_EVER = 2**62


def steps_of(messages: list[Message]) -> list[int]:
    """The steps of messages that are all batches."""
    return [message.step for message in messages if isinstance(message, Ready)]


def built(harness: BrokerHarness, times: int) -> list[Message]:
    """The messages that are sent while the worker builds that many steps."""
    return [message for _ in range(times) for _, message in harness.build()]


def waits_for(harness: BrokerHarness, consumer: int) -> Any:
    return harness.broker.consumers[consumer].stream.consumer(consumer)["waits_for"]


def test_the_steps_that_follow_are_answered_in_order_under_the_number_of_the_get() -> None:
    harness = BrokerHarness(prefetch=8)
    consumer = harness.open(step=5)
    harness.say(1, Get(99, consumer, 5, 3, [], True), socket=7)
    sent = [harness.build() for _ in range(3)]
    assert [[message.step for _, message in told if isinstance(message, Ready)] for told in sent] == [[5], [6], [7]]
    assert harness.steps() == [], "no more was asked for"
    assert {(socket, getattr(message, "request", None)) for told in sent for socket, message in told} == {
        (identity(1, 7), 99)
    }


def test_steps_that_stand_ready_are_pushed_with_the_first() -> None:
    harness = BrokerHarness(prefetch=8)
    consumer = harness.open()
    built(harness, 8)
    assert steps_of(harness.get(consumer, 0, steps=2)) == [0, 1]
    assert steps_of(harness.get(consumer, 2, steps=FOR_EVER)) == [2], "two are held, and one ahead"


@pytest.mark.parametrize("hold", [1, 2, 3, 6, 7])
def test_no_more_is_pushed_than_a_consumer_may_hold_and_one_ahead_until_it_releases(hold: int) -> None:
    harness = BrokerHarness(prefetch=8)
    consumer = harness.open(hold=hold)
    first = harness.get(consumer, 0, steps=FOR_EVER) + built(harness, 8)
    assert steps_of(first) == list(range(hold + 1))
    leases = [message.lease for message in first if isinstance(message, Ready)]
    assert harness.holds(consumer) == leases
    then = harness.say(1, Release(consumer, leases[:1]))
    assert steps_of(then) == ([hold + 1] if hold < 7 else []), "the ring ends there: step 8 is yet to be built"
    while len(then) < 1:
        then += built(harness, 1)
    assert len(harness.holds(consumer)) == hold + 1
    assert harness.say(1, Release(consumer, leases[:1])) == [], "what has ended ends once"


def test_a_run_goes_on_at_its_own_socket_whichever_says_the_release() -> None:
    harness = BrokerHarness(prefetch=8)
    consumer = harness.open(hold=1)
    built(harness, 8)
    first, _ = harness.say(1, Get(99, consumer, 0, 9, [], True), socket=3)
    assert isinstance(first, Ready)
    harness.sent.clear()
    assert harness.say(1, Release(consumer, [first.lease]), socket=4) == []
    [(socket, reply)] = harness.sent
    assert (socket, steps_of([reply])) == (identity(1, 3), [2])


def test_several_releases_at_once_bring_as_many_steps() -> None:
    harness = BrokerHarness(prefetch=8)
    consumer = harness.open(hold=3)
    built(harness, 8)
    leases = [message.lease for message in harness.get(consumer, 0, steps=7) if isinstance(message, Ready)]
    assert len(leases) == 4
    assert steps_of(harness.say(1, Release(consumer, leases))) == [4, 5, 6], "seven steps were asked for"


def test_another_get_ends_the_run_and_every_lease_that_it_does_not_name() -> None:
    harness = BrokerHarness(prefetch=8)
    consumer = harness.open()
    built(harness, 8)
    first, second, _ = harness.say(1, Get(98, consumer, 0, FOR_EVER, [], True))
    assert isinstance(first, Ready)
    assert isinstance(second, Ready)
    replies = harness.say(1, Get(99, consumer, 5, 2, [second.lease], True))
    assert [(reply.request, reply.step) for reply in replies if isinstance(reply, Ready)] == [(99, 5), (99, 6)]
    assert first.lease not in harness.holds(consumer)
    assert len(harness.holds(consumer)) == 3
    built(harness, len(harness.steps()))
    assert harness.say(1, Release(consumer, harness.holds(consumer))) == [], "neither run goes on"


def test_two_runs_share_what_is_built_once() -> None:
    harness = BrokerHarness(prefetch=4)
    consumers = [harness.open(1), harness.open(2)]
    for client, consumer in enumerate(consumers, 1):
        harness.get(consumer, 0, client, steps=FOR_EVER)
    assert sorted(steps_of(built(harness, 3))) == [0, 0, 1, 1, 2, 2]
    assert [build.step for build in harness.workers.given] == [0, 1, 2, 3]


def test_a_step_that_fails_ends_the_run() -> None:
    harness = BrokerHarness(prefetch=4)
    consumer = harness.open()
    harness.get(consumer, 0, steps=FOR_EVER)
    assert steps_of(built(harness, 1)) == [0]
    [(_, reply)] = harness.fail()
    assert isinstance(reply, Error)
    error = harness.error([reply])
    assert isinstance(error, BuildError)
    assert error.step == 1
    assert built(harness, len(harness.steps())) == []
    assert harness.say(1, Release(consumer, harness.holds(consumer))) == []
    assert steps_of(harness.get(consumer, 2)) == [2], "it may go on elsewhere"


def test_closing_ends_the_run() -> None:
    harness = BrokerHarness(prefetch=4)
    consumer, other = harness.open(1), harness.open(2)
    harness.get(consumer, 0, steps=FOR_EVER)
    [first] = [message.lease for message in built(harness, 1) if isinstance(message, Ready)]
    assert harness.say(1, Close(99, consumer, [first])) == [Done(99)]
    assert built(harness, 2) == []
    assert harness.say(1, Release(consumer, [first])) == []
    assert list(harness.broker.consumers) == [other]


@pytest.mark.parametrize("holds", [[], [7]])
def test_a_get_after_the_close_that_ends_the_last_lease_is_the_end_of_the_consumer(holds: list[int]) -> None:
    harness = BrokerHarness()
    consumer = harness.open()
    built(harness, 1)
    lease = harness.ready(harness.get(consumer, 0)).lease
    harness.say(1, Close(98, consumer, [lease]))
    assert type(harness.error(harness.say(1, Get(99, consumer, 1, 1, holds, True)))) is ConsumerClosedError
    assert not harness.broker.consumers


def test_a_run_of_no_steps_is_refused_and_changes_nothing() -> None:
    harness = BrokerHarness()
    consumer = harness.open()
    harness.get(consumer, 0, steps=2)
    error = harness.error(harness.say(1, Get(99, consumer, 0, 0, [], True)))
    assert type(error) is ProtocolError
    assert error.message == "a get message asks for 0 steps; it must ask for at least 1"
    assert steps_of(built(harness, 2)) == [0, 1]


def test_only_the_first_step_of_a_run_is_demanded_until_a_demand_says_more() -> None:
    harness = BrokerHarness(prefetch=4)
    consumer = harness.open()
    harness.get(consumer, 0, steps=FOR_EVER)
    assert waits_for(harness, consumer) == 0
    built(harness, 1)
    assert waits_for(harness, consumer) is None
    assert harness.say(1, Demand(consumer, 7)) == []
    assert waits_for(harness, consumer) is None, "it waits for another step"
    assert harness.say(1, Demand(consumer, 1)) == []
    assert waits_for(harness, consumer) == 1
    built(harness, 1)
    assert waits_for(harness, consumer) is None


@pytest.mark.parametrize("demanded", [False, True])
def test_a_demand_that_overtakes_the_release_is_not_forgotten(demanded: bool) -> None:
    """They come over two connections: the step may not have been asked for yet, for want of credit."""
    harness = BrokerHarness(prefetch=4)
    consumer = harness.open(hold=1)
    harness.get(consumer, 0, steps=FOR_EVER)
    first, _ = built(harness, 2)
    assert isinstance(first, Ready)
    if demanded:
        harness.say(1, Demand(consumer, 2))
    assert waits_for(harness, consumer) is None
    harness.say(1, Release(consumer, [first.lease]))
    assert waits_for(harness, consumer) == (2 if demanded else None)


def test_demands_of_those_who_are_not_there_are_ignored() -> None:
    harness = BrokerHarness()
    consumer = harness.open(1)
    assert harness.say(1, Demand(99, 0)) == []
    assert harness.say(2, Demand(consumer, 0)) == []
    assert harness.say(1, Demand(consumer, 0)) == [], "it has not asked"
    assert waits_for(harness, consumer) is None
