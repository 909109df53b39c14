"""The broker: messages in, replies and assignments out, and nothing that a client says changes another's place."""

from __future__ import annotations

from typing import Any

import pytest

from loader_service.errors import (
    ConsumerClosedError,
    MemoryLimitError,
    ProtocolError,
    ServiceClosedError,
    UnknownStreamError,
)
from loader_service.wire.messages import (
    Bye,
    Close,
    Closing,
    Demand,
    Done,
    Error,
    Get,
    Message,
    Open,
    Opened,
    Ready,
    Release,
    Status,
    Stop,
)
from tests.daemon.broker.broker_harness import PAGE, BrokerHarness, identity

# --- requests --------------------------------------------------------------------------------------------


def test_opening_tells_what_the_stream_is() -> None:
    harness = BrokerHarness(prefetch=4)
    told = [Opened(request, 3, 4, 2, 10, "fingerprint of b", {"name": "b"}) for request in (1, 2)]
    assert harness.say(1, harness.opening(1, "b", 3)) == told[:1]
    assert harness.say(2, harness.opening(1, "b", 3)) == told[1:]
    assert harness.say(2, harness.opening(2, "a", hold=3)) == [
        Opened(3, 0, 4, 3, 10, "fingerprint of a", {"name": "a"})
    ]


def test_a_batch_is_answered_when_it_is_built() -> None:
    harness = BrokerHarness()
    consumer = harness.open(step=13)
    assert harness.steps() == [13, 14]
    task = harness.workers.all[0].tasks[0]
    assert (task.stream, task.placement.nbytes) == (0, PAGE)
    assert harness.say(1, Get(9, consumer, 13, 1, [], True), socket=5) == []
    [(socket, reply)] = harness.build()
    assert socket == identity(1, 5)
    assert reply == Ready(9, 1, 0, 13, 1, 3, 1, task.placement, 128, 4, b"a layout", 2, False)


def test_a_batch_that_stands_ready_is_answered_at_once() -> None:
    harness = BrokerHarness()
    consumer = harness.open()
    assert harness.build() == []
    assert harness.ready(harness.get(consumer, 0)).step == 0


def test_consumers_at_one_place_share_what_is_built_once() -> None:
    harness = BrokerHarness()
    consumers = [harness.open(1), harness.open(2), harness.open(2)]
    assert harness.get(consumers[0], 0, client=1) == harness.get(consumers[1], 0, client=2) == []
    told = [reply for _, reply in harness.build()] + harness.get(consumers[2], 0, client=2)
    batches = [reply for reply in told if isinstance(reply, Ready)]
    assert len(batches) == 3
    assert len({batch.placement.segment for batch in batches}) == 1
    assert len({batch.lease for batch in batches}) == 3
    assert [build.step for build in harness.workers.given] == [0, 1]


def test_a_stream_that_is_not_served_is_told_with_those_that_are() -> None:
    harness = BrokerHarness()
    error = harness.error(harness.say(1, harness.opening(1, "c")))
    assert type(error) is UnknownStreamError
    assert error.message == "there is no stream 'c'; this daemon serves 'a', 'b'"
    assert not harness.broker.consumers


@pytest.mark.parametrize(
    "message",
    [
        Open(7, 9, "a", 0, False, "split", 0, 0, 0, 1, 0),
        Get(7, 1, 0, 1, [], True),
        Demand(1, 0),
        Close(7, 1, []),
        Release(1, [1]),
        Bye(),
    ],
)
def test_a_client_that_did_not_say_hello_is_told_to_connect_again(message: Message) -> None:
    harness = BrokerHarness()
    consumer = harness.open()
    harness.build()
    lease = harness.ready(harness.get(consumer, 0)).lease
    [reply] = harness.say(3, message)
    assert isinstance(reply, Error)
    assert reply.request == getattr(message, "request", 0)
    assert type(harness.error([reply])) is ServiceClosedError
    assert (len(harness.leased()), lease, list(harness.broker.consumers)) == (1, 1, [consumer])


@pytest.mark.parametrize("message", [Status(7, False), Stop(7, 0)])
def test_a_message_that_nobody_answers_is_refused(message: Message) -> None:
    error = BrokerHarness().error(BrokerHarness().say(1, message))
    assert type(error) is ProtocolError
    assert error.message == f"a {message.kind} message is not answered here"


def test_another_clients_consumer_cannot_be_used() -> None:
    harness = BrokerHarness()
    consumer = harness.open(1)
    harness.build()
    lease = harness.ready(harness.get(consumer, 0)).lease
    assert type(harness.error(harness.get(consumer, 1, client=2))) is ConsumerClosedError
    assert type(harness.error(harness.get(99, 1))) is ConsumerClosedError
    assert harness.say(2, Release(consumer, [lease])) == []
    assert len(harness.leased()) == 1
    assert isinstance(harness.close(consumer, client=2)[0], Done)
    harness.build()
    assert harness.ready(harness.get(consumer, 1)).step == 1


def test_closing_may_be_repeated_and_ends_the_asking() -> None:
    harness = BrokerHarness()
    consumer = harness.open()
    assert harness.say(1, Close(7, consumer, [])) == [Done(7)]
    assert harness.say(1, Close(8, consumer, [])) == [Done(8)]
    assert harness.say(1, Close(9, 12345, [])) == [Done(9)]
    assert type(harness.error(harness.get(consumer, 0))) is ConsumerClosedError
    assert not harness.broker.consumers


