"""One connection: what waits for a peer that does not read is bounded, and what it does read is whole."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from loader_service.daemon.server.connection import Connection
from loader_service.daemon.server.zmtp import GREETING, READY, PeerError, frame, pong

LIMIT_BYTES = 1 << 22


@pytest.fixture
def ends() -> Iterator[tuple[Connection, socket.socket]]:
    ours, theirs = socket.socketpair()
    connection = Connection(ours)
    yield connection, theirs
    connection.close()
    theirs.close()


def test_the_greeting_comes_first_and_a_message_is_one_frame(ends: tuple[Connection, socket.socket]) -> None:
    connection, peer = ends
    connection.send(b"hello")
    assert peer.recv(4096) == GREETING + READY + frame(b"hello")
    assert connection.is_sent


def test_messages_to_a_peer_that_does_not_read_are_bounded(ends: tuple[Connection, socket.socket]) -> None:
    connection, _ = ends
    largest = b"x" * (1 << 16)
    for _ in range(500):
        connection.send(largest)
    assert 0 < connection.pending_bytes <= LIMIT_BYTES + len(frame(largest))


def test_answers_to_pings_of_a_peer_that_does_not_read_are_bounded(ends: tuple[Connection, socket.socket]) -> None:
    connection, _ = ends
    answer = pong(b"\x04PING\0\0" + b"x" * 200)
    for _ in range(100_000):
        connection.send_bytes(answer)
    assert 0 < connection.pending_bytes <= LIMIT_BYTES + len(answer)


def test_what_waits_goes_out_in_order_once_the_peer_reads(ends: tuple[Connection, socket.socket]) -> None:
    connection, peer = ends
    sent = [frame(bytes([number]) * 60_000) for number in range(20)]
    for number in range(20):
        connection.send(bytes([number]) * 60_000)
    expected, come = GREETING + READY + b"".join(sent), b""
    while len(come) < len(expected):
        come += peer.recv(1 << 20)
        connection.flush()
    assert come == expected
    assert (connection.is_sent, connection.pending_bytes) == (True, 0)


def test_a_peer_that_has_gone_is_an_error_of_its_own(ends: tuple[Connection, socket.socket]) -> None:
    connection, peer = ends
    peer.close()
    with pytest.raises(PeerError):
        connection.receive()
