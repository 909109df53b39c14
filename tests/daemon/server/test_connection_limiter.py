"""Descriptors: as many as there may be, a clear error where they are too few, and half of them left to the daemon."""

from __future__ import annotations

import logging
import resource
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from loader_service.daemon.server import connection_limiter as descriptors
from loader_service.daemon.server.connection_limiter import ConnectionLimiter, raise_limit
from loader_service.daemon.server.event_loop import Loop
from loader_service.errors import EndpointError


class Limits:
    """The limits of a process that is not this one."""

    def __init__(self, soft: int, hard: int) -> None:
        self.now = soft, hard

    def set(self, what: int, limits: tuple[int, int]) -> None:
        assert what == resource.RLIMIT_NOFILE
        self.now = limits


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], Limits]:
    def limit(soft: int, hard: int) -> Limits:
        made = Limits(soft, hard)
        monkeypatch.setattr(resource, "getrlimit", lambda what: made.now)
        monkeypatch.setattr(resource, "setrlimit", made.set)
        return made

    return limit


def test_a_process_gets_all_the_descriptors_that_it_may_have(limited: Callable[[int, int], Limits]) -> None:
    limits = limited(1024, 524288)
    raise_limit(4)
    assert limits.now == (524288, 524288)


@pytest.mark.parametrize(("hard", "workers", "is_enough"), [(131, 1, False), (132, 1, True), (1000, 219, False)])
def test_too_few_are_told_with_how_many_it_needs(
    limited: Callable[[int, int], Limits], hard: int, workers: int, is_enough: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    limited(64, hard)
    if is_enough:
        raise_limit(workers)
        assert "a flood of connections" in caplog.text
    else:
        with pytest.raises(EndpointError, match=rf"may have {hard} open files, and {workers} workers .* at least"):
            raise_limit(workers)


def test_no_limit_is_enough(limited: Callable[[int, int], Limits], caplog: pytest.LogCaptureFixture) -> None:
    limited(resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    raise_limit(1024)
    assert caplog.text == ""


class Door:
    """A listener with its gate, and callers that are plain sockets."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "door.sock"
        self.loop = Loop(time.monotonic)
        self.context = zmq.Context()
        self.listener = self.context.socket(zmq.ROUTER)
        self.gate = ConnectionLimiter(self.loop, self.context, self.listener)
        self.gate.open(self.path)
        self.listener.bind(f"ipc://{self.path}")

    def call(self) -> socket.socket:
        caller = socket.socket(socket.AF_UNIX)
        caller.settimeout(0.01)
        caller.connect(str(self.path))
        return caller

    def is_hung_up_on(self, caller: socket.socket) -> bool:
        """Whether, within a while, its connection ends; ZeroMQ greets it first."""
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            self.loop.after(0.01, lambda: None)
            self.loop.turn()
            try:
                if caller.recv(1024) == b"":
                    return True
            except TimeoutError:
                continue
            except ConnectionError:
                return True
        return False

    def end(self) -> None:
        for _ in range(2):
            self.gate.close()
        self.listener.close(linger=0)
        self.context.term()


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    made = Door(tmp_path)
    yield made
    made.end()


def test_who_comes_while_half_are_used_is_hung_up_on_and_no_other(
    door: Door, limited: Callable[[int, int], Limits], caplog: pytest.LogCaptureFixture
) -> None:
    with door.call() as early:
        assert not door.is_hung_up_on(early)
        limits = limited(20, 20)  # less than this process has open
        with door.call() as late:
            assert door.is_hung_up_on(late)
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert "a connection was refused: descriptor" in caplog.text
        limits.now = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        with door.call() as again:
            assert not door.is_hung_up_on(again)
        assert not door.is_hung_up_on(early)


def test_a_number_that_is_another_connections_by_now_is_left_alone(door: Door) -> None:
    one, other = socket.socketpair()
    with one, other:
        door.gate._hang_up(one.fileno())
        door.gate._hang_up(10**6)
        one.send(b"x")
        assert other.recv(1) == b"x"


def test_a_gate_that_was_never_opened_can_be_closed(tmp_path: Path) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as listener:
        gate = ConnectionLimiter(Loop(time.monotonic), context, listener)
        gate.close()
        gate.close()
    assert descriptors._is_over(2**40) is (resource.getrlimit(resource.RLIMIT_NOFILE)[0] != resource.RLIM_INFINITY)


@pytest.mark.timeout(60)
def test_closing_ends_also_while_connections_come(door: Door) -> None:
    """ZeroMQ's thread waits when nobody looks at its events; the end must not wait for it in turn."""
    callers = [door.call() for _ in range(50)]
    door.gate.close()
    for caller in callers:
        caller.close()
