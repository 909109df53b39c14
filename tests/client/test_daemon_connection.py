"""The way to a daemon and back: one handshake for all who noticed, and no request that waits for ever."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import pytest

import loader_client
from loader_client import Client, DeadlineError, ServiceClosedError, ServiceUnavailableError, UnknownStreamError
from loader_service.wire.messages import Close, Done, Error, Hello, Open, Stop, Tune
from tests.client.fake_daemon import FakeDaemon, eventually


def test_an_open_that_is_refused_leaves_nothing_behind(client: Client, daemon: FakeDaemon) -> None:
    daemon.script[Open] = lambda message: Error(message.request, UnknownStreamError("there is no t").to_record())
    with pytest.raises(UnknownStreamError):
        client.open("t")
    eventually(lambda: [message.consumer for message in daemon.got(Close)] == [1], "it is closed all the same")


def test_an_open_that_was_given_up_is_closed(daemon: FakeDaemon) -> None:
    daemon.script[Open] = lambda message: None
    with loader_client.connect(daemon.endpoint, timeout_s=0.3) as client:
        with pytest.raises(DeadlineError, match=r"opening 's': no answer within 0\.3 s"):
            client.open("s")
        eventually(lambda: [message.consumer for message in daemon.got(Close)] == [1], "the daemon is told")
        del daemon.script[Open]
        with client.open("s") as consumer:
            assert next(consumer).step == 0
        assert [message.consumer for message in daemon.got(Open)] == [1, 2], "a number is used once"


def test_without_its_socket_a_daemon_is_unavailable_within_the_time_limit(daemon: FakeDaemon) -> None:
    """A clean-up has removed the directory; what is connected goes on."""
    with loader_client.connect(daemon.endpoint, timeout_s=0.3) as client, client.open("s", 0, 9) as consumer:
        assert next(consumer).step == 0
        shutil.rmtree(Path(daemon.endpoint.removeprefix("ipc://")).parent)
        with pytest.raises(ServiceUnavailableError, match=r"the socket .*d\.sock is gone .* takes no new connections"):
            client.open("s")
        with pytest.raises(ServiceUnavailableError, match="no daemon answered"):
            loader_client.connect(daemon.endpoint, timeout_s=0.1)
        assert [batch.step for batch in consumer] == list(range(1, 9))
        assert client.status()["pid"] == 1


def test_a_request_is_repeated_at_the_next_daemon_and_a_change_is_not(client: Client, daemon: FakeDaemon) -> None:
    daemon.stop()
    with pytest.raises(ServiceClosedError):
        client.tune("s", prefetch=3)
    with pytest.raises(ServiceClosedError):
        client.stop_service()
    threading.Timer(0.1, daemon.start).start()
    assert client.status()["pid"] == 1
    with client.open("s") as consumer:
        assert next(consumer).step == 0
    late = {message.incarnation for message in daemon.got(Tune)} | {stop.incarnation for stop in daemon.got(Stop)}
    assert late <= {1}, "what a socket delivers late was meant for the daemon that is gone"


def test_many_who_notice_the_end_shake_hands_once(client: Client, daemon: FakeDaemon) -> None:
    consumers = [client.open("s", number * 100, number * 100 + 12) for number in range(4)]
    seen: list[list[int]] = [[next(consumer).step] for consumer in consumers]
    before = len(daemon.got(Hello))
    daemon.stop()
    daemon.start()

    def read(number: int) -> None:
        seen[number] += [batch.step for batch in consumers[number]]

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert seen == [list(range(number * 100, number * 100 + 12)) for number in range(4)]
    assert len(daemon.got(Hello)) == before + 1


def test_where_the_directory_is_gone_with_the_daemon_nobody_waits(daemon: FakeDaemon) -> None:
    with loader_client.connect(daemon.endpoint, reconnect_s=1e6) as client:
        daemon.stop()
        shutil.rmtree(Path(daemon.endpoint.removeprefix("ipc://")).parent)
        with pytest.raises(ServiceClosedError, match="none came back"):
            client.status()


def test_a_request_to_a_daemon_that_says_that_it_ends_is_told_why(daemon: FakeDaemon) -> None:
    from loader_service.wire.messages import Closing, Status

    daemon.script[Status] = lambda message: Closing("SIGTERM")
    with (
        loader_client.connect(daemon.endpoint, timeout_s=20, reconnect_s=0) as client,
        pytest.raises(ServiceClosedError, match="it said that it ends: SIGTERM"),
    ):
        client.status()


def test_closing_the_client_ends_the_wait_for_a_daemon(client: Client, daemon: FakeDaemon) -> None:
    daemon.stop()
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            client.status()
        except ServiceClosedError as error:
            raised.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.05)  # it may wait by then; either way it ends
    client.close()
    thread.join(20)
    assert len(raised) == 1


def test_an_answer_of_the_wrong_kind_is_no_answer(client: Client, daemon: FakeDaemon) -> None:
    daemon.script[Open] = lambda message: Done(message.request)
    with pytest.raises(loader_client.ProtocolError, match="answered by a done message; it must be opened"):
        client.open("s")
