"""Consumers at different paces: who waits for whom, who leaves whom, and the same bytes for all."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import Popen

import numpy as np
import pytest

import loader_client
from loader_client import Client, Consumer
from loader_service import LocalService
from loader_service.errors import EvictedError, MemoryLimitError
from tests.e2e.harness import digests, eventually, python, stream_status
from tests.e2e.streams import slow

_SLEEPER = """
import sys, time, loader_client
with loader_client.connect(sys.argv[1]) as client, client.open("s", 0, int(sys.argv[3]), pace=sys.argv[2]) as consumer:
    for batch in consumer:
        print(batch.digest(), flush=True)
        sys.stdin.readline()
        time.sleep(0)
    print("done", flush=True)
"""


def _daemon(prefetch: int = 4, rings: int = 0, evict_after_s: float = 0.0) -> LocalService:
    """A daemon of fast batches of one page; rings: for how many its memory suffices (0: any number)."""
    server = {"workers": 2, "evict_after_s": evict_after_s, "memory_limit": rings * prefetch * 8192}
    stream = {"factory": "tests.e2e.streams:slow", "prefetch": prefetch, "slot_bytes": 8192 - 64}
    return LocalService({"server": server, "streams": {"s": stream}})


def _read(consumer: Consumer, steps: int, seen: list[str]) -> None:
    for _ in range(steps):
        with consumer.get(consumer.next_step, timeout_s=60) as batch:
            seen.append(batch.digest())


@contextmanager
def _stopped(daemon: LocalService, pace: str) -> Iterator[Popen[str]]:
    """A process that has taken step 0 and then stands still; killed at the end."""
    with python(_SLEEPER, daemon.endpoint, pace, "1000000") as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == slow().build(0).digest()
        process.send_signal(signal.SIGSTOP)
        try:
            yield process
        finally:
            process.kill()


def _consumer(client: Client, pid: int) -> dict[str, object]:
    return next(one for one in client.status()["consumers"] if one["pid"] == pid)


def test_the_others_go_on_without_a_stopped_consumer_and_what_it_reads_stays_right() -> None:
    with (
        _daemon() as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s") as slow_one,
        client.open("s") as fast,
    ):
        view = slow_one.get(0)["images"]
        kept = view.copy()
        seen: list[str] = []
        _read(fast, 200, seen)
        assert seen == digests(slow(), 0, 200)
        np.testing.assert_array_equal(view, kept)
        del view
        behind: list[str] = []
        _read(slow_one, 50, behind)
        assert behind == digests(slow(), 1, 51)


@pytest.mark.parametrize("pace", ["split", "wait"])
def test_a_stopped_process_is_treated_by_its_pace_and_goes_on_with_the_right_bytes(pace: str) -> None:
    with (
        _daemon() as daemon,
        loader_client.connect(daemon.endpoint) as client,
        _stopped(daemon, pace) as process,
        client.open("s") as fast,
    ):
        if pace == "wait":
            for step in range(4):
                fast.get(step, timeout_s=30).release()
            with pytest.raises(TimeoutError):
                fast.get(4, timeout_s=1.5)
            assert _consumer(client, process.pid)["held_others_up_s"] != 0
        else:
            seen: list[str] = []
            _read(fast, 100, seen)
            assert seen == digests(slow(), 0, 100)
        process.send_signal(signal.SIGCONT)
        assert process.stdin is not None
        assert process.stdout is not None
        for step in range(1, 30):
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline().strip() == slow().build(step).digest()
            if pace == "wait":
                with fast.get(min(step + 1, 4), timeout_s=30):
                    pass


def test_a_waiting_pace_keeps_two_threads_within_one_window() -> None:
    with (
        _daemon() as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", 0, 60, pace="wait") as fast,
        client.open("s", 0, 60, pace="wait") as slow_one,
    ):
        places: list[tuple[int, int]] = []

        def run() -> None:
            for batch in fast:
                batch.release()
                places.append((batch.step, slow_one.next_step))

        thread = threading.Thread(target=run)
        thread.start()
        for batch in slow_one:
            batch.release()
            time.sleep(0.005)
        thread.join(60)
        assert len(places) == 60
        assert max(step - behind for step, behind in places) <= 4
        assert {count for _, count in stream_status(client)["builds"]} == {1}


def test_lanes_merge_again_when_the_slow_one_has_caught_up() -> None:
    with (
        _daemon() as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", patience_s=0.1) as late,
        client.open("s") as first,
    ):
        late.get(0).release()
        _read(first, 50, [])
        _read(late, 5, [])
        assert len(stream_status(client)["lanes"]) == 2
        _read(late, 44, [])
        assert late.next_step == first.next_step == 50
        for step in range(50, 60):
            _read(first, 1, [])
            seen: list[str] = []
            _read(late, 1, seen)
            assert seen == [slow().build(step).digest()]
        eventually(lambda: len(stream_status(client)["lanes"]) == 1, "both are in one lane again")


def test_without_memory_for_a_second_ring_the_lane_waits_and_status_says_for_whom() -> None:
    with (
        _daemon(rings=1) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", patience_s=0.0) as slow_one,
        client.open("s") as fast,
    ):
        held = slow_one.get(0)
        for step in range(4):
            fast.get(step, timeout_s=30).release()
        with pytest.raises(TimeoutError):
            fast.get(4, timeout_s=1)
        [lane] = stream_status(client)["lanes"]
        [blamed] = [one for one in client.status()["consumers"] if one["held_others_up_s"] > 0]
        assert lane["waits_for_consumers"] == [blamed["consumer"]]
        assert blamed["position"] in (1, 2, 3)
        with pytest.raises(MemoryLimitError, match=r"the steps \[0, 4\) can be had"):
            client.open("s", 1000)
        held.release()
        del held
        slow_one.close()
        assert fast.get(4, timeout_s=30).step == 4


def test_who_holds_the_others_up_too_long_is_put_out_and_can_open_again_at_its_step() -> None:
    with (
        _daemon(rings=1, evict_after_s=0.3) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", pace="wait") as slow_one,
        client.open("s") as fast,
    ):
        view = slow_one.get(0)["images"]
        kept = view.copy()
        seen: list[str] = []
        _read(fast, 100, seen)
        assert seen == digests(slow(), 0, 100)
        np.testing.assert_array_equal(view, kept)
        with pytest.raises(EvictedError, match="reopen"):
            slow_one.get(1, timeout_s=30)
        fast.close()
        slow_one.reopen()
        with slow_one.get(1, timeout_s=30) as batch:
            assert batch.digest() == slow().build(1).digest()
        np.testing.assert_array_equal(view, kept)
        del view
        eventually(lambda: stream_status(client)["segments"] <= 4, "nothing is kept for it")


def test_a_ring_too_many_is_refused_with_what_would_fit() -> None:
    stream = {"factory": "tests.e2e.streams:slow", "prefetch": 4, "max_lanes": 2}
    with (
        LocalService({"streams": {"s": stream}}) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", 0),
        client.open("s", 100) as second,
    ):
        with pytest.raises(MemoryLimitError, match=r"max_lanes is 2; the steps \[0, 4\), \[100, 104\) can be had"):
            client.open("s", 200)
        with client.open("s", 102) as inside:
            assert inside.get(102, timeout_s=30).step == 102
        second.close()
        with client.open("s", 200) as third:
            assert third.get(200, timeout_s=30).step == 200


def test_open_live_joins_where_the_most_consumers_are() -> None:
    with (
        _daemon() as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", 5),
        client.open("s", 1000) as one,
        client.open("s", 1001) as other,
    ):
        _read(one, 3, [])
        _read(other, 2, [])
        with client.open("s", "live") as live:
            assert 1003 <= live.next_step <= 1006
            assert live.get(live.next_step, timeout_s=30).step == live.next_step - 1
            assert len(stream_status(client)["lanes"]) == 2


def test_a_client_that_is_killed_while_it_holds_others_up_is_gone_at_once() -> None:
    with (
        _daemon() as daemon,
        loader_client.connect(daemon.endpoint) as client,
        _stopped(daemon, "wait") as process,
        client.open("s") as fast,
    ):
        for step in range(4):
            fast.get(step, timeout_s=30).release()
        os.kill(process.pid, signal.SIGKILL)
        assert fast.get(4, timeout_s=30).step == 4
