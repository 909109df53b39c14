"""The daemon's socket: what does not decode is answered and goes no further, and nobody can block it."""

from __future__ import annotations

import os
import socket as stream
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgpack
import pytest
import zmq

from loader_service.daemon.server.event_loop import Loop
from loader_service.daemon.server.server_socket import ServerSocket
from loader_service.daemon.server.zmtp import GREETING, frame
from loader_service.errors import EndpointError, ProtocolError, from_record
from loader_service.wire.messages import DAEMON_MESSAGES, Bye, Closing, Done, Error, Get, Message, Ping, Release, Stop
from loader_service.wire.protocol import MAX_MESSAGE_BYTES, VERSION, decode, encode


class BrokerHarness:
    """A front in its loop, and clients that are plain sockets."""

    def __init__(self, directory: Path, is_member: Callable[[bytes], bool] = lambda identity: True) -> None:
        self.handled: list[tuple[bytes, Message]] = []
        self.bursts: list[int] = []  # how many were handled by the end of each
        self.loop = Loop(time.monotonic)
        self.front = ServerSocket(
            self.loop,
            lambda identity, message: self.handled.append((identity, message)),
            lambda: self.bursts.append(len(self.handled)),
            is_member,
        )
        self.path = directory / "front.sock"
        self.context = zmq.Context()
        self.sockets: list[zmq.Socket[bytes]] = []
        self.front.bind(f"ipc://{self.path}")

    def client(self, identity: bytes) -> zmq.Socket[bytes]:
        socket = self.context.socket(zmq.DEALER)
        if identity:
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

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Turn the loop until `holds()`."""
        deadline = time.monotonic() + 20
        while not holds():
            assert time.monotonic() < deadline, what
            self.loop.after(0.01, lambda: None)
            self.loop.turn()

    def end(self) -> None:
        for _ in range(2):
            self.front.close()
        for socket in self.sockets:
            socket.close(linger=0)
        self.context.term()


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[BrokerHarness]:
    made = BrokerHarness(tmp_path)
    yield made
    made.end()


def refusal(socket: zmq.Socket[bytes]) -> Error:
    reply = decode(socket.recv_multipart(), DAEMON_MESSAGES)
    assert isinstance(reply, Error)
    assert type(from_record(reply.error)) is ProtocolError
    return reply


def test_the_socket_is_its_users_alone(harness: BrokerHarness) -> None:
    assert stat.S_IMODE(harness.path.stat().st_mode) == 0o600


def test_messages_are_handled_with_whose_they_are_and_answered(harness: BrokerHarness) -> None:
    one, other = harness.client(b"one"), harness.client(b"other")
    one.send_multipart(encode(Stop(1, 9)))
    harness.turn(1)
    other.send_multipart(encode(Bye()))
    harness.turn(2)
    assert harness.handled == [(b"one", Stop(1, 9)), (b"other", Bye())]
    assert harness.front.send(b"one", Done(1))
    assert decode(one.recv_multipart(), DAEMON_MESSAGES) == Done(1)


def test_what_does_not_decode_is_answered_and_goes_no_further(harness: BrokerHarness) -> None:
    socket = harness.client(b"one")
    get = {"kind": "get", "request": 7, "consumer": 1, "step": 2**63, "steps": 1, "holds": [], "demanded": True}
    too_far = msgpack.packb(get)
    for frames in ([VERSION + too_far], [VERSION + b"\xc1"], [b"x"], [b""], encode(Ping()), encode(Stop(1, 9))):
        socket.send_multipart(frames)
    harness.turn(1)
    assert harness.handled == [(b"one", Stop(1, 9))]
    assert [refusal(socket).request for _ in range(5)] == [7, 0, 0, 0, 0]


def test_one_client_with_much_to_say_does_not_keep_the_loop(harness: BrokerHarness) -> None:
    socket = harness.client(b"one")
    for number in range(1000):
        socket.send_multipart(encode(Get(number, 1, 0, 1, [], True)))
    harness.turn(1)
    deadline = time.monotonic() + 10
    while len(harness.handled) < 1000:
        assert time.monotonic() < deadline
        before = len(harness.handled)
        harness.loop.after(0.05, lambda: None)
        harness.loop.turn()
        assert len(harness.handled) - before <= 64
        assert harness.bursts[-1] == len(harness.handled), "each burst has an end"
    assert [message for _, message in harness.handled] == [Get(number, 1, 0, 1, [], True) for number in range(1000)]


@pytest.mark.parametrize("frames", [[VERSION + b"x" * MAX_MESSAGE_BYTES], [VERSION, b"x"], [b""] * 5])
def test_a_message_that_is_too_large_or_in_parts_ends_its_connection_and_no_other(
    harness: BrokerHarness, frames: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    bad, other = harness.client(b"bad"), harness.client(b"other")
    bad.send_multipart(frames)
    other.send_multipart(encode(Stop(1, 9)))
    harness.turn(1)
    assert harness.handled == [(b"other", Stop(1, 9))]
    harness.until(lambda: "a connection was ended: a message of " in caplog.text, "it is ended")
    assert not bad.poll(0)


def test_who_is_not_there_is_told_to_the_sender(harness: BrokerHarness) -> None:
    assert not harness.front.send(b"nobody", Ping())
    socket = harness.client(b"one")
    socket.send_multipart(encode(Stop(1, 9)))
    harness.turn(1)
    assert harness.front.send(b"one", Ping())
    socket.close(linger=0)
    harness.until(lambda: not harness.front.send(b"one", Ping()), "its end is noticed")


def test_who_does_not_read_blocks_nobody(harness: BrokerHarness) -> None:
    socket = harness.client(b"one")
    socket.send_multipart(encode(Stop(1, 9)))
    harness.turn(1)
    started = time.monotonic()
    for number in range(5000):
        assert harness.front.send(b"one", Done(number))
    assert time.monotonic() - started < 10


def test_an_endpoint_that_cannot_be_bound_is_told(harness: BrokerHarness) -> None:
    another = ServerSocket(harness.loop, lambda identity, message: None, lambda: None)
    try:
        with pytest.raises(EndpointError, match=r"ipc:///no/such/x.sock cannot be bound: No such file"):
            another.bind("ipc:///no/such/x.sock")
    finally:
        another.close()


def test_a_flood_does_not_keep_the_end_from_coming(harness: BrokerHarness) -> None:
    """All that has come in by then is refused, but not for as long as more comes."""
    socket = harness.client(b"one")
    for number in range(100):
        socket.send_multipart(encode(Get(number, 1, 0, 1, [], True)))
    harness.turn(1)
    for number in range(100):
        socket.send_multipart(encode(Get(number, 1, 0, 1, [], True)))
    harness.turn(100)
    handled = len(harness.handled)
    assert socket.poll(100) == 0
    deadline = time.monotonic() + 10
    refused = calls = 0
    while refused + handled < 200:
        assert time.monotonic() < deadline
        harness.front.refuse(Closing("the end"))
        calls += 1
        while socket.poll(50):
            decode(socket.recv_multipart(), DAEMON_MESSAGES)
            refused += 1
        assert refused <= 64 * calls


# --- strangers -------------------------------------------------------------------------------------------


def _ready(name: bytes) -> bytes:
    body = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity" + len(name).to_bytes(4, "big") + name
    return frame(body, 4)


class Raw:
    """A peer that sends what it likes, from its handshake on."""

    def __init__(self, harness: BrokerHarness, name: bytes) -> None:
        self.socket = stream.socket(stream.AF_UNIX)
        self.socket.connect(str(harness.path))
        self.socket.sendall(GREETING + _ready(name))
        self.socket.setblocking(False)

    def send(self, data: bytes) -> int:
        """Count how much of it was taken without waiting."""
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return -1

    def is_hung_up_on(self) -> bool:
        try:
            while self.socket.recv(1 << 16):
                pass
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True


@pytest.fixture
def stranger_desk(tmp_path: Path) -> Iterator[BrokerHarness]:
    """One where only "member" is a member."""
    made = BrokerHarness(tmp_path, lambda identity: identity == b"member")
    yield made
    made.end()


ENDLESS = b"\x01\x00"
LONG = b"\x02" + (1 << 20).to_bytes(8, "big")


@pytest.mark.parametrize("data", [ENDLESS * 100, LONG, frame(b"x" * 5000), b"\x02" + (1 << 62).to_bytes(8, "big")])
def test_a_stranger_is_hung_up_on_before_anything_is_decoded(
    stranger_desk: BrokerHarness, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: object) -> Message:
        raise AssertionError("decoded")

    monkeypatch.setattr("loader_service.daemon.server.server_socket.decode", never)
    raw = Raw(stranger_desk, b"stranger")
    raw.send(data)
    stranger_desk.until(raw.is_hung_up_on, "hung up on")
    raw.socket.close()


@pytest.mark.parametrize("name", [b"one", b"other", b""])
@pytest.mark.parametrize("rest", ["a message", "READY", "PING", "a large message", "nonsense"])
def test_who_leaves_in_mid_sentence_is_forgotten_and_the_next_with_its_descriptor_is_not(
    harness: BrokerHarness, name: bytes, rest: str
) -> None:
    """The first answer finds the peer gone; its connection has ended with the rest of what it said unread."""
    watched: list[bytes] = []
    reused: list[int] = []
    ours, theirs = stream.socketpair()

    def answer(identity: bytes, message: Message) -> None:
        harness.handled.append((identity, message))
        before = set(harness.front._connections)
        harness.front.send(identity, Done(1))
        for number in before - set(harness.front._connections):  # something of the daemon's own takes it
            reused.append(os.dup2(ours.fileno(), number))
            harness.loop.watch(number, lambda: watched.append(ours.recv(1)))

    harness.front._handle = answer
    said = {
        "a message": frame(encode(Stop(2, 9))[0]),
        "READY": _ready(name),
        "PING": frame(b"\x04PING\0\0", 4),
        "a large message": b"\x02" + (1 << 16).to_bytes(8, "big") + bytes(100),
        "nonsense": ENDLESS,
    }
    raw = Raw(harness, name)
    harness.until(lambda: harness.front._by_identity, "its handshake is complete")
    raw.socket.sendall(frame(encode(Stop(1, 9))[0]) + said[rest] * 2)
    raw.socket.close()
    harness.until(lambda: reused, "its end is noticed")
    theirs.send(b"x")
    harness.until(lambda: watched == [b"x"], "what has its descriptor now is watched")
    assert not harness.front._connections
    assert not harness.front._by_identity
    harness.loop.unwatch(reused[0])
    os.close(reused[0])
    ours.close()
    theirs.close()


def test_frames_of_members_that_do_not_end_keep_no_memory_and_end_at_last(
    stranger_desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is read at a time; the others stay with their senders."""
    monkeypatch.setattr("loader_service.daemon.server.server_socket._HANDSHAKE_S", 0.2)
    raws = []
    for number in range(20):
        raws.append(Raw(stranger_desk, b"member"))
        stranger_desk.until(lambda: stranger_desk.front.send(b"member", Ping()), f"{number} is known")
    raw = raws[-1]
    raw.send(LONG + b"x" * 50_000)
    stranger_desk.until(raw.is_hung_up_on, "its time is over")
    for one in raws:
        one.socket.close()


