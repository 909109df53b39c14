"""The protocol of ZeroMQ as a ROUTER speaks it: with libzmq itself at the other end, and with what no libzmq sends."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from loader_service.daemon.server.zmtp import GREETING, MAX_SMALL, READY, Frame, FrameReader, PeerError, frame, pong

PEER = GREETING[:11] + b"\x01" + GREETING[12:]
"""The greeting of a peer of version 3.1, as libzmq's is."""


def ready(identity: bytes = b"me") -> bytes:
    properties = b"\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity" + len(identity).to_bytes(4, "big") + identity
    return frame(b"\x05READY" + properties, 4)


def greeted(identity: bytes = b"me") -> FrameReader:
    reader = FrameReader()
    reader.feed(PEER + ready(identity))
    assert reader.next() is not None
    return reader


def frames(reader: FrameReader) -> list[bytes]:
    found = []
    while (one := reader.next()) is not None:
        found.append(one.body)
    return found


@pytest.mark.parametrize("length", [0, 1, 2, 255, 256, 257, 4095, 4096, 4097])
def test_libzmq_takes_what_is_sent_and_is_understood(tmp_path: Path, length: int) -> None:
    path, reader = str(tmp_path / "x.sock"), FrameReader()
    with (
        socket.socket(socket.AF_UNIX) as listener,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as dealer,
    ):
        listener.bind(path)
        listener.listen()
        dealer.linger, dealer.rcvtimeo, dealer.routing_id = 0, 10_000, b"name"
        dealer.connect(f"ipc://{path}")
        dealer.send(b"q" * length)
        with listener.accept()[0] as peer:
            peer.sendall(GREETING + READY)
            found: list[bytes] = []
            while len(found) < 2:
                reader.feed(peer.recv(1 << 16))
                found += frames(reader)
            assert found[0].startswith(b"\x05READY")
            assert found[1] == b"q" * length
            assert reader.identity == b"name"
            peer.sendall(frame(b"a" * length))
            assert dealer.recv() == b"a" * length


@given(st.lists(st.binary(max_size=600), max_size=6), st.lists(st.integers(1, 200), min_size=1, max_size=20))
def test_frames_are_found_however_their_bytes_are_cut(bodies: list[bytes], cuts: list[int]) -> None:
    data = PEER + ready() + b"".join(map(frame, bodies))
    reader, found, place = FrameReader(), list[bytes](), 0
    while data:
        size = cuts[place % len(cuts)]
        reader.feed(data[:size])
        data, place = data[size:], place + 1
        found += frames(reader)
    assert found[1:] == bodies
    assert (reader.identity, len(reader)) == (b"me", 0)


@given(st.binary(max_size=300))
def test_bytes_of_any_kind_are_frames_or_an_error(data: bytes) -> None:
    for start in (b"", PEER, PEER + ready()):
        reader = FrameReader()
        reader.feed(start + data)
        try:
            frames(reader)
        except PeerError:
            continue
        assert len(reader) <= len(start + data)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1\r\n", "no greeting"),
        (b"\xff" + bytes(9), "no greeting"),
        (GREETING[:10] + b"\x01", "version 1 of ZMTP"),
        (GREETING[:12] + b"CURVE".ljust(20, b"\0") + bytes(32), "another mechanism"),
        (PEER + frame(b"hello"), "no READY command"),
        (PEER + ready() + b"\x01\x01x", "a message of several frames"),
        (PEER + ready() + b"\xf0\x01x", "a frame with flags 240"),
    ],
)
def test_who_breaks_the_protocol_is_found_out(data: bytes, why: str) -> None:
    reader = FrameReader()
    reader.feed(data)
    with pytest.raises(PeerError, match=why):
        frames(reader)


@pytest.mark.parametrize("length", [MAX_SMALL - 10, MAX_SMALL - 9, MAX_SMALL - 8, 1 << 20])
def test_a_large_frame_is_announced_and_read_once_it_is_allowed(length: int) -> None:
    reader, body = greeted(), b"x" * length
    reader.feed(frame(body)[:100])
    assert reader.next() is None
    is_large = length + 9 > MAX_SMALL
    assert reader.announced == (length if is_large else 0)
    if is_large:
        reader.allow()
        assert (reader.is_within, reader.missing) == (True, length + 9 - 100)
    reader.feed(frame(body)[100:] + frame(b"next"))
    assert reader.next() == Frame(body, is_command=False)
    assert not reader.is_within
    assert reader.next() == Frame(b"next", is_command=False)


def test_a_ping_is_answered_with_its_context() -> None:
    assert pong(b"\x04PING\x00\x0acontext") == frame(b"\x04PONGcontext", 4)


def test_a_peer_without_a_name_has_none() -> None:
    assert greeted(b"").identity == b""
