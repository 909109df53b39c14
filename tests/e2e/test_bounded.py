"""The cost of one odd batch, one jumping reader or one slow consumer has a bound."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import pytest

import loader_client
from loader_client import Client
from loader_service import LocalService
from tests.e2e.harness import digests, eventually, service, stream_status
from tests.e2e.streams import outlier, slow

OUTLIER = 20


def _builds(client: Client) -> dict[int, int]:
    """Step -> how often it was built."""
    return dict(stream_status(client)["builds"])


# --- builds ------------------------------------------------------------------------------------------------


def test_nothing_is_built_for_a_consumer_that_has_asked_for_nothing() -> None:
    with service("slow") as daemon, loader_client.connect(daemon.endpoint) as client, client.open("s") as first:
        with client.open("s", 1000) as other:
            other.get(1005, timeout_s=30).release()
        assert _builds(client) == {1005: 1}
        first.get(7, timeout_s=30).release()
        assert _builds(client) == {7: 1, 1005: 1}


def test_nothing_is_built_past_the_stop_step() -> None:
    with service("slow", prefetch=8) as daemon, loader_client.connect(daemon.endpoint) as client:
        with client.open("s", stop_step=2) as consumer:
            assert [batch.digest() for batch in consumer] == digests(slow(), 0, 2)
        assert _builds(client) == {0: 1, 1: 1}


def test_a_short_stream_that_is_read_again_and_again_costs_no_more_than_its_steps() -> None:
    with service("slow", prefetch=8) as daemon, loader_client.connect(daemon.endpoint) as client:
        for _ in range(5):
            with client.open("s", stop_step=5) as consumer:
                assert [batch.digest() for batch in consumer] == digests(slow(), 0, 5)
        assert sum(_builds(client).values()) <= 25
        assert set(_builds(client)) == set(range(5))


def test_steps_out_of_order_build_themselves_only() -> None:
    numbers = random.Random(7)
    steps = numbers.sample(range(1, 4000, 2), 200)
    with (
        service("slow", prefetch=8) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s") as consumer,
    ):
        for step in steps:
            with consumer.get(step, timeout_s=30) as batch:
                assert batch.step == step
        assert _builds(client) == dict.fromkeys(sorted(steps), 1)


def test_the_second_step_in_a_row_shows_a_run_and_those_after_it_are_built_ahead() -> None:
    with (
        service("slow", prefetch=4) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s") as consumer,
    ):
        consumer.get(50, timeout_s=30).release()
        assert _builds(client) == {50: 1}
        consumer.get(51, timeout_s=30).release()
        eventually(lambda: {52, 53, 54} <= set(_builds(client)), "the steps that follow are built")


# --- a batch of unusual size -------------------------------------------------------------------------------


def test_one_batch_of_unusual_size_leaves_the_rings_as_they_are() -> None:
    stream = {"factory": "tests.e2e.streams:outlier", "args": {"step": OUTLIER}, "prefetch": 8}
    server = {"workers": 2, "memory_limit": "8MiB"}
    expected = digests(outlier(OUTLIER), 0, 40)
    with (
        LocalService({"server": server, "streams": {"s": stream}}) as daemon,
        loader_client.connect(daemon.endpoint) as client,
    ):
        usual = stream_status(client)["segment_bytes"]
        with client.open("s", stop_step=40) as consumer:
            assert [batch.digest() for batch in consumer] == expected
        assert stream_status(client)["segment_bytes"] == usual
        eventually(lambda: stream_status(client)["total_bytes"] == 8 * usual, "the large segment is given back")
        with client.open("s", 100) as one, client.open("s", 200) as other:
            assert one.get(100, timeout_s=30).step == 100
            assert other.get(200, timeout_s=30).step == 200


# --- slow consumers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("step_s", [0.015, 0.05])
def test_a_consumer_that_makes_another_wait_a_little_at_each_step_is_split_off(step_s: float) -> None:
    with (
        service("slow", prefetch=8) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", patience_s=0.3) as late,
        client.open("s", patience_s=0.3) as quick,
    ):
        done = threading.Event()

        def read(consumer: loader_client.Consumer, pause_s: float) -> None:
            for batch in consumer:
                time.sleep(pause_s)
                if done.is_set():
                    break
                del batch

        threads = [threading.Thread(target=read, args=pair) for pair in ((late, step_s), (quick, 0.0))]
        for thread in threads:
            thread.start()
        try:
            eventually(lambda: len(stream_status(client)["lanes"]) == 2, "the slow one has a lane of its own")
        finally:
            done.set()
            for thread in threads:
                thread.join()


# --- memory ------------------------------------------------------------------------------------------------


def _mapped_bytes(pid: int) -> int:
    """Pages of segments that a process has mapped and that stand in memory, of removed segments too."""
    total, is_segment = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            is_segment = "/dev/shm/lsv-" in line
        elif is_segment and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def test_consumers_that_jump_and_then_idle_keep_no_memory_beyond_the_limit() -> None:
    limit_bytes, slot_bytes = 2**22, 2**16
    server = {"workers": 1, "memory_limit": limit_bytes}
    stream = {"factory": "tests.e2e.streams:slow", "prefetch": 4, "slot_bytes": slot_bytes}
    with (
        LocalService({"server": server, "streams": {"s": stream}}) as daemon,
        loader_client.connect(daemon.endpoint) as client,
    ):
        consumers = [client.open("s", 1000 * number) for number in range(10)]
        for jump in range(8):
            for number, consumer in enumerate(consumers):
                consumer.get(1000 * number + 100 * jump, timeout_s=30).release()
                consumer.get(1000 * number + 100 * jump + 1, timeout_s=30).release()
        for number, consumer in enumerate(consumers):
            consumer.seek(1000 * number + 900)
        assert client.status()["memory_bytes"] <= limit_bytes
        assert _mapped_bytes(os.getpid()) <= limit_bytes
        for consumer in consumers:
            consumer.close()
