"""Consumers in an event loop: the same batches, and the loop goes on."""

from __future__ import annotations

import asyncio

import pytest

import loader_client
from loader_service.errors import BuildError, ConsumerClosedError, DeadlineError, HoldLimitError
from tests.e2e.harness import digests, service
from tests.e2e.streams import slow, small


def test_two_consumers_and_the_loop_take_turns_and_get_the_same_bytes() -> None:
    with (
        service("small") as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", 0, 60) as one,
        client.open("s", 0, 60) as other,
    ):
        turns = 0

        async def read(consumer: loader_client.Consumer) -> list[str]:
            return [batch.digest() async for batch in consumer]

        async def count() -> None:
            nonlocal turns
            while not (one.closed and other.closed):
                turns += 1
                await asyncio.sleep(0)

        async def main() -> list[list[str]]:
            first, second, _ = await asyncio.gather(read(one), read(other), count())
            return [first, second]

        assert asyncio.run(main()) == [digests(small(), 0, 60)] * 2
        assert turns > 60


def test_a_cancelled_task_loses_no_batch() -> None:
    with (
        service("slow", delay_s=0.02) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", 0, 12) as consumer,
    ):

        async def main() -> list[str]:
            seen: list[str] = []
            cancelled = 0
            while consumer.next_step < 12:
                task = asyncio.create_task(consumer.aget(consumer.next_step))
                done, _ = await asyncio.wait([task], timeout=0.01)
                if not done:
                    cancelled += 1
                    task.cancel()
                    await asyncio.wait([task])
                if not task.cancelled():
                    seen.append(task.result().digest())
            assert cancelled
            return seen

        assert asyncio.run(main()) == digests(slow(), 0, 12)


def test_errors_come_as_in_the_synchronous_loop() -> None:
    with service("two_arguments") as daemon, loader_client.connect(daemon.endpoint) as client:
        with client.open("s", 8) as consumer:

            async def read() -> None:
                async for batch in consumer:
                    batch.release()

            with pytest.raises(BuildError, match="step 9"):
                asyncio.run(read())
            with pytest.raises(ConsumerClosedError):
                asyncio.run(consumer.aget(10))
        with client.open("s", hold_timeout_s=0.05) as consumer:

            async def hoard() -> list[loader_client.Batch]:
                return [batch async for batch in consumer]

            with pytest.raises(HoldLimitError, match="hold"):
                asyncio.run(hoard())


def test_a_deadline_passes_and_the_step_can_be_asked_for_again() -> None:
    with (
        service("slow", delay_s=0.1) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s") as consumer,
    ):
        with pytest.raises(DeadlineError):
            asyncio.run(consumer.aget(0, timeout_s=0.02))
        assert asyncio.run(consumer.aget(0, timeout_s=60)).digest() == slow().build(0).digest()
        assert consumer.get(1, timeout_s=60).digest() == slow().build(1).digest()
