"""Real worker processes: started, told what to build, noticed when they end, replaced or given up."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loader_service import Loader
from loader_service.core.layout import Layout
from loader_service.daemon import messages
from loader_service.daemon.loop import Loop
from loader_service.daemon.memory import SharedMemoryAllocator
from loader_service.daemon.messages import Build, Built, Denied, Failed, FromWorker, Larger, Need, Retire, Start
from loader_service.daemon.supervisor import Supervisor, Worker
from loader_service.errors import BuildError, MemoryLimitError
from loader_service.wire.process import start_time
from loader_service.wire.segment import Segment
from tests.daemon import streams

ROOT = str(Path(__file__).resolve().parents[2])
DEADLINE_S = 20.0
NBYTES = 2**20


class Crew:
    """A supervisor in its loop, and what it told."""

    def __init__(self, factory: str, count: int, args: dict[str, Any]) -> None:
        self.said: list[FromWorker] = []
        self.died: list[tuple[int, list[int], str]] = []
        self.gone: list[str] = []
        self.spec = messages.StreamSpec("s", f"tests.daemon.streams:{factory}", args, measure=factory == "small")
        self.loop = Loop(time.monotonic)
        self.supervisor = Supervisor(self.loop, self, count, lambda number: Start([ROOT], [self.spec]))
        self.memory = SharedMemoryAllocator()
        self.segment = self.memory.create(NBYTES)

    def worker_said(self, worker: Worker, message: FromWorker) -> None:
        self.said.append(message)

    def worker_died(self, worker: Worker, tasks: list[int], how: str) -> None:
        self.died.append((worker.number, tasks, how))

    def workers_gone(self, how: str) -> None:
        self.gone.append(how)

    @property
    def first(self) -> Worker:
        return self.supervisor.workers[0]

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Turn the loop until `holds()`."""
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
            self.loop.after(0.05, lambda: None)
            self.loop.turn()

    def until_ready(self) -> None:
        self.until(lambda: all(worker.ready for worker in self.supervisor.workers), "all workers ready")

    def until_said(self, kind: type[FromWorker], times: int = 1) -> Any:
        self.until(lambda: len(self.all_said(kind)) >= times, f"{times} {kind.__name__}")
        return self.all_said(kind)[-1]

    def all_said(self, kind: type[FromWorker]) -> list[FromWorker]:
        return [message for message in self.said if isinstance(message, kind)]

    def assign(self, task: int, step: int = 0, nbytes: int = NBYTES) -> None:
        self.supervisor.assign(self.first, Build(task, 0, step, self.segment, task, nbytes))

    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self.supervisor.workers if worker.process]

    def is_mapped(self) -> bool:
        """Whether the first worker has the segment mapped."""
        return self.segment in Path(f"/proc/{self.pids()[0]}/maps").read_text()

    def check(self, built: Built, segment: str, step: int, generation: int) -> None:
        """What a worker has built into `segment` is what the contract says."""
        reader = Segment.open(segment)
        reader.check(step, generation, built.nbytes)
        arrays = Layout.from_wire(built.layout).views(reader.payload)
        expected = Loader(streams.small()).get(step)
        assert all((arrays[name] == expected[name]).all() for name in expected)

    def end(self) -> None:
        self.supervisor.stop(0.1)
        self.memory.close()
        assert [pid for pid in self.pids() if start_time(pid) is not None] == []


Begin = Callable[..., Crew]


@pytest.fixture
def crew() -> Iterator[Begin]:
    """Starts workers; none of them, ready or stuck, outlives the test."""
    made: list[Crew] = []

    def start(factory: str = "small", count: int = 1, **args: Any) -> Crew:
        made.append(Crew(factory, count, args))
        made[-1].supervisor.spawn_all()
        return made[-1]

    yield start
    for one in made:
        one.end()


def test_workers_say_what_they_made_and_build_what_they_are_told(crew: Begin) -> None:
    one = crew(count=2)
    assert one.supervisor.next_free() is None
    one.until_ready()
    stream = streams.small()
    for started in one.said:
        assert isinstance(started, messages.Started)
        facts = started.streams[0]
        assert (facts.name, facts.steps_per_epoch, facts.fingerprint) == ("s", 10, stream.fingerprint)
        assert facts.batch_bytes == stream.layout(0).nbytes
    one.assign(7, step=13)
    built = one.until_said(Built)
    assert (built.task, built.epoch, built.step_in_epoch) == (7, 1, 3)
    one.check(built, one.segment, 13, 7)
    assert (one.first.tasks, one.first.built) == ([], 1)
    assert (one.died, one.gone) == ([], [])


def test_a_batch_that_does_not_fit_gets_a_larger_segment_or_the_reason_why_not(crew: Begin) -> None:
    one = crew()
    one.until_ready()
    one.assign(1, step=0, nbytes=4096)
    one.assign(2, step=1, nbytes=4096)
    need = one.until_said(Need)
    assert need == Need(1, 64 + streams.small().layout(0).nbytes)
    refusal = MemoryLimitError("there is no more").to_record()
    one.supervisor.send(one.first, Denied(1, refusal))
    failed = BuildError(0, "MemoryLimitError", "there is no more").to_record()
    assert one.until_said(Failed) == Failed(1, failed)
    assert one.until_said(Need, 2).task == 2
    larger = one.memory.create(NBYTES)
    one.supervisor.send(one.first, Retire(one.segment))
    one.supervisor.send(one.first, Larger(2, larger, 5, NBYTES))
    one.check(one.until_said(Built), larger, 1, 5)


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGRTMIN + 1, f"signal {signal.SIGRTMIN + 1}")]
)
def test_a_worker_killed_while_it_builds_is_noticed_and_replaced(crew: Begin, number: int, name: str) -> None:
    one = crew("stuck")
    one.until_ready()
    one.assign(1)
    one.assign(2)
    assert one.supervisor.next_free() is None
    killed = one.pids()[0]
    os.kill(killed, number)
    one.until(lambda: one.died, "the death")
    assert one.died == [(0, [1, 2], f"worker 0 (pid {killed}) was killed by {name}")]
    assert (one.first.deaths, one.first.tasks, one.first.report()["state"]) == (1, [], "starting")
    one.until_ready()
    assert one.pids() != [killed]
    assert one.supervisor.next_free() is one.first
    assert one.gone == []


