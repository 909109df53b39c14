"""Requests of one consumer: what is lost on the way is asked for again, and no other step is ever taken for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
import pytest

from loader_client.batch import LeasedMemory
from loader_client.daemon_connection import OpenedStream, OpenOptions
from loader_client.leases import Lease, LeaseBook
from loader_client.sockets import SocketFactory
from loader_client.subscription import Subscription
from loader_service.contract.shards import Shard
from loader_service.errors import HoldLimitError, IntegrityError, SharedMemoryError
from loader_service.sharing.placement import Placement
from loader_service.wire.messages import Demand, Get, Message, Opened, Ready
from loader_service.wire.segment import HEADER_BYTES, Segment

READY = Ready(1, 5, 0, 12, 1, 2, 4, Placement("lsv-nobody-made-this", 9, 4096), 128, 2, b"\x90", 8, False)


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
def leases() -> dict[int, Lease]:
    return {}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the subscription sees, to be set."""
    now = [1000.0]
    monkeypatch.setattr("loader_client.subscription.monotonic", lambda: now[0])
    return now


@pytest.fixture
def subscription(channel: FakeChannel, leases: dict[int, Lease], endpoint: str) -> Iterator[Subscription]:
    book = LeaseBook(SocketFactory(endpoint), lambda: None)
    opened = Opened(1, 12, 8, 2, 100, "f", {})
    fake: Any = channel
    options = OpenOptions("s", "split", 0, 0, Shard(), 5.0)
    yield Subscription(OpenedStream(7, leases, opened, fake, 0, os.geteuid()), book, options)
    book.close()


@pytest.fixture
def segments() -> Iterator[list[SharedMemory]]:
    """Segments that hold the batches of steps 12, 13, … of no tensors, of generation 9."""
    made = [SharedMemory(create=True, size=4096) for _ in range(4)]
    for number, memory in enumerate(made):
        Segment(memory.name, np.ndarray(memory.size, np.uint8, memory.buf)).commit(12 + number, 9, 128)
    yield made
    for memory in made:
        memory.close()
        memory.unlink()


def ready(segments: list[SharedMemory], number: int, **changes: Any) -> Ready:
    """The answer for step 12 + number."""
    placement = Placement(segments[number].name, 9, 4096)
    return replace(READY, step=12 + number, lease=5 + number, slot=number, placement=placement, **changes)


def mapped(subscription: Subscription) -> set[int]:
    return set(subscription._segments)


def gets(channel: FakeChannel) -> list[tuple[int, int]]:
    """(step, steps) of each Get that was sent."""
    return [(message.step, message.steps) for message in channel.sent if isinstance(message, Get)]


def demands(channel: FakeChannel) -> int:
    return sum(isinstance(message, Demand) for message in channel.sent)


def test_an_iteration_asks_once_for_all_steps_and_a_jump_for_one(
    subscription: Subscription, channel: FakeChannel
) -> None:
    for _ in range(3):
        assert subscription.poll(12, following=True, stop=20) is None
    assert subscription.poll(50, following=False, stop=20) is None
    assert gets(channel) == [(12, 8), (50, 1)]


@pytest.mark.parametrize("lost", [11, 13, 6007])
def test_another_step_than_the_one_asked_for_is_never_taken(
    subscription: Subscription, channel: FakeChannel, lost: int
) -> None:
    channel.answers = [replace(READY, step=lost)]
    assert subscription.poll(12, following=True, stop=None) is None
    assert subscription.poll(12, following=True, stop=None) is None
    assert [step for step, _ in gets(channel)] == [12, 12], "it was asked for again"


def test_what_is_not_answered_is_demanded_and_after_long_asked_for_again(
    subscription: Subscription, channel: FakeChannel, clock: list[float]
) -> None:
    subscription.ask(12, None, demanded=False)
    for clock[0] in (1005.0, 1005.1, 1014.9):
        assert subscription.poll(12, following=True, stop=None) is None
    assert (len(gets(channel)), demands(channel)) == (1, 1)
    for clock[0] in (1015.0, 1015.1, 1024.9):
        subscription.poll(12, following=True, stop=None)
    assert (len(gets(channel)), demands(channel)) == (2, 1)


@pytest.mark.parametrize("blocked", [False, True])
def test_whoever_is_held_up_by_others_says_at_once_that_it_waits(
    subscription: Subscription, channel: FakeChannel, clock: list[float], blocked: bool
) -> None:
    subscription.ask(12, None, demanded=False)
    subscription._blocked = blocked
    assert subscription.poll(12, following=True, stop=None) is None
    assert demands(channel) == blocked
    assert subscription.poll(12, following=True, stop=None) is None
    assert demands(channel) == blocked
    clock[0] += 0.02
    assert subscription.poll(12, following=True, stop=None) is None
    assert demands(channel) == 1


