"""Attacks of strangers on a daemon's socket, each for a short while; and a consumer that goes on reading meanwhile."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import zmq

import loader_client
from loader_service.wire.messages import (
    CLIENT_MESSAGES,
    DAEMON_MESSAGES,
    Close,
    Get,
    Hello,
    Message,
    Open,
    Release,
    Status,
    Welcome,
)
from loader_service.wire.process import pid_namespace
from loader_service.wire.protocol import MAX_MESSAGE_BYTES, VERSION, decode, encode
from tests.e2e.streams import small
from tests.wire.examples import EXAMPLES

__all__ = ["ATTACKS", "Reader", "reading"]

_MUTABLE = [one for one in EXAMPLES if one.kind in CLIENT_MESSAGES and one.kind != "stop"]
Socket = zmq.Socket[bytes]


class Reader(threading.Thread):
    """Reads stream "s" step by step until told to end, and compares every batch with what the contract says."""

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self.right, self.wrong = 0, list[Any]()
        self._endpoint, self._ending = endpoint, threading.Event()

    def run(self) -> None:
        stream = small()
        try:
            with loader_client.connect(self._endpoint, reconnect_s=0) as client, client.open("s") as consumer:
                while not self._ending.is_set():
                    batch = consumer.get(consumer.next_step, timeout_s=60)
                    is_right = batch.digest() == stream.build(batch.step).digest()
                    self.wrong.extend([] if is_right else [batch.step])
                    self.right += is_right
        except Exception as error:
            self.wrong.append(error)

    def end(self) -> None:
        self._ending.set()
        self.join()


@contextmanager
def reading(endpoint: str) -> Iterator[Reader]:
    """A reader that, at the end, has read on and has found nothing wrong."""
    reader = Reader(endpoint)
    reader.start()
    try:
        yield reader
    finally:
        reader.end()
    assert not reader.wrong, reader.wrong
    assert reader.right > 0


@contextmanager
def _stranger(endpoint: str, *, greets: bool = False) -> Iterator[Socket]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 200
        dealer.sndtimeo = 5000
        dealer.connect(endpoint)
        if greets:
            dealer.send_multipart(encode(Hello(1, os.getpid(), pid_namespace())))
        yield dealer


def _mutated(chance: random.Random, frame: bytes) -> bytes:
    for _ in range(chance.randint(1, 4)):
        place = chance.randint(0, len(frame))
        frame = frame[:place] + chance.randbytes(chance.randint(0, 3)) + frame[place + chance.randint(0, 3) :]
    return frame


def random_bytes(endpoint: str, chance: random.Random) -> None:
    with _stranger(endpoint) as dealer:
        for _ in range(500):
            start = VERSION if chance.random() < 0.5 else b""
            dealer.send_multipart([start + chance.randbytes(chance.randint(0, 300))])


def mutated_messages(endpoint: str, chance: random.Random) -> None:
    """One of each kind, from one who is known and one who is not."""
    for greets in (False, True):
        with _stranger(endpoint, greets=greets) as dealer:
            for _ in range(60):
                for message in _MUTABLE:
                    dealer.send_multipart([_mutated(chance, encode(message)[0])])


def wrong_versions_and_frames(endpoint: str, chance: random.Random) -> None:
    with _stranger(endpoint) as dealer:
        for _ in range(200):
            [frame] = encode(chance.choice(_MUTABLE))
            dealer.send_multipart([b"loader-service/%d\n" % chance.randint(2, 99) + frame.removeprefix(VERSION)])
            dealer.send_multipart([frame] * chance.randint(2, 50))
            dealer.send_multipart([b""] * chance.randint(1, 5))


def huge_frames(endpoint: str, chance: random.Random) -> None:
    """Some that are too large, which end the connection, and some of many small things."""
    with _stranger(endpoint) as dealer:
        for _ in range(20):
            dealer.send(VERSION + chance.randbytes(MAX_MESSAGE_BYTES))
            dealer.send(VERSION + b"\x91" * (MAX_MESSAGE_BYTES - 100))
            dealer.send(VERSION + b"\xdd\x00\x0f\x00\x00" + b"\xc0" * 0x0F0000)
            dealer.send(VERSION + b"\x81\xa4kind\xdb\x00\x0f\x00\x00" + b"x" * 0x0F0000)


def valid_messages(endpoint: str, chance: random.Random) -> None:
    """A flood of what clients say, in no order; "t" is a stream that nobody else reads."""
    with _stranger(endpoint, greets=True) as dealer:
        welcome = decode(dealer.recv_multipart(), DAEMON_MESSAGES)
        assert isinstance(welcome, Welcome)
        daemon = welcome.incarnation
        for number in range(600):
            step, consumer = chance.randrange(2**62), chance.randrange(8)
            flood: list[Message] = [
                Hello(number, os.getpid(), pid_namespace()),
                Open(number, consumer, "t", step, chance.random() < 0.5, "wait", step, 0, 0, 1, daemon),
                Open(number, consumer, "t" * 200, step, False, "p" * 200, 0, step, step, step, daemon),
                Get(number, consumer, step, step + 1, list(range(1000)), True),
                Release(consumer, list(range(1000))),
                Close(number, consumer, []),
            ]
            dealer.send_multipart(encode(chance.choice(flood)))
            if dealer.poll(0):
                dealer.recv_multipart()


def who_never_reads(endpoint: str, chance: random.Random) -> None:
    with _stranger(endpoint, greets=True) as dealer:
        dealer.rcvhwm = 1
        for number in range(1500):
            dealer.send_multipart(encode(Status(number, False)))


def liars(endpoint: str, chance: random.Random) -> None:
    """Clients that name processes of others, and go without a word."""
    for _ in range(30):
        with _stranger(endpoint) as dealer:
            pid = chance.choice([0, 1, os.getppid(), chance.randrange(2**63)])
            dealer.send_multipart(encode(Hello(1, pid, pid_namespace())))
            assert dealer.poll(10_000)


def half_open_connections(endpoint: str, chance: random.Random) -> None:
    greeting = b"\xff" + b"\0" * 8 + b"\x7f\x03\x00NULL" + b"\0" * 48
    callers: list[socket.socket] = []
    for _ in range(300):
        callers.append(socket.socket(socket.AF_UNIX))
        callers[-1].connect(endpoint.removeprefix("ipc://"))
        callers[-1].send(greeting[: chance.randint(0, 64)] or b"\0")
    for caller in callers:
        caller.close()


ATTACKS: list[Callable[[str, random.Random], None]] = [
    random_bytes,
    mutated_messages,
    wrong_versions_and_frames,
    huge_frames,
    valid_messages,
    who_never_reads,
    liars,
    half_open_connections,
]
