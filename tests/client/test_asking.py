"""Requests of one consumer: what is lost on the way is asked for again, and no other step is ever taken for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import pytest

from loader_client.asking import Asking
from loader_client.daemon_connection import OpenedStream, OpenOptions
from loader_client.session import Session
from loader_service.contract.shards import Shard
from loader_service.errors import IntegrityError, ServiceClosedError, ServiceUnavailableError, SharedMemoryError
from loader_service.sharing.placement import Placement
from loader_service.wire.messages import Demand, Get, Message, Opened, Ready

READY = Ready(1, 5, 0, 12, 1, 2, 4, Placement("lsv-nobody-made-this", 9, 4096), 128, 2, b"\x90", 8)


class FakeChannel:
    """Keeps what is sent, and answers what it is told to."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.answers: list[Ready] = []

    def send(self, make: Callable[[int], Message]) -> int:
        self.sent.append(make(len(self.sent) + 1))
        return len(self.sent)

    def post(self, message: Message) -> None:
        self.sent.append(message)

    def take(self, number: int, answer: type[Ready]) -> Ready | None:
        return replace(self.answers.pop(0), request=number) if self.answers else None


@pytest.fixture
def channel() -> FakeChannel:
    return FakeChannel()


@pytest.fixture
def asking(channel: FakeChannel, tmp_path: Any) -> Iterator[Asking]:
    session = Session(f"ipc://{tmp_path}/nobody.sock")
    opened = Opened(1, 12, 8, 2, 100, "f", {})
    fake: Any = channel
    yield Asking(OpenedStream(7, opened, fake, 0, os.geteuid()), session, OpenOptions("s", "split", 0, 0, Shard(), 5.0))
    session.close()


def _gets(channel: FakeChannel) -> list[tuple[int, int]]:
    """(step, steps) of each Get that was sent."""
    return [(message.step, message.steps) for message in channel.sent if isinstance(message, Get)]


def test_an_iteration_asks_once_for_all_steps_and_a_jump_for_one(asking: Asking, channel: FakeChannel) -> None:
    for _ in range(3):
        assert asking.poll(12, following=True, stop=20) is None
    assert asking.poll(50, following=False, stop=20) is None
    assert _gets(channel) == [(12, 8), (50, 1)]


@pytest.mark.parametrize("lost", [11, 13, 6007])
def test_another_step_than_the_one_asked_for_is_never_taken(asking: Asking, channel: FakeChannel, lost: int) -> None:
    channel.answers = [replace(READY, step=lost)]
    assert asking.poll(12, following=True, stop=None) is None
    assert asking.poll(12, following=True, stop=None) is None
    assert [step for step, _ in _gets(channel)] == [12, 12], "it was asked for again"


def test_what_is_not_answered_is_demanded_and_after_long_asked_for_again(
    asking: Asking, channel: FakeChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("loader_client.asking.time.monotonic", lambda: clock[0])
    asking.ask(12, None, demanded=False)
    for clock[0] in (1005.0, 1005.1, 1014.9):
        assert asking.poll(12, following=True, stop=None) is None
    assert (len(_gets(channel)), _demands(channel)) == (1, 1)
    for clock[0] in (1015.0, 1015.1, 1024.9):
        asking.poll(12, following=True, stop=None)
    assert (len(_gets(channel)), _demands(channel)) == (2, 1)


def _demands(channel: FakeChannel) -> int:
    return sum(isinstance(message, Demand) for message in channel.sent)


@pytest.mark.parametrize("error", [SharedMemoryError, IntegrityError])
def test_a_segment_that_is_gone_or_another_is_asked_for_again_once_and_then_an_error(
    asking: Asking, channel: FakeChannel, error: type[Exception]
) -> None:
    ready = READY
    with ExitStack() as stack:
        if error is IntegrityError:  # somebody has taken the name
            memory = SharedMemory(create=True, size=4096)
            stack.callback(memory.unlink)
            stack.callback(memory.close)
            ready = replace(READY, placement=replace(READY.placement, segment=memory.name))
        channel.answers = [ready, ready]
        assert asking.poll(12, following=True, stop=None) is None
        with pytest.raises(error, match=ready.placement.segment):
            asking.poll(12, following=True, stop=None)
    assert [step for step, _ in _gets(channel)] == [12, 12]


def test_a_client_without_room_for_another_connection_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loader_client.session._MAX_SOCKETS", 4)
    session = Session(f"ipc://{tmp_path}/nobody.sock")
    sockets: list[Any] = []
    with pytest.raises(ServiceUnavailableError, match=r"no more connections can be made \(Too many open files\); each"):
        sockets.extend(session.new_socket() for _ in range(9))
    for socket in sockets:
        socket.close(linger=0)
    session.close()
    with pytest.raises(ServiceClosedError, match="this client is closed"):
        session.new_socket()
