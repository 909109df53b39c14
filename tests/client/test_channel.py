"""One connection: each answer goes to its request, and the daemon's end is noticed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from loader_client.channel import Channel
from loader_client.sockets import SocketFactory
from loader_service.errors import ArgumentError, DeadlineError, ProtocolError, ServiceClosedError
from loader_service.wire.messages import Close, Closing, Done, Error, Ping, Report, Status
from tests.client.fake_daemon import FakeDaemon, eventually


@pytest.fixture
def channel(daemon: FakeDaemon) -> Iterator[Channel]:
    sockets = SocketFactory(daemon.endpoint)
    made = Channel(sockets)
    made.watch(None)
    yield made
    made.close()
    sockets.close()


def status(channel: Channel, timeout_s: float = 20.0) -> Report:
    return channel.request(lambda request: Status(request, False), Report, timeout_s, "asking")


def test_a_request_has_its_answer(channel: Channel) -> None:
    assert [status(channel).request for _ in range(3)] == [1, 2, 3]


def test_what_comes_for_another_request_is_dropped(channel: Channel, daemon: FakeDaemon) -> None:
    late = channel.send(lambda request: Status(request, True))
    daemon.say(Ping())
    report = status(channel)
    assert (report.request, report.status["builds"]) == (late + 1, False)


def test_the_daemons_error_is_raised_with_its_class_and_text(channel: Channel, daemon: FakeDaemon) -> None:
    daemon.script[Status] = lambda message: Error(message.request, ArgumentError("no such thing").to_record())
    with pytest.raises(ArgumentError, match="no such thing"):
        status(channel)


def test_an_answer_of_another_class_is_refused(channel: Channel, daemon: FakeDaemon) -> None:
    daemon.script[Status] = lambda message: Done(message.request)
    with pytest.raises(ProtocolError, match="answered by a done message; it must be report"):
        status(channel)


def test_no_answer_in_time_is_an_error_that_names_the_request(channel: Channel, daemon: FakeDaemon) -> None:
    daemon.script[Status] = lambda message: None
    with pytest.raises(DeadlineError, match=r"asking: no answer within 0\.05 s"):
        status(channel, 0.05)
    del daemon.script[Status]
    assert status(channel).request == 2


def test_a_daemon_that_says_that_it_ends_is_gone(channel: Channel, daemon: FakeDaemon) -> None:
    daemon.script[Status] = lambda message: Closing("SIGTERM")
    for _ in range(2):
        with pytest.raises(ServiceClosedError, match="it said that it ends: SIGTERM"):
            status(channel)


def test_a_connection_that_breaks_is_an_end(channel: Channel, daemon: FakeDaemon) -> None:
    status(channel)
    daemon.stop()
    with pytest.raises(ServiceClosedError, match="its process or connection has ended"):
        status(channel)


def test_an_answer_that_came_before_the_end_is_still_given(channel: Channel, daemon: FakeDaemon) -> None:
    number = channel.send(lambda request: Status(request, False))
    eventually(channel.has_message, "the answer is here")
    daemon.stop()
    assert channel.take(number, Report) is not None


def test_what_nobody_waits_for_is_thrown_away_but_for_the_word_of_an_end(channel: Channel, daemon: FakeDaemon) -> None:
    status(channel)
    for message in (Ping(), Ping(), Closing("SIGTERM")):
        daemon.say(message)
    eventually(channel.has_message, "they are here")

    def is_told() -> bool:
        channel.throw_away()
        try:
            return channel.take(0, Report) is not None
        except ServiceClosedError:
            return True

    eventually(is_told, "the end is known")
    assert not channel.has_message()


def test_closing_ends_a_request_of_another_thread(channel: Channel, daemon: FakeDaemon) -> None:
    daemon.script[Status] = lambda message: None
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            status(channel)
        except ServiceClosedError as error:
            raised.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    eventually(lambda: bool(daemon.got(Status)), "it waits")
    for _ in range(2):
        channel.close()
    thread.join(20)
    assert len(raised) == 1
    with pytest.raises(ServiceClosedError, match="this client is closed"):
        status(channel)
    channel.wait(0)
    assert channel.has_message()


def test_a_message_without_an_answer_arrives(channel: Channel, daemon: FakeDaemon) -> None:
    channel.post(Close(0, 7, [1, 2]))
    eventually(lambda: daemon.got(Close) == [Close(0, 7, [1, 2])], "it arrives")
