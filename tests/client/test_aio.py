"""Waiting in an event loop: it goes on meanwhile, in each loop anew, with descriptors or without."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from loader_client.aio import pause, readable, run_in_thread, serialize_tasks
from loader_client.channel import Channel
from loader_client.sockets import SocketFactory
from loader_service.wire.messages import Report, Status
from tests.client.fake_daemon import FakeDaemon


def test_tasks_come_one_after_the_other_and_a_second_loop_has_a_lock_of_its_own() -> None:
    locks: WeakKeyDictionary[Any, asyncio.Lock] = WeakKeyDictionary()
    within: list[int] = []

    async def task(number: int) -> int:
        async with serialize_tasks(locks):
            within.append(number)
            await asyncio.sleep(0)
            assert within == [number]
            within.clear()
            return number

    async def main() -> list[int]:
        return list(await asyncio.gather(*map(task, range(5))))

    for _ in range(2):
        assert asyncio.run(main()) == list(range(5))


def test_a_pause_lets_others_run() -> None:
    async def main() -> list[str]:
        said: list[str] = []
        asyncio.get_running_loop().call_soon(said.append, "other")
        await pause(0)
        return said

    assert asyncio.run(main()) == ["other"]


@pytest.mark.parametrize("has_descriptors", [True, False])
def test_it_waits_until_something_has_come(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, has_descriptors: bool
) -> None:
    sockets = SocketFactory(daemon.endpoint)
    channel = Channel(sockets)
    if not has_descriptors:
        monkeypatch.setattr(os, "dup", no_descriptors)

    async def main() -> int:
        number = channel.send(lambda request: Status(request, False))
        while (report := channel.take(number, Report)) is None:
            await readable(channel, threading.Lock(), 20.0)
        return report.request

    assert asyncio.run(main()) == 1
    channel.close()
    sockets.close()


def no_descriptors(descriptor: int) -> int:
    raise OSError(errno.EMFILE, "Too many open files")


def test_it_waits_no_longer_than_it_is_told_and_leaves_no_descriptor(daemon: FakeDaemon) -> None:
    sockets = SocketFactory(daemon.endpoint)
    channel = Channel(sockets)

    channel.request(lambda request: Status(request, False), Report, 20.0, "connecting")

    async def main() -> tuple[int, int]:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            await readable(channel, threading.Lock(), 0.001)
        return before, len(os.listdir("/proc/self/fd"))

    before, after = asyncio.run(main())
    assert after == before
    channel.close()
    sockets.close()


def test_a_channel_that_another_thread_reads_is_left_alone() -> None:
    """ZeroMQ's sockets are for one thread at a time."""
    untouched: Any = object()
    lock = threading.Lock()
    with lock:
        asyncio.run(readable(untouched, lock, 0.001))


def test_a_thread_is_told_when_nobody_waits_for_it_any_more() -> None:
    told: list[bool] = []

    def act(given_up: Any) -> None:
        told.append(given_up())
        while not given_up():
            pass
        told.append(given_up())

    async def main() -> None:
        task = asyncio.create_task(run_in_thread(act))
        while not told:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())  # waits for the thread
    assert told == [False, True]
