"""The daemon's socket: what does not decode is answered and goes no further, and nobody can block it."""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest
import zmq

from loader_service.daemon.server.event_loop import Loop
from loader_service.daemon.server.server_socket import ServerSocket
from loader_service.errors import EndpointError, ProtocolError, from_record
from loader_service.wire.messages import DAEMON_MESSAGES, Bye, Closing, Done, Error, Get, Message, Ping, Stop
from loader_service.wire.protocol import MAX_MESSAGE_BYTES, VERSION, decode, encode


class BrokerHarness:
    """A front in its loop, and clients that are plain sockets."""

    def __init__(self, directory: Path) -> None:
        self.handled: list[tuple[bytes, Message]] = []
        self.bursts: list[int] = []  # how many were handled by the end of each
        self.loop = Loop(time.monotonic)
        self.front = ServerSocket(
            self.loop,
            lambda identity, message: self.handled.append((identity, message)),
            lambda: self.bursts.append(len(self.handled)),
        )
        self.path = directory / "front.sock"
        self.context = zmq.Context()
        self.sockets: list[zmq.Socket[bytes]] = []
        self.front.bind(f"ipc://{self.path}")

    def client(self, identity: bytes) -> zmq.Socket[bytes]:
        socket = self.context.socket(zmq.DEALER)
        socket.routing_id = identity
        socket.rcvtimeo = 10_000
        socket.connect(f"ipc://{self.path}")
        self.sockets.append(socket)
        return socket

    def turn(self, until: int) -> None:
        """Turn the loop until that many messages were handled."""
        deadline = time.monotonic() + 10
        while len(self.handled) < until:
            assert time.monotonic() < deadline
            self.loop.after(0.05, lambda: None)
            self.loop.turn()

    def end(self) -> None:
        for _ in range(2):
            self.front.close()
        for socket in self.sockets:
            socket.close(linger=0)
        self.context.term()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[BrokerHarness]:
    made = BrokerHarness(tmp_path)
    yield made
    made.end()


def refusal(socket: zmq.Socket[bytes]) -> Error:
    reply = decode(socket.recv_multipart(), DAEMON_MESSAGES)
    assert isinstance(reply, Error)
    assert type(from_record(reply.error)) is ProtocolError
    return reply


def test_the_socket_is_its_users_alone(desk: BrokerHarness) -> None:
    assert stat.S_IMODE(desk.path.stat().st_mode) == 0o600


def test_messages_are_handled_with_whose_they_are_and_answered(desk: BrokerHarness) -> None:
    one, other = desk.client(b"one"), desk.client(b"other")
    one.send_multipart(encode(Stop(1, 9)))
    desk.turn(1)
    other.send_multipart(encode(Bye()))
    desk.turn(2)
    assert desk.handled == [(b"one", Stop(1, 9)), (b"other", Bye())]
    assert desk.front.send(b"one", Done(1))
    assert decode(one.recv_multipart(), DAEMON_MESSAGES) == Done(1)


def test_what_does_not_decode_is_answered_and_goes_no_further(desk: BrokerHarness) -> None:
    socket = desk.client(b"one")
    get = {"kind": "get", "request": 7, "consumer": 1, "step": 2**63, "steps": 1, "holds": [], "demanded": True}
    too_far = msgpack.packb(get)
    for frames in ([VERSION + too_far], [VERSION + b"\xc1"], [b"x"], [b""] * 5, encode(Ping()), encode(Stop(1, 9))):
        socket.send_multipart(frames)
    desk.turn(1)
    assert desk.handled == [(b"one", Stop(1, 9))]
    assert [refusal(socket).request for _ in range(5)] == [7, 0, 0, 0, 0]


def test_one_client_with_much_to_say_does_not_keep_the_loop(desk: BrokerHarness) -> None:
    socket = desk.client(b"one")
    for number in range(1000):
        socket.send_multipart(encode(Get(number, 1, 0, 1, [], True)))
    desk.turn(1)
    deadline = time.monotonic() + 10
    while len(desk.handled) < 1000:
        assert time.monotonic() < deadline
        before = len(desk.handled)
        desk.loop.after(0.05, lambda: None)
        desk.loop.turn()
        assert len(desk.handled) - before <= 64
        assert desk.bursts[-1] == len(desk.handled), "each burst has an end"
    assert [message for _, message in desk.handled] == [Get(number, 1, 0, 1, [], True) for number in range(1000)]


def test_a_message_that_is_too_large_ends_its_connection_and_no_other(desk: BrokerHarness) -> None:
    large, other = desk.client(b"large"), desk.client(b"other")
    large.send_multipart([VERSION + b"x" * MAX_MESSAGE_BYTES])
    other.send_multipart([VERSION, b"x" * MAX_MESSAGE_BYTES])
    other.send_multipart(encode(Stop(1, 9)))
    desk.turn(1)
    assert desk.handled == [(b"other", Stop(1, 9))]
    assert refusal(other).request == 0


def test_who_is_not_there_is_told_to_the_sender(desk: BrokerHarness) -> None:
    assert not desk.front.send(b"nobody", Ping())
    socket = desk.client(b"one")
    socket.send_multipart(encode(Stop(1, 9)))
    desk.turn(1)
    assert desk.front.send(b"one", Ping())
    socket.close(linger=0)
    deadline = time.monotonic() + 10
    while desk.front.send(b"one", Ping()):
        assert time.monotonic() < deadline


def test_who_does_not_read_blocks_nobody(desk: BrokerHarness) -> None:
    socket = desk.client(b"one")
    socket.send_multipart(encode(Stop(1, 9)))
    desk.turn(1)
    started = time.monotonic()
    for number in range(5000):
        assert desk.front.send(b"one", Done(number))
    assert time.monotonic() - started < 10


def test_an_endpoint_that_cannot_be_bound_is_told(desk: BrokerHarness) -> None:
    another = ServerSocket(desk.loop, lambda identity, message: None, lambda: None)
    try:
        with pytest.raises(EndpointError, match=r"ipc:///no/such/x.sock cannot be bound: No such file"):
            another.bind("ipc:///no/such/x.sock")
    finally:
        another.close()


def test_a_flood_does_not_keep_the_end_from_coming(desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has come in by then is refused, but not for as long as more comes."""
    monkeypatch.setattr("loader_service.daemon.server.server_socket._MAX_REFUSED", 10)
    socket = desk.client(b"one")
    for number in range(100):
        socket.send_multipart(encode(Get(number, 1, 0, 1, [], True)))
    desk.turn(1)
    for number in range(100):
        socket.send_multipart(encode(Get(number, 1, 0, 1, [], True)))
    desk.turn(100)
    handled = len(desk.handled)
    assert socket.poll(100) == 0
    deadline = time.monotonic() + 10
    refused = 0
    while refused + handled < 200:
        assert time.monotonic() < deadline
        desk.front.refuse(Closing("the end"))
        before = refused
        while socket.poll(50):
            decode(socket.recv_multipart(), DAEMON_MESSAGES)
            refused += 1
        assert refused - before <= 10
