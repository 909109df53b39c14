"""The heartbeat: a client whose process cannot be seen is asked whether its connection is there, the others are not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from loader_service.daemon.config.load import Config
from loader_service.daemon.server.service import Service
from loader_service.wire.messages import DAEMON_MESSAGES, Hello, Ping
from loader_service.wire.process import pid_namespace
from loader_service.wire.protocol import decode
from tests.daemon.broker.broker_harness import identity


class Watch:
    """A service that only listens and asks, and clients that are plain sockets."""

    def __init__(self, path: Path) -> None:
        self.endpoint = f"ipc://{path}"
        streams = {"s": {"factory": "tests.daemon.streams:small"}}
        server = {"heartbeat_s": 0.01, "endpoint": self.endpoint}
        self.service = Service(Config.of({"server": server, "streams": streams}), lambda endpoint: None)
        self.service._server_socket.bind(self.endpoint)
        self.context = zmq.Context()
        self.sockets: list[zmq.Socket[bytes]] = []

    def connect(self, name: bytes) -> zmq.Socket[bytes]:
        socket = self.context.socket(zmq.DEALER)
        socket.routing_id = name
        socket.connect(self.endpoint)
        self.sockets.append(socket)
        self.until(lambda: self.service._server_socket.send(name, Ping()), "connected")
        return socket

    def handshake(self, client: int, namespace: int, number: int = 0) -> zmq.Socket[bytes]:
        """A client that is connected and has said Hello, on its socket of that number."""
        socket = self.connect(identity(client, number))
        self.service._clients.handshake(identity(client, number), Hello(1, os.getpid(), namespace))
        assert socket.poll(10_000)
        socket.recv_multipart()
        return socket

    def until(self, holds: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + 20.0
        while not holds():
            assert time.monotonic() < deadline, what
            self.service.loop.after(0.01, lambda: None)
            self.service.loop.turn()

    def end(self) -> None:
        self.service._shut_down()
        for socket in self.sockets:
            socket.close(linger=0)
        self.context.term()


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    made = Watch(tmp_path / "x.sock")
    yield made
    made.end()


def test_those_who_cannot_be_seen_are_asked_again_and_again_and_no_others_that_have_consumers(watch: Watch) -> None:
    unseen, seen = watch.handshake(1, pid_namespace() + 1), watch.handshake(2, pid_namespace())
    client = watch.service._clients.of(identity(2))
    assert client is not None
    client.consumers[1] = 1
    watch.service._beat()
    for _ in range(3):
        watch.until(lambda: unseen.poll(0), "asked")
        assert decode(unseen.recv_multipart(), DAEMON_MESSAGES) == Ping()
    assert not seen.poll(0)
    assert len(watch.service._clients) == 2


def test_one_whose_connection_is_gone_is_lost_and_no_other(watch: Watch) -> None:
    gone, _, _ = watch.handshake(1, 0), watch.handshake(2, 0), watch.handshake(3, pid_namespace())
    watch.service._beat()
    gone.close(linger=0)
    watch.until(lambda: len(watch.service._clients) == 2, "lost")
    assert [client.identity for client in watch.service._clients] == [identity(2), identity(3)]


def test_one_that_has_nothing_here_and_whose_connection_is_gone_is_forgotten_though_its_process_lives(
    watch: Watch,
) -> None:
    gone, other = watch.handshake(1, pid_namespace()), watch.handshake(2, pid_namespace())
    watch.service._beat()
    gone.close(linger=0)
    watch.until(lambda: len(watch.service._clients) == 1, "forgotten")
    assert [client.identity for client in watch.service._clients] == [identity(2)]
    assert not other.closed


def test_one_that_closed_all_but_the_socket_that_ends_its_leases_is_still_there(watch: Watch) -> None:
    """It has views, and would see them change if its leases ended with its other connections."""
    greeted, first = watch.handshake(1, 0, 1), watch.connect(identity(1, 0))
    greeted.close(linger=0)
    watch.until(lambda: not watch.service._server_socket.send(identity(1, 1), Ping()), "gone")
    watch.service._beat()
    assert len(watch.service._clients) == 1
    first.close(linger=0)
    watch.until(lambda: len(watch.service._clients) == 0, "lost")


def test_one_that_does_not_read_is_still_there(watch: Watch) -> None:
    """Stopped, say: its pace tells what becomes of it."""
    watch.handshake(1, 0)
    for _ in range(3000):
        watch.service._beat()
    assert len(watch.service._clients) == 1
