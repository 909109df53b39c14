"""Clients: known from their Hello until their Bye or their process's end."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_service.daemon.broker.clients import Client, Clients, token_of
from loader_service.daemon.server.event_loop import Loop
from loader_service.errors import ConsumerClosedError, ProtocolError, ServiceClosedError
from loader_service.wire.messages import Hello, Open, Stop, Tune
from loader_service.wire.process import pid_namespace

TOKEN = bytes(range(16))
OTHER = bytes(range(1, 17))


class Watched:
    """Clients with the loop that watches them, and those that were told to be gone."""

    def __init__(self) -> None:
        self.loop = Loop(time.monotonic)
        self.gone: list[Client] = []
        self.clients = Clients(self.loop, self.gone.append)

    def handshake(self, token: bytes, pid: int, namespace: int | None = None) -> Client:
        namespace = pid_namespace() if namespace is None else namespace
        return self.clients.handshake(token + b"\0\0\0\1", Hello(1, pid, namespace))

    def turn(self) -> None:
        """Handle what has happened, if anything has."""
        self.loop.after(0, lambda: None)
        self.loop.turn()

    def await_end(self) -> None:
        """Handle the next end."""
        self.loop.after(10, lambda: None)
        self.loop.turn()


def started() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def is_known(clients: Clients, identity: bytes) -> bool:
    """Tell if the client of that socket has said Hello."""
    try:
        clients.of(identity)
    except ServiceClosedError:
        return False
    return True


@pytest.fixture
def watched() -> Iterator[Watched]:
    gc.collect()  # what earlier tests left to it
    before = descriptors()
    made = Watched()
    yield made
    made.clients.close()
    made.loop.close()
    assert len(made.clients) == 0
    assert descriptors() == before


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Another process, as a client has."""
    child = started()
    yield child
    child.kill()
    child.communicate()


@pytest.mark.parametrize("length", [0, 1, 5, 15, 16, 17, 20, 255])
def test_a_socket_belongs_to_whom_its_first_bytes_name(length: int) -> None:
    identity = bytes(range(length))
    assert token_of(identity) == identity[:16]


def test_a_client_is_one_however_many_sockets_it_has(watched: Watched) -> None:
    client = watched.handshake(TOKEN, os.getpid())
    assert watched.clients.handshake(TOKEN + b"\0\0\0\2", Hello(2, 1, 1)) is client
    assert watched.clients.of(TOKEN + b"anything") is client
    assert watched.clients.of(TOKEN) is client
    assert not is_known(watched.clients, OTHER)
    assert list(watched.clients) == [client]


def test_a_process_that_ends_is_noticed_at_once_and_told_once(
    watched: Watched, process: subprocess.Popen[bytes]
) -> None:
    client, neighbour = watched.handshake(TOKEN, process.pid), watched.handshake(OTHER, os.getpid())
    watched.turn()
    assert watched.gone == []
    process.kill()
    watched.await_end()
    watched.turn()
    assert watched.gone == [client]
    assert list(watched.clients) == [neighbour]
    watched.clients.lose(client)
    assert watched.gone == [client]


def test_a_client_that_said_bye_is_not_told_to_be_gone(watched: Watched, process: subprocess.Popen[bytes]) -> None:
    client = watched.handshake(TOKEN, process.pid)
    assert watched.clients.forget(client)
    assert not watched.clients.forget(client)
    process.kill()
    process.wait()
    watched.turn()
    assert watched.gone == []
    assert not is_known(watched.clients, TOKEN)


def test_who_comes_as_another_goes_is_not_mistaken_for_it(watched: Watched, process: subprocess.Popen[bytes]) -> None:
    """One turn brings the end of a process, its Bye and the Hello of a client that gets the same descriptor."""
    leaving = watched.handshake(TOKEN, process.pid)
    readable, writeable = os.pipe()
    os.write(writeable, b"x")
    came: list[Client] = []

    def messages() -> None:
        watched.loop.unwatch(readable)
        watched.clients.forget(leaving)
        came.append(watched.handshake(OTHER, os.getpid()))

    number = leaving.pidfd
    assert number is not None
    handler = watched.loop._watches[number].read
    watched.loop.unwatch(number)
    watched.loop.watch(readable, messages)  # before the descriptor, as the daemon's socket may be
    watched.loop.watch(number, handler)
    process.kill()
    process.wait()
    watched.turn()
    assert came[0].pidfd == number
    assert watched.gone == []
    assert list(watched.clients) == came
    os.close(readable)
    os.close(writeable)


@pytest.mark.parametrize("namespace", [0, 1, 2**63 - 1])
def test_a_process_of_another_namespace_has_to_be_asked(watched: Watched, namespace: int) -> None:
    client = watched.handshake(TOKEN, os.getpid(), namespace)
    watched.handshake(OTHER, os.getpid()).consumers[1] = 1
    assert client.pidfd is None
    assert watched.clients.unsure() == [client]
    watched.clients.lose(client)
    assert watched.gone == [client]
    assert watched.clients.unsure() == []


