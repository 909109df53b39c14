"""Forks, closes, refusals and threads at the moments at which they hurt."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
import time

import pytest

import loader_client
from loader_client import Client, Consumer
from loader_service import LocalService
from loader_service.errors import (
    ConsumerClosedError,
    EvictedError,
    ForkedClientError,
    HoldLimitError,
    LoaderServiceError,
    MemoryLimitError,
)
from tests.e2e.harness import digests, eventually, service
from tests.e2e.streams import growing, slow, small


def _one_ring(evict_after_s: float = 0.0) -> LocalService:
    """A daemon with memory for one ring of four pages."""
    server = {"workers": 1, "evict_after_s": evict_after_s, "memory_limit": 4 * 8192}
    stream = {"factory": "tests.e2e.streams:slow", "prefetch": 4, "slot_bytes": 8192 - 64}
    return LocalService({"server": server, "streams": {"s": stream}})


def _in_child(act: object) -> int:
    """The exit code of a forked child that must end by itself: 0 if `act` raised ForkedClientError."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            assert callable(act)
            act()
        except ForkedClientError:
            os._exit(0)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_child_forked_while_a_thread_waits_gets_the_error_at_once() -> None:
    with (
        service("slow", delay_s=1.0, slot_bytes=4096) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s") as consumer,
    ):
        thread = threading.Thread(target=lambda: consumer.get(0, timeout_s=60).release())
        thread.start()
        eventually(lambda: client.status()["consumers"][0]["waits_for"] == 0, "it waits")
        for act in (lambda: consumer.get(1), lambda: next(consumer), lambda: consumer.seek(4), client.status):
            assert _in_child(act) == 0
        thread.join(60)


def test_a_refused_reopening_leaves_all_as_it_was() -> None:
    with (
        _one_ring(evict_after_s=0.2) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", pace="wait") as late,
        client.open("s", pace="wait") as other,
    ):
        kept = late.get(0)
        for step in range(60):
            other.get(step, timeout_s=60).release()
        with pytest.raises(EvictedError):
            late.get(1, timeout_s=60)
        for _ in range(3):
            with pytest.raises(MemoryLimitError):
                late.reopen()
            with pytest.raises(EvictedError):
                late.get(1, timeout_s=60)
        assert len(client.status()["consumers"]) == 2
        assert other.get(60, timeout_s=60).digest() == slow().build(60).digest()
        assert kept.digest() == slow().build(0).digest()
        late.seek(62)
        late.reopen()
        assert late.get(62, timeout_s=60).digest() == slow().build(62).digest()


def test_who_holds_all_the_memory_that_there_is_hears_so_and_does_not_wait_for_itself() -> None:
    with _one_ring() as daemon, loader_client.connect(daemon.endpoint) as client, client.open("s") as consumer:
        kept = consumer.get(0, timeout_s=60)
        with pytest.raises(MemoryLimitError):
            consumer.get(1000, timeout_s=60)
        assert kept.digest() == slow().build(0).digest()
        kept.release()
        assert consumer.get(1000, timeout_s=60).digest() == slow().build(1000).digest()