@pytest.mark.parametrize("error", [SharedMemoryError, IntegrityError])
def test_a_segment_that_is_gone_or_another_is_asked_for_again_once_and_then_an_error(
    subscription: Subscription, channel: FakeChannel, error: type[Exception]
) -> None:
    answer = READY
    with ExitStack() as stack:
        if error is IntegrityError:  # somebody has taken the name
            memory = SharedMemory(create=True, size=4096)
            stack.callback(memory.unlink)
            stack.callback(memory.close)
            answer = replace(READY, placement=replace(READY.placement, segment=memory.name))
        channel.answers = [answer, answer]
        assert subscription.poll(12, following=True, stop=None) is None
        with pytest.raises(error, match=answer.placement.segment):
            subscription.poll(12, following=True, stop=None)
    assert [step for step, _ in gets(channel)] == [12, 12]


def test_a_batch_is_leased_as_long_as_it_is_referred_to(
    subscription: Subscription, channel: FakeChannel, segments: list[SharedMemory]
) -> None:
    channel.answers = [ready(segments, 0), ready(segments, 1)]
    first = subscription.poll(12, following=True, stop=None)
    assert first is not None
    assert subscription.poll(13, following=True, stop=None) is not None
    assert gets(channel) == [(12, 2**62)], "the second was asked for with the first"


def test_at_the_hold_limit_nothing_is_asked_for_and_after_a_while_it_is_an_error(
    subscription: Subscription, channel: FakeChannel, leases: dict[int, Lease], clock: list[float]
) -> None:
    memories = [hold(leases, lease_id, step=12 + lease_id) for lease_id in (0, 1)]
    assert subscription.poll(14, following=True, stop=None) is None
    assert subscription.at_limit
    assert channel.sent == []
    clock[0] += 5.0
    with pytest.raises(HoldLimitError, match=r"steps \[12, 13\]"):
        subscription.poll(14, following=True, stop=None)
    subscription.end_wait()
    memories.clear()
    assert subscription.poll(14, following=True, stop=None) is None
    assert not subscription.at_limit
    assert gets(channel) == [(14, 2**62)]


def hold(leases: dict[int, Lease], lease_id: int, step: int, lane_id: int = 0) -> LeasedMemory:
    """Book a lease, which lasts as long as what is returned."""
    memory = LeasedMemory(Segment("x", np.zeros(HEADER_BYTES, np.uint8)), 0)
    lease = Lease(memory)
    lease.consumer_id, lease.lease_id, lease.lane_id, lease.step = 7, lease_id, lane_id, step
    leases[lease_id] = lease
    return memory


@pytest.mark.parametrize(("behind", "limited"), [(7, False), (8, True), (9, True)])
def test_what_is_held_a_whole_ring_behind_in_the_same_lane_is_in_the_way(
    subscription: Subscription,
    channel: FakeChannel,
    segments: list[SharedMemory],
    leases: dict[int, Lease],
    behind: int,
    limited: bool,
) -> None:
    channel.answers = [ready(segments, 0)]
    subscription.poll(12, following=True, stop=None)
    memory = hold(leases, 99, step=13 - behind)
    assert subscription.poll(13, following=True, stop=None) is None
    assert subscription.at_limit is limited
    del memory


def test_a_jump_drops_the_mappings_of_the_ring_that_is_left(
    subscription: Subscription, channel: FakeChannel, segments: list[SharedMemory]
) -> None:
    channel.answers = [ready(segments, number) for number in range(3)]
    for number in range(3):
        assert subscription.poll(12 + number, following=True, stop=None) is not None
    assert mapped(subscription) == {0, 1, 2}
    subscription.jump()
    assert mapped(subscription) == set()


def test_another_lane_drops_the_mappings_of_the_one_before(
    subscription: Subscription, channel: FakeChannel, segments: list[SharedMemory]
) -> None:
    channel.answers = [ready(segments, 0), ready(segments, 1), ready(segments, 2, lane=1)]
    for number in range(3):
        assert subscription.poll(12 + number, following=True, stop=None) is not None
    assert mapped(subscription) == {2}


def test_a_smaller_ring_drops_the_mappings_of_slots_that_there_are_no_more(
    subscription: Subscription, channel: FakeChannel, segments: list[SharedMemory]
) -> None:
    channel.answers = [*(ready(segments, number) for number in range(3)), ready(segments, 3, prefetch=2)]
    for number in range(4):
        assert subscription.poll(12 + number, following=True, stop=None) is not None
    assert subscription.prefetch == 2
    assert mapped(subscription) == {0, 1}
