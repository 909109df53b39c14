"""Several consumers of one daemon: each step built once, whoever exits, dies or comes late."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import Popen

import pytest

import loader_client
from loader_client import Consumer
from loader_service import LocalService
from loader_service.errors import ConsumerClosedError, ForkedClientError
from tests.e2e.harness import digests, eventually, python, service, stream_status
from tests.e2e.streams import slow, small

_READER = """
import sys, loader_client
start, stop = int(sys.argv[2]), int(sys.argv[3])
with loader_client.connect(sys.argv[1]) as client, client.open("s", start, stop, pace="wait") as consumer:
    print("open", flush=True)
    sys.stdin.readline()
    for batch in consumer:
        print(batch.digest(), flush=True)
"""

_HOLDER = """
import sys, loader_client
client = loader_client.connect(sys.argv[1])
consumer = client.open("s", hold=3)
kept = [next(consumer) for _ in range(int(sys.argv[2]))]
print("holds", flush=True)
sys.stdin.readline()
"""


def _line(process: Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _go(process: Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


@contextmanager
def _reader(daemon: LocalService, start: int, stop: int) -> Iterator[Popen[str]]:
    with python(_READER, daemon.endpoint, str(start), str(stop)) as process:
        assert _line(process) == "open"
        yield process
    assert process.returncode == 0


def _lines(process: Popen[str]) -> list[str]:
    out, err = process.communicate(timeout=60)
    assert err == ""
    return out.split()


def test_two_processes_see_the_same_bytes_and_each_step_is_built_once() -> None:
    with service("small") as daemon, _reader(daemon, 0, 60) as one, _reader(daemon, 0, 60) as two:
        _go(one)
        _go(two)
        assert _lines(one) == _lines(two) == digests(small(), 0, 60)
        with loader_client.connect(daemon.endpoint) as client:
            builds = dict(stream_status(client)["builds"])
        assert [builds[step] for step in range(60)] == [1] * 60


def test_consumers_that_start_within_one_window_share_its_builds() -> None:
    with (
        service("slow", prefetch=8) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", 10, 40, pace="wait") as one,
        client.open("s", 13, 40, pace="wait") as two,
    ):
        assert len(stream_status(client)["lanes"]) == 1
        seen: dict[str, list[str]] = {"one": [], "two": []}

        def read(name: str, consumer: Consumer) -> None:
            seen[name].extend(batch.digest() for batch in consumer)

        threads = [threading.Thread(target=read, args=pair) for pair in (("one", one), ("two", two))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert seen == {"one": digests(slow(), 10, 40), "two": digests(slow(), 13, 40)}
        builds = dict(stream_status(client)["builds"])
        assert {builds[step] for step in range(10, 40)} == {1}


def test_a_late_consumer_gets_a_lane_of_its_own_and_the_lane_ends_with_it() -> None:
    with (
        service("slow", prefetch=4) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", 100) as ahead,
    ):
        with client.open("s", 0, 9) as late:
            assert len(stream_status(client)["lanes"]) == 2
            assert [batch.digest() for batch in late] == digests(slow(), 0, 9)
        eventually(lambda: len(stream_status(client)["lanes"]) == 1, "the late consumer's lane ends")
        eventually(lambda: stream_status(client)["segments"] == 4, "its segments are given back")
        with next(ahead) as batch:
            assert batch.digest() == slow().build(100).digest()


def test_the_lane_waits_for_its_slowest_member_and_never_builds_past_the_window() -> None:
    with (
        service("slow", prefetch=4) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s") as fast,
        client.open("s", pace="wait") as stuck,
    ):
        for _ in range(4):
            with next(fast):
                pass
        eventually(lambda: stream_status(client)["built"] == 4, "the window is built")
        with pytest.raises(TimeoutError):
            fast.get(4, timeout_s=0.2)
        lane = stream_status(client)["lanes"][0]
        assert (lane["base"], stream_status(client)["built"]) == (0, 4)
        with stuck.get(0):
            pass
        with fast.get(4, timeout_s=30) as batch:
            assert batch.digest() == slow().build(4).digest()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, None])
def test_a_client_that_dies_or_exits_holding_leases_keeps_nobody_waiting(how: signal.Signals | None) -> None:
    with service("slow", prefetch=4) as daemon, loader_client.connect(daemon.endpoint) as client:
        with client.open("s") as consumer, python(_HOLDER, daemon.endpoint, "3") as holder:
            assert _line(holder) == "holds"
            if how is None:
                _go(holder)
            else:
                holder.send_signal(how)
            seen = [batch.digest() for batch in _limited(consumer, 30)]
            holder.communicate(timeout=60)
        assert seen == digests(slow(), 0, 30)
        eventually(lambda: client.status()["clients"] == 1, "the dead client is forgotten")


def _limited(consumer: Consumer, stop: int) -> Iterator[loader_client.Batch]:
    for step in range(stop):
        yield consumer.get(step, timeout_s=30)


def test_a_client_that_never_closes_exits_without_noise() -> None:
    with service("slow", prefetch=4) as daemon, python(_HOLDER, daemon.endpoint, "2") as holder:
        assert _line(holder) == "holds"
        _, err = holder.communicate("go\n", timeout=60)
        assert (holder.returncode, err) == (0, "")


def test_a_forked_child_gets_a_clear_error_and_does_not_end_the_parents_leases() -> None:
    with service("slow") as daemon, loader_client.connect(daemon.endpoint) as client, client.open("s") as consumer:
        batch = next(consumer)
        child = os.fork()  # what a trainer's own data loader does: the very thing that is tested
        if child == 0:
            try:
                next(consumer)
            except ForkedClientError:
                batch.release()
                del batch
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert consumer.held_steps == [0]
        assert 0 in client.status()["consumers"][0]["holds"]
        assert batch.digest() == slow().build(0).digest()


def test_many_connections_leave_no_descriptor_behind() -> None:
    with service("slow") as daemon, loader_client.connect(daemon.endpoint) as client:
        client.status()
        assert daemon.pid is not None
        pid = daemon.pid

        def open_files() -> tuple[int, int]:
            return len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{pid}/fd"))

        def cycle() -> None:
            with loader_client.connect(daemon.endpoint) as other, other.open("s") as consumer, next(consumer):
                pass

        cycle()
        eventually(lambda: client.status()["clients"] == 1, "the first has left")
        before = open_files()
        for _ in range(20):
            cycle()
        eventually(lambda: client.status()["clients"] == 1, "all have left")
        eventually(lambda: open_files() <= before, f"descriptors are as before: {before}, {open_files()}")


def test_closing_a_consumer_ends_a_request_that_waits_in_another_thread() -> None:
    with (
        service("slow", prefetch=2) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s") as consumer,
        client.open("s", pace="wait"),
    ):
        caught: list[BaseException] = []

        def wait() -> None:
            try:
                for batch in consumer:
                    batch.release()
            except ConsumerClosedError as error:
                caught.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: client.status()["consumers"][0]["waits_for"] == 2, "the first waits for the second")
        consumer.close()
        thread.join(20)
        assert len(caught) == 1


def test_nothing_is_created_in_steady_state() -> None:
    with (
        service("small", prefetch=4) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", 0, 300) as consumer,
    ):
        mapped: set[str] = set()
        for batch in consumer:
            with batch:
                if batch.step in (20, 299):
                    lane = stream_status(client)["lanes"][0]
                    mapped |= {slot["segment"] for slot in lane["slots"]}
        assert len(mapped) == 4, "the same four segments stand in the ring all the time"
