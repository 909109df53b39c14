"""A consumer gives each step that it is asked for, once it is here, and survives whatever interrupts the wait."""

from __future__ import annotations

import asyncio
import copy
import gc
import itertools
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from loader_client import (
    ArgumentError,
    BuildError,
    Client,
    Consumer,
    ConsumerClosedError,
    DeadlineError,
    EvictedError,
    HoldLimitError,
    ServiceClosedError,
    StreamChangedError,
)
from loader_service.wire.messages import Close, Error, Get, Open
from tests.client.fake_daemon import FakeDaemon, eventually


def value(consumer: Consumer, step: int, timeout_s: float | None = 20.0) -> int:
    """Read a step, and return the value of its arrays."""
    with consumer.get(step, timeout_s) as batch:
        assert batch.step == step
        return int(batch["x"][0])


def drain(consumer: Consumer) -> None:
    for batch in consumer:
        batch.release()


# --- batches ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (0, 1), (0, 2), (3, 20), (7, 7)])
def test_iteration_gives_each_step_once_and_then_closes_the_consumer(
    client: Client, daemon: FakeDaemon, start: int, stop: int
) -> None:
    consumer = client.open("s", start, stop)
    seen = [(batch.step, batch.epoch, batch.step_in_epoch, batch["x"].tolist()) for batch in consumer]
    assert seen == [(step, step // 10, step % 10, [step, step]) for step in range(start, stop)]
    assert consumer.closed
    assert len(daemon.got(Get)) <= 1, "one Get asks for all steps"


def test_any_step_can_be_asked_for_and_the_next_is_the_one_after_it(client: Client) -> None:
    with client.open("s") as consumer:
        assert [value(consumer, step) for step in (5, 6, 2, 900, 901)] == [5, 6, 2, 900, 901]
        assert consumer.next_step == 902
        assert next(consumer)["x"][0] == 902


def test_a_consumer_opens_where_the_most_are_when_it_asks_for_live(client: Client, daemon: FakeDaemon) -> None:
    with client.open("s", "live") as consumer:
        assert consumer.next_step == 100
    assert [message.live for message in daemon.got(Open)] == [True]


def test_a_shard_gets_its_rows_and_the_daemon_its_rank(client: Client, daemon: FakeDaemon) -> None:
    with client.open("s", shard=(1, 2)) as consumer, consumer.get(4) as batch:
        assert (batch.rows, batch["x"].shape) == (1, (1,))
    assert [(message.rank, message.world) for message in daemon.got(Open)] == [(1, 2)]


def test_the_arrays_are_views_that_cannot_be_written(client: Client) -> None:
    with client.open("s") as consumer, next(consumer) as batch:
        assert not batch["x"].flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            batch["x"][0] = 1


def test_a_step_that_is_not_built_in_time_can_be_asked_for_again(client: Client, daemon: FakeDaemon) -> None:
    daemon.withheld = {1}
    with client.open("s") as consumer:
        assert value(consumer, 0) == 0
        with pytest.raises(DeadlineError, match=r"step 1 of 's': no answer within 0\.05 s") as raised:
            consumer.get(1, 0.05)
        assert raised.value.code == "E3006"
        daemon.withheld = set()
        assert value(consumer, 1) == 1


def test_a_failed_build_ends_the_consumer_and_reopening_it_goes_on(client: Client, daemon: FakeDaemon) -> None:
    error = BuildError(step=0, slot=1, index=37, cause_type="ValueError", cause_message="bad record")
    daemon.script[Get] = lambda message: Error(message.request, error.to_record())
    with client.open("s") as consumer:
        with pytest.raises(BuildError) as raised:
            next(consumer)
        assert (raised.value.step, raised.value.slot, raised.value.index) == (0, 1, 37)
        with pytest.raises(ConsumerClosedError, match="step 0, whose build failed"):
            next(consumer)
        del daemon.script[Get]
        consumer.reopen()
        assert value(consumer, 1) == 1


def test_an_evicted_consumer_hears_so_until_it_is_reopened(client: Client, daemon: FakeDaemon) -> None:
    daemon.script[Get] = lambda message: Error(message.request, EvictedError("it was put out").to_record())
    with client.open("s") as consumer:
        for _ in range(2):
            with pytest.raises(EvictedError):
                next(consumer)
        del daemon.script[Get]
        consumer.reopen()
        assert value(consumer, 0) == 0


@pytest.mark.parametrize("step", [-1, 2**63, 1.5, "1", None, True, [1]])
def test_what_is_no_step_is_refused(client: Client, step: Any) -> None:
    with client.open("s") as consumer:
        for ask in (consumer.get, consumer.seek, lambda step: asyncio.run(consumer.aget(step))):
            with pytest.raises(ArgumentError, match="step"):
                ask(step)


@pytest.mark.parametrize("timeout_s", [-1, "1", float("nan"), True, [1]])
def test_what_is_no_time_is_refused(client: Client, timeout_s: Any) -> None:
    with client.open("s") as consumer, pytest.raises(ArgumentError, match="timeout_s is"):
        consumer.get(0, timeout_s)


@pytest.mark.parametrize("timeout_s", [np.float32(20), np.int64(20), 20, float("inf")])
def test_a_time_may_be_any_number(client: Client, timeout_s: float) -> None:
    with client.open("s") as consumer:
        step: Any = np.int32(3)
        assert value(consumer, step, timeout_s) == 3


# --- places ----------------------------------------------------------------------------------------------


def test_a_seek_asks_at_once_and_an_iteration_goes_on_there(client: Client, daemon: FakeDaemon) -> None:
    with client.open("s", 0, 60) as consumer:
        next(consumer).release()
        consumer.seek(50)
        assert [batch.step for batch in consumer] == list(range(50, 60))
    assert [(message.step, message.steps) for message in daemon.got(Get)] == [(0, 60), (50, 10)]


def test_a_checkpoint_resumes_at_its_step_and_another_stream_is_refused(client: Client) -> None:
    with client.open("s") as consumer:
        value(consumer, 6)
        state = pickle.loads(pickle.dumps(consumer.state_dict()))
    assert state == {"step": 7, "fingerprint": "f" * 64, "description": {"seed": 3, "fingerprint": "f" * 64}}
    with client.open("s") as consumer:
        consumer.load_state_dict(state)
        assert next(consumer)["x"][0] == 7
        other = state | {"fingerprint": "0" * 64, "description": {"seed": 4}}
        with pytest.raises(StreamChangedError, match="would be others"):
            consumer.load_state_dict(other)
        for description in (None, 5, [1], {"a": object()}, object()):
            with pytest.raises(StreamChangedError):
                consumer.load_state_dict(other | {"description": description})
        consumer.load_state_dict(other, strict=False)
        junk: list[Any] = [{}, 7, None, "state", {"fingerprint": "f" * 64}]
        for state in junk:
            with pytest.raises(ArgumentError, match="state_dict"):
                consumer.load_state_dict(state)


# --- holding ---------------------------------------------------------------------------------------------


def test_at_the_hold_limit_the_error_names_it_and_what_to_do(client: Client) -> None:
    with client.open("s", hold_timeout_s=0.05) as consumer:
        kept = [next(consumer), next(consumer)]
        with pytest.raises(HoldLimitError) as raised:
            next(consumer)
        assert raised.value.code == "E2102"
        for part in ("steps [0, 1]", "may hold 2 batches (hold)", "batch.copy()", "raise hold and prefetch"):
            assert part in str(raised.value)
        del kept, raised
        assert value(consumer, 2) == 2


def test_batches_in_dead_reference_cycles_do_not_cost_the_whole_time_limit_each(client: Client) -> None:
    """Garbage alone meets the limit, again and again: with the whole limit each time this would outlast every test."""

    class Node:
        batch: Any
        me: Any

    gc.collect()
    gc.disable()  # or it would be collected by chance
    try:
        with client.open("s", hold_timeout_s=60) as consumer:
            for _ in range(20):
                node = Node()
                node.batch, node.me = next(consumer), node
                del node
    finally:
        gc.enable()


def test_batches_in_dead_reference_cycles_are_collected_before_the_error(client: Client) -> None:
    class Node:
        batch: Any
        me: Any

    gc.collect()
    gc.disable()  # or it would be collected by chance
    try:
        with client.open("s", hold_timeout_s=0.05) as consumer:
            for _ in range(6):
                node = Node()
                node.batch, node.me = next(consumer), node
                del node
            assert consumer.next_step == 6
    finally:
        gc.enable()


# --- threads, tasks and the end --------------------------------------------------------------------------


def test_closing_ends_the_wait_of_another_thread(client: Client, daemon: FakeDaemon) -> None:
    daemon.withheld = {0}
    consumer, raised = client.open("s"), []

    def read() -> None:
        try:
            next(consumer)
        except ConsumerClosedError as error:
            raised.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    eventually(lambda: bool(daemon.got(Get)), "it waits")
    consumer.close()
    thread.join(20)
    assert len(raised) == 1
    assert consumer.closed


def test_tasks_of_one_consumer_get_different_steps_in_one_loop_and_in_the_next(client: Client) -> None:
    """A lock of asyncio belongs to the loop in which a task first had to wait for it."""
    with client.open("s", 0, 24) as consumer:

        async def read(steps: int) -> list[int]:
            return [(await anext(consumer)).step for _ in range(steps)]

        async def main() -> list[int]:
            return sorted(itertools.chain(*await asyncio.gather(*(read(4) for _ in range(3)))))

        assert asyncio.run(main()) == list(range(12))
        assert asyncio.run(main()) == list(range(12, 24))


@pytest.mark.parametrize("steps", [0, 1, 2, 63, 64, 65])
def test_loops_of_several_threads_get_each_step_once_and_all_end(client: Client, steps: int) -> None:
    """The next step is chosen where it is taken: another thread may have taken one while this one waited."""
    got: list[int] = []
    failed: list[BaseException] = []

    async def read(consumer: Consumer) -> None:
        async for batch in consumer:
            got.append(batch.step)
            batch.release()
            await asyncio.sleep(0)

    def run(consumer: Consumer) -> None:
        try:
            asyncio.run(read(consumer))
        except BaseException as error:
            failed.append(error)

    with client.open("s", 0, steps) as consumer:
        threads = [threading.Thread(target=run, args=(consumer,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert not failed
    assert sorted(got) == list(range(steps))
    assert consumer.closed


def test_the_loop_goes_on_while_a_task_waits(client: Client, daemon: FakeDaemon) -> None:
    daemon.withheld = {0}

    async def main() -> int:
        with client.open("s") as consumer:
            waiting = asyncio.create_task(consumer.aget(0))
            for _ in range(10):
                await asyncio.sleep(0.001)
            assert not waiting.done()
            daemon.withheld = set()
            client.status()  # the fake daemon sends when something comes
            return (await waiting).step

    assert asyncio.run(main()) == 0


def test_a_task_that_is_cancelled_loses_no_batch(client: Client, daemon: FakeDaemon) -> None:
    daemon.withheld = {0}

    async def main() -> list[int]:
        with client.open("s", 0, 5) as consumer:
            task = asyncio.create_task(consumer.aget(0))
            await asyncio.sleep(0.02)
            task.cancel()
            daemon.withheld = set()
            client.status()
            return [batch.step async for batch in consumer]

    assert asyncio.run(main()) == list(range(5))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_consumer_refuses_to_be_copied_and_says_what_to_do(client: Client, copied: Callable[[Any], Any]) -> None:
    with client.open("s") as consumer:
        with pytest.raises(ArgumentError, match=r"cannot be pickled or copied.*state_dict\(\)"):
            copied(consumer)
        assert value(consumer, 0) == 0


def test_its_text_tells_its_state(client: Client) -> None:
    consumer = client.open("s")
    batch = next(consumer)
    assert repr(consumer) == "Consumer('s', next step 1, holds [0])"
    del batch
    consumer.close()
    assert repr(consumer) == "Consumer('s', it was closed, holds [])"


def test_a_closed_consumer_is_told_and_says_so(client: Client, daemon: FakeDaemon) -> None:
    consumer = client.open("s")
    for _ in range(2):
        consumer.close()
    assert daemon.got(Close)
    for ask in (lambda: next(consumer), lambda: consumer.get(3), lambda: consumer.seek(2)):
        with pytest.raises(ConsumerClosedError, match="it was closed"):
            ask()


# --- another daemon --------------------------------------------------------------------------------------


def test_it_goes_on_at_its_step_when_a_daemon_comes_back(client: Client, daemon: FakeDaemon) -> None:
    with client.open("s", 0, 30) as consumer:
        seen = [next(consumer).step for _ in range(5)]
        daemon.stop()
        threading.Timer(0.2, daemon.start).start()
        seen += [batch.step for batch in consumer]
        assert seen == list(range(30))
    assert [message.incarnation for message in daemon.got(Open)] == [1, 2]


def test_an_async_consumer_goes_on_too(client: Client, daemon: FakeDaemon) -> None:
    async def main() -> list[int]:
        with client.open("s", 0, 12) as consumer:
            seen = [(await anext(consumer)).step]
            daemon.stop()
            threading.Timer(0.2, daemon.start).start()
            return seen + [batch.step async for batch in consumer]

    assert asyncio.run(main()) == list(range(12))


def test_other_bytes_under_the_same_name_are_refused(client: Client, daemon: FakeDaemon) -> None:
    with client.open("s") as consumer:
        next(consumer).release()
        daemon.stop()
        daemon.fingerprint = "0" * 64
        daemon.start()
        with pytest.raises(StreamChangedError, match="another stream as 's'"):
            drain(consumer)
        assert consumer.closed


def test_nobody_comes_back_in_time_and_later_the_consumer_goes_on(daemon: FakeDaemon) -> None:
    from loader_client import connect

    with connect(daemon.endpoint, timeout_s=20, reconnect_s=0.1) as client, client.open("s") as consumer:
        next(consumer).release()
        daemon.stop()
        with pytest.raises(ServiceClosedError, match="none came back"):
            drain(consumer)
        step = consumer.next_step
        daemon.start()
        assert value(consumer, step) == step


def test_closing_ends_the_wait_for_a_daemon(client: Client, daemon: FakeDaemon) -> None:
    consumer, raised = client.open("s"), []

    def read() -> None:
        try:
            drain(consumer)
        except ConsumerClosedError as error:
            raised.append(error)

    thread = threading.Thread(target=read)
    daemon.stop()
    thread.start()
    consumer.close()
    thread.join(20)
    assert len(raised) == 1


def test_a_copied_batch_holds_no_lease(client: Client) -> None:
    with client.open("s", 0, 12, hold_timeout_s=0.05) as consumer:
        copies = [pickle.loads(pickle.dumps(batch)) for batch in consumer]
    assert [(batch.step, batch["x"].tolist()) for batch in copies] == [(step, [step, step]) for step in range(12)]
    with client.open("s", 0, 12, hold_timeout_s=0.05) as consumer:
        assert [copy.copy(batch)["x"][0] for batch in consumer] == list(range(12))