def test_a_closed_consumer_gets_no_answer_to_what_it_waited_for() -> None:
    harness = BrokerHarness()
    consumer, other = harness.open(1), harness.open(2)
    harness.get(consumer, 0)
    harness.get(other, 0, client=2)
    harness.close(consumer)
    assert [socket for socket, _ in harness.build()] == [identity(2)]


def test_leases_outlast_the_consumer_until_they_are_released() -> None:
    harness = BrokerHarness()
    consumer = harness.open()
    harness.build()
    lease = harness.ready(harness.get(consumer, 0)).lease
    harness.close(consumer)
    assert len(harness.leased()) == 1
    assert consumer in harness.broker.consumers
    for _ in range(2):
        harness.say(1, Release(consumer, [lease]))
        assert harness.leased() == []
        assert not harness.broker.consumers


def test_what_a_client_does_not_say_it_holds_has_ended() -> None:
    """A Ready that was lost on its way, or a Release: the next request puts it right."""
    harness = BrokerHarness(prefetch=4)
    consumer = harness.open()
    for _ in range(4):
        harness.build()
    kept, *lost = [harness.ready(harness.get(consumer, step)).lease for step in (0, 1, 2)]
    assert harness.holds(consumer) == [kept, *lost]
    third = harness.ready(harness.say(1, Get(99, consumer, 3, 1, [kept, 12345], True))).lease
    assert harness.holds(consumer) == [kept, third]
    assert harness.say(1, Close(100, consumer, [third])) == [Done(100)]
    assert harness.holds(consumer) == [third]


def test_each_consumer_of_a_client_has_a_number_of_its_own() -> None:
    harness = BrokerHarness()
    assert isinstance(harness.say(1, harness.opening(5))[0], Opened)
    assert type(harness.error(harness.say(1, harness.opening(5)))) is ProtocolError
    assert isinstance(harness.say(2, harness.opening(5))[0], Opened), "another client's numbers are its own"


def test_leases_that_are_not_there_are_ignored() -> None:
    harness = BrokerHarness()
    one, other = harness.open(), harness.open()
    harness.build()
    leases = [harness.ready(harness.get(consumer, 0)).lease for consumer in (one, other)]
    for released in ([], [99], [leases[1]], [leases[0], leases[0], leases[0]]):
        assert harness.say(1, Release(one, released)) == []
    assert harness.say(1, Release(98, [leases[1]])) == []
    assert len(harness.leased()) == 1


def test_the_end_of_a_client_frees_what_it_kept() -> None:
    for say_bye in (True, False):
        harness = BrokerHarness()
        consumers = [harness.open(1), harness.open(1, "b", 5)]
        kept = harness.open(2)
        while any(harness.steps()):
            harness.build()
        for consumer, step in zip(consumers, (0, 5), strict=True):
            harness.ready(harness.get(consumer, step))
        assert len(harness.leased()) == 2
        if say_bye:
            assert harness.say(1, Bye()) == []
        else:
            client = harness.clients.of(identity(1))
            assert client is not None
            harness.clients.lose(client)
        assert harness.leased() == []
        assert list(harness.broker.consumers) == [kept]
        assert [client.identity for client in harness.clients] == [identity(2)]


def test_a_get_of_just_the_step_that_was_asked_for_ahead_does_not_wait_for_what_is_held() -> None:
    """A batch that the daemon has sent ahead was not taken: for the client that step is a jump."""
    harness = BrokerHarness(prefetch=3)
    consumer = harness.open()
    harness.get(consumer, 0, steps=100)
    for _ in range(3):
        harness.build()
    kept = next(reply.lease for _, reply in harness.sent if isinstance(reply, Ready) and reply.step == 0)
    assert [reply.step for _, reply in harness.sent if isinstance(reply, Ready)] == [0, 1, 2]
    assert harness.say(1, Get(9, consumer, 3, 1, [kept], True)) == []
    harness.build()
    assert harness.ready([reply for _, reply in harness.sent[-1:]]).step == 3


def test_a_request_that_memory_refuses_changes_nothing() -> None:
    """Another ring is needed, to open far away and to seek there; both consumers are as they were."""
    harness = BrokerHarness(limit_bytes=3 * PAGE)
    consumers = [harness.open(), harness.open()]
    assert type(harness.error(harness.say(1, harness.opening(9, step=1000)))) is MemoryLimitError
    assert type(harness.error(harness.get(consumers[0], 2000))) is MemoryLimitError
    assert list(harness.broker.consumers) == consumers
    harness.build()
    assert [harness.ready(harness.get(consumer, 0)).step for consumer in consumers] == [0, 0]


# --- the end ---------------------------------------------------------------------------------------------


def test_all_who_wait_and_all_who_said_hello_are_told_of_the_end_once() -> None:
    harness = BrokerHarness()
    for socket in (3, 4):
        harness.get(harness.open(), 50, socket=socket)
    harness.build()
    harness.unreachable.add(identity(2))
    harness.sent.clear()
    harness.broker.say_closing("SIGTERM")
    told: list[Any] = [(identity(1, socket), Closing("SIGTERM")) for socket in (0, 3, 4)]
    assert sorted(harness.sent, key=lambda item: item[0]) == told