def test_batches_may_grow_into_all_the_memory_that_there_is() -> None:
    """The limit is what three of the largest batch need, each in whole pages after a header of 64 bytes."""
    largest = -(-(growing().layout(11).nbytes + 64) // 4096) * 4096
    stream = {"factory": "tests.e2e.streams:growing", "prefetch": 3}
    with (
        LocalService({"server": {"memory_limit": 3 * largest, "workers": 1}, "streams": {"s": stream}}) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", 0, 12) as consumer,
    ):
        for step, expected in enumerate(digests(growing(), 0, 12)):
            with consumer.get(step, timeout_s=60) as batch:
                assert batch.digest() == expected


def test_a_view_from_before_a_jump_is_in_nobodys_way() -> None:
    with (
        service("slow") as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", hold_timeout_s=0.2) as consumer,
    ):
        kept = consumer.get(7000)
        for step in range(9000, 9020):
            with consumer.get(step, timeout_s=60) as batch:
                assert batch.digest() == slow().build(step).digest()
        assert kept.digest() == slow().build(7000).digest()


def test_threads_that_reopen_ask_and_close_never_meet_on_one_socket() -> None:
    with service("slow") as daemon, loader_client.connect(daemon.endpoint) as client:
        failed: list[BaseException] = []
        end = time.monotonic() + 2.0

        def work(number: int) -> None:
            try:
                while time.monotonic() < end:
                    with client.open("s", number) as consumer:
                        next(consumer).release()
                        consumer.reopen()
                        client.status()
                        assert consumer.get(number + 1, timeout_s=60).digest() == slow().build(number + 1).digest()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert failed == []
        eventually(lambda: client.status()["consumers"] == [], "all are closed")


def test_closing_the_client_ends_what_other_threads_wait_for() -> None:
    with service("slow", delay_s=0.2, slot_bytes=4096) as daemon:
        client = loader_client.connect(daemon.endpoint)
        consumer = client.open("s")
        raised: list[BaseException] = []

        def ask(client: Client, consumer: Consumer) -> None:
            try:
                while True:
                    client.status()
                    next(consumer).release()
            except BaseException as error:
                raised.append(error)

        threads = [threading.Thread(target=ask, args=(client, consumer)) for _ in range(3)]
        for thread in threads:
            thread.start()
        eventually(lambda: consumer.next_step > 0, "they read")
        client.close()
        for thread in threads:
            thread.join(60)
        assert len(raised) == 3
        assert all(isinstance(error, LoaderServiceError | StopIteration) for error in raised), raised


def test_tasks_that_share_a_consumer_take_turns() -> None:
    with (
        service("small") as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", 0, 40) as consumer,
    ):

        async def read(seen: list[tuple[int, str]]) -> None:
            async for batch in consumer:
                seen.append((batch.step, batch.digest()))
                batch.release()

        async def main() -> list[list[tuple[int, str]]]:
            seen: list[list[tuple[int, str]]] = [[], [], []]
            await asyncio.gather(*map(read, seen))
            return seen

        parts = asyncio.run(main())
        assert all(part == sorted(part) for part in parts)
        assert sorted(itertools.chain(*parts)) == list(enumerate(digests(small(), 0, 40)))


def test_the_loop_goes_on_at_the_hold_limit_and_while_a_task_is_closed() -> None:
    with service("slow") as daemon, loader_client.connect(daemon.endpoint) as client:

        async def at_limit() -> None:
            with client.open("s", hold_timeout_s=30) as consumer:
                kept = [await consumer.aget(0), await consumer.aget(1)]
                asyncio.get_running_loop().call_later(0.1, kept.clear)
                assert (await consumer.aget(2)).digest() == slow().build(2).digest()

        async def closed() -> None:
            with client.open("s", pace="wait"), client.open("s") as consumer:
                for step in range(4):
                    (await consumer.aget(step)).release()
                task = asyncio.create_task(consumer.aget(4))
                await asyncio.sleep(0.05)
                consumer.close()
                with client.open("s", 500) as other:
                    assert (await other.aget(500)).digest() == slow().build(500).digest()
                with pytest.raises(ConsumerClosedError):
                    await task

        asyncio.run(at_limit())
        asyncio.run(closed())


def test_a_cancelled_wait_at_the_limit_does_not_shorten_the_next() -> None:
    with (
        service("slow") as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", hold_timeout_s=8.0) as consumer,
    ):

        async def main() -> None:
            kept = [await consumer.aget(0), await consumer.aget(1)]
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.aget(2), 5.0)
            asyncio.get_running_loop().call_later(4.0, kept.clear)
            assert (await consumer.aget(2)).step == 2
            kept = [await consumer.aget(3), await consumer.aget(4)]
            with pytest.raises(HoldLimitError):
                await consumer.aget(5)

        asyncio.run(main())