def test_one_that_has_nothing_here_has_to_be_asked_for_it_may_have_gone_without_a_word(watched: Watched) -> None:
    client = watched.handshake(TOKEN, os.getpid())
    assert watched.clients.unsure() == [client]
    client.consumers[1] = 1
    assert watched.clients.unsure() == []


def test_one_that_greets_again_is_known_by_its_latest_connection(watched: Watched) -> None:
    client = watched.handshake(TOKEN, os.getpid())
    assert watched.clients.handshake(TOKEN + b"\0\0\0\2", Hello(2, os.getpid(), pid_namespace())) is client
    assert client.sockets == (TOKEN + b"\0\0\0\2", TOKEN + b"\0\0\0\0")
    assert len(watched.clients) == 1


def test_a_process_has_no_clients_without_end(watched: Watched) -> None:
    for number in range(1024):
        watched.handshake(number.to_bytes(16, "big"), os.getpid(), 1)
    with pytest.raises(ProtocolError, match=rf"process {os.getpid()} has 1024 clients here, of 1024 in all; a process"):
        watched.handshake(TOKEN, os.getpid(), 1)
    watched.handshake(TOKEN, os.getpid() + 1, 1)
    watched.handshake(bytes(16), os.getpid(), 1)  # it is known
    assert len(watched.clients) == 1025


def test_a_client_has_no_consumers_without_end(watched: Watched) -> None:
    client = watched.handshake(TOKEN, os.getpid())
    client.consumers |= {number: number for number in range(4095)}
    client.check_new(4095)
    with pytest.raises(ProtocolError, match="consumer 7 of this client is open; give each a number of its own"):
        client.check_new(7)
    client.consumers[4095] = 4095
    with pytest.raises(ProtocolError, match="this client has 4096 consumers open, and may have no more"):
        client.check_new(4096)


@given(st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=40))
def test_a_number_whose_close_came_before_its_open_never_opens(events: list[tuple[int, bool]]) -> None:
    """In whatever order the numbers come; each opens at most once."""
    client, opened, given_up = Client(TOKEN, 1, None), set[int](), set[int]()
    for number, is_open in events:
        if not is_open:
            if number not in opened:
                client.give_up(number)
                given_up.add(number)
        elif number in given_up:
            with pytest.raises(ConsumerClosedError, match=f"consumer {number} was closed before it was opened"):
                client.check_new(number)
            return
        elif number not in opened:
            client.check_new(number)
            opened.add(number)


def test_numbers_that_never_open_do_not_end_what_is_remembered_of_later_ones() -> None:
    client = Client(TOKEN, 1, None)
    for number in range(1, 6000):
        client.give_up(number)
    with pytest.raises(ConsumerClosedError):
        client.check_new(5999)
    assert len(client.given_up) <= 4096


def test_numbers_far_apart_take_no_memory_without_end() -> None:
    client = Client(TOKEN, 1, None)
    for number in range(0, 2**62, 2**54):
        client.check_new(number)
        client.give_up(number - 1)
        assert max(len(client.skipped), len(client.given_up)) <= 4096
    for number in range(2**62, 2**62 + 3 * 20_000, 3):
        client.check_new(number)
        assert len(client.skipped) <= 4096


def test_what_was_meant_for_the_daemon_before_is_refused(watched: Watched) -> None:
    """A socket that finds its daemon gone gives the next one what it has left: the client has asked that again."""
    before = watched.clients.incarnation ^ 1
    for stale in (Open(1, 1, "s", 0, False, "wait", 0, 0, 0, 1, before), Tune(1, "s", {}, before), Stop(1, before)):
        with pytest.raises(ServiceClosedError, match=f"the daemon that this {stale.kind} was meant for is gone"):
            watched.clients.check_meant(stale)
        watched.clients.check_meant(replace(stale, incarnation=watched.clients.incarnation))
    assert Clients(watched.loop, lambda gone: None).incarnation != watched.clients.incarnation


@pytest.mark.parametrize("pid", [0, 2**22 + 1, 2**31, 2**63 - 1])
def test_a_number_that_is_no_process_has_to_be_asked_too(watched: Watched, pid: int) -> None:
    """Any number may come in a message; none may end the daemon."""
    client = watched.handshake(TOKEN, pid)
    assert watched.clients.unsure() == [client]


def test_clients_may_be_lost_while_they_are_gone_through(watched: Watched) -> None:
    for number in range(10):
        watched.handshake(bytes([number]) * 16, os.getpid(), 1)
    for client in watched.clients:
        watched.clients.lose(client)
    assert len(watched.gone) == 10