def test_large_messages_leave_most_of_the_time_to_others(stranger_desk: BrokerHarness) -> None:
    """Each costs some milliseconds; in between, small ones of others are answered."""
    release = encode(Release(1, list(range(10_000))))[0]
    member, other = stranger_desk.client(b"member"), stranger_desk.client(b"other")
    for _ in range(30):
        member.send(release)
    other.send_multipart(encode(Stop(1, 9)))
    stranger_desk.until(lambda: (b"other", Stop(1, 9)) in stranger_desk.handled, "the other is answered")
    assert len(stranger_desk.handled) < 31
    stranger_desk.until(lambda: len(stranger_desk.handled) == 31, "all of them come in the end")


def test_who_says_nothing_is_hung_up_on(harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loader_service.daemon.server.server_socket._HANDSHAKE_S", 0.1)
    with stream.socket(stream.AF_UNIX) as caller:
        caller.connect(str(harness.path))
        caller.settimeout(0.01)
        harness.until(lambda: _ended(caller), "hung up on")


def _ended(caller: stream.socket) -> bool:
    try:
        return caller.recv(1 << 12) == b""
    except TimeoutError:
        return False


def test_peers_without_a_name_are_told_apart(harness: BrokerHarness) -> None:
    one, other = harness.client(b""), harness.client(b"")
    for socket in (one, other):
        socket.send_multipart(encode(Stop(1, 9)))
    harness.turn(2)
    names = [name for name, _ in harness.handled]
    assert len(set(names)) == 2
    for name in names:
        assert harness.front.send(name, Done(1))
    assert [decode(socket.recv_multipart(), DAEMON_MESSAGES) for socket in (one, other)] == [Done(1)] * 2


def test_a_socket_that_connects_again_takes_the_place_of_its_first_connection(harness: BrokerHarness) -> None:
    first = Raw(harness, b"one")
    harness.until(lambda: harness.front.send(b"one", Ping()), "known")
    second = harness.client(b"one")
    second.send_multipart(encode(Stop(1, 9)))
    harness.turn(1)
    harness.until(first.is_hung_up_on, "the first has ended")
    assert harness.front.send(b"one", Done(1))
    first.socket.close()


def test_bound_anew_it_serves_old_and_new_connections(harness: BrokerHarness) -> None:
    endpoint = f"ipc://{harness.path}"
    old = harness.client(b"old")
    old.send_multipart(encode(Stop(1, 9)))
    harness.turn(1)
    assert harness.front.is_bound_at(endpoint)
    harness.path.unlink()
    assert not harness.front.is_bound_at(endpoint)
    harness.front.bind(endpoint)
    assert harness.front.is_bound_at(endpoint)
    for socket in (old, harness.client(b"new")):
        socket.send_multipart(encode(Stop(2, 9)))
    harness.turn(3)