def test_what_a_terminal_sends_to_all_does_not_reach_a_worker(crew: Begin) -> None:
    """It has a process group of its own, and ignores the signals that are meant for the daemon."""
    one = crew()
    one.until_ready()
    assert os.getpgid(one.pids()[0]) != os.getpgid(0)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(one.pids()[0], number)
    one.assign(1)
    one.until_said(Built)
    assert one.died == []


def test_a_stream_that_cannot_be_made_is_told_and_not_tried_again(crew: Begin) -> None:
    one = crew("refused", path="/data")
    error = one.until_said(messages.StartFailed).error
    assert error["code"] == "E1002"
    assert "factory 'tests.daemon.streams:refused' raised FileNotFoundError: no data at /data" in error["message"]
    one.until(lambda: one.gone, "given up")
    assert len(one.died) == len(one.gone) == one.first.deaths == 1
    assert "ended with exit code 0" in one.gone[0]


def test_a_worker_that_never_gets_ready_is_given_up_after_three_times(crew: Begin) -> None:
    one = crew("leaving", code=3)
    one.until(lambda: one.gone, "given up")
    assert [how.rpartition(") ")[2] for _, _, how in one.died] == ["ended with exit code 3"] * 3
    assert one.gone == [one.died[-1][2]]


def test_a_worker_that_hangs_up_is_ended(crew: Begin) -> None:
    one = crew("deaf")
    one.until(lambda: one.died, "the end of the connection")
    assert one.died[0][2].endswith("closed its connection")


def test_where_no_process_can_be_made_it_is_tried_again(crew: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    real, refused = subprocess.Popen, list[object]()

    def popen(*arguments: Any, **options: Any) -> Any:
        if len(refused) < 2:
            refused.append(arguments)
            raise OSError(errno.EAGAIN, "no process left")
        return real(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", popen)
    one = crew()
    assert "worker 0 cannot be started: " in one.died[0][2]
    one.until_ready()
    assert len(one.died) == 2
    assert one.first.failed_starts == 0


def test_giving_up_the_last_worker_is_told(crew: Begin) -> None:
    one = crew(count=2)
    one.until_ready()
    one.assign(1)
    for worker in one.supervisor.workers:
        assert one.gone == []
        one.supervisor.give_up(worker, f"of worker {worker.number}")
    assert one.died == [(0, [1], "of worker 0"), (1, [], "of worker 1")]
    assert one.gone == ["of worker 1"]


@pytest.mark.parametrize("number", [None, signal.SIGSTOP])
def test_stop_leaves_no_process_however_it_is_occupied(crew: Begin, number: signal.Signals | None) -> None:
    one = crew("stuck", count=2)
    one.until_ready()
    one.assign(1)
    pids = one.pids()
    for pid in pids:
        if number is not None:
            os.kill(pid, number)
    for _ in range(2):
        one.supervisor.stop(0.1)
        assert [start_time(pid) for pid in pids] == [None, None]
    assert one.died == []


@pytest.mark.timeout(40)
def test_a_worker_at_work_never_blocks_a_broadcast(crew: Begin) -> None:
    """It reads nothing while it builds, and its connection takes some hundred messages."""
    one = crew("stuck")
    one.until_ready()
    one.assign(1)
    for number in range(5000):
        one.supervisor.broadcast(Retire(f"lsv-{number}"))
    assert len(one.first.later) == 5000


def test_retired_segments_are_unmapped_by_idle_and_by_busy_workers(crew: Begin) -> None:
    one = crew()
    one.supervisor.broadcast(Retire("lsv-before-it-is-ready"))
    one.until_ready()
    one.assign(1)
    one.until_said(Built)
    assert one.is_mapped()
    one.supervisor.broadcast(Retire(one.segment))
    one.until(lambda: not one.is_mapped(), "unmapped while idle")
    for task in (2, 3):
        one.assign(task)
    for number in range(1000):
        one.supervisor.broadcast(Retire(f"lsv-{number}"))
    one.supervisor.broadcast(Retire(one.segment))
    one.until_said(Built, 3)
    one.until(lambda: not one.is_mapped(), "unmapped after work")
    assert not one.first.later


# --- without processes -----------------------------------------------------------------------------------


def test_the_free_worker_with_the_fewest_tasks_comes_first() -> None:
    one = Crew("small", 3, {})
    workers = one.supervisor.workers
    given: list[int] = []
    workers[1].ready = workers[2].ready = True
    while (free := one.supervisor.next_free()) is not None:
        free.tasks.append(len(given))
        given.append(free.number)
    assert given == [1, 2, 1, 2]
    one.memory.close()


@pytest.mark.parametrize(("streak", "delay_s"), [(1, 0.1), (2, 0.2), (3, 0.4), (6, 3.2), (7, 5.0), (10**6, 5.0)])
def test_the_pause_before_a_restart_doubles_up_to_a_limit(streak: int, delay_s: float) -> None:
    assert Supervisor._backoff_s(Worker(0, streak=streak)) == pytest.approx(delay_s)
