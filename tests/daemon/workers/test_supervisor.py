"""Real worker processes: started, told what to build, noticed when they end, replaced or given up."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from loader_service.daemon.workers import messages, worker_process
from loader_service.daemon.workers.messages import Built, Denied, Failed, Larger, Need, Retire
from loader_service.daemon.workers.process_group import GroupLeader
from loader_service.daemon.workers.supervisor import Supervisor
from loader_service.daemon.workers.worker_process import WorkerProcess
from loader_service.errors import BuildError, MemoryLimitError
from loader_service.sharing.placement import Placement
from loader_service.wire.process import start_time
from tests.daemon import streams
from tests.daemon.workers.worker_harness import NBYTES, Begin, WorkerHarness


def test_workers_say_what_they_made_and_build_what_they_are_told(start_workers: Begin) -> None:
    one = start_workers(count=2)
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


def test_a_description_that_no_message_can_carry_is_told_in_other_words(start_workers: Begin) -> None:
    """The fingerprint is that of the description as it is."""
    one = start_workers("odd")
    [facts] = one.until_said(messages.Started).streams
    assert facts.fingerprint == streams.odd().fingerprint
    assert facts.description["version"] == "of the file \\udcff"
    assert facts.description["sampler"]["arguments"]["seed"] == {"int": "-0xffffffffffffffff"}
    assert facts.description["collator"] == streams.odd().description["collator"]


def test_a_batch_that_does_not_fit_gets_a_larger_segment_or_the_reason_why_not(start_workers: Begin) -> None:
    one = start_workers()
    one.until_ready()
    one.assign(1, step=0, nbytes=4096)
    one.assign(2, step=1, nbytes=4096)
    need = one.until_said(Need)
    assert need == Need(1, 64 + streams.small().layout(0).nbytes)
    refusal = MemoryLimitError("there is no more").to_record()
    one.supervisor.send(one.first.number, Denied(1, refusal))
    failed = BuildError(step=0, cause_type="MemoryLimitError", cause_message="there is no more").to_record()
    assert one.until_said(Failed) == Failed(1, failed)
    assert one.until_said(Need, 2).task == 2
    larger = one.memory.create(NBYTES)
    one.supervisor.send(one.first.number, Retire(one.segment))
    one.supervisor.send(one.first.number, Larger(2, Placement(larger, 5, NBYTES)))
    one.check(one.until_said(Built), larger, 1, 5)


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGRTMIN + 1, f"signal {signal.SIGRTMIN + 1}")]
)
def test_a_worker_killed_while_it_builds_is_noticed_and_replaced(start_workers: Begin, number: int, name: str) -> None:
    one = start_workers("stuck")
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
    assert one.supervisor.next_free() == one.first.number
    assert one.gone == []


def test_what_a_terminal_sends_to_all_does_not_reach_a_worker(start_workers: Begin) -> None:
    """It has a process group of its own, and ignores the signals that are meant for the daemon."""
    one = start_workers()
    one.until_ready()
    assert os.getpgid(one.pids()[0]) != os.getpgid(0)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(one.pids()[0], number)
    one.assign(1)
    one.until_said(Built)
    assert one.died == []


def test_a_stream_that_cannot_be_made_is_told_and_not_tried_again(start_workers: Begin) -> None:
    one = start_workers("refused", path="/data")
    error = one.until_said(messages.StartFailed).error
    assert error["code"] == "E1002"
    assert "factory 'tests.daemon.streams:refused' raised FileNotFoundError: no data at /data" in error["message"]
    one.until(lambda: one.gone, "given up")
    assert len(one.died) == len(one.gone) == one.first.deaths == 1
    assert "ended with exit code 0" in one.gone[0]


def test_a_worker_that_was_ready_before_gets_three_tries(start_workers: Begin, tmp_path: Path) -> None:
    """The data of its factory may be away for a moment only."""
    path = tmp_path / "data"
    path.touch()
    one = start_workers("waning", path=str(path))
    one.until_ready()
    path.unlink()
    os.kill(one.pids()[0], signal.SIGKILL)
    one.until(lambda: len(one.all_said(messages.StartFailed)) == 1, "the first try fails")
    path.touch()
    one.until_ready()
    assert one.first.failed_starts == 0
    path.unlink()
    os.kill(one.pids()[0], signal.SIGKILL)
    one.until(lambda: one.gone, "given up")
    assert len(one.all_said(messages.StartFailed)) == 4


def test_a_worker_that_others_kill_as_it_starts_again_is_never_given_up(start_workers: Begin) -> None:
    """As the kernel does that is short of memory; it says nothing of the code."""
    one = start_workers()
    one.until_ready()
    for _ in range(5):
        os.kill(one.pids()[0], signal.SIGKILL)
        one.until(lambda: one.first.pid in killed(one), "its death is noticed")
        one.until(lambda: one.first.pid not in killed(one), "another starts")
    assert (one.first.failed_starts, one.gone) == (0, [])
    one.until_ready()


def killed(one: WorkerHarness) -> set[int]:
    """The processes that have died, by what was told of them."""
    return {int(how.partition("(pid ")[2].partition(")")[0]) for _, _, how in one.died}


def test_a_process_that_cannot_be_had_for_a_while_is_asked_for_again(
    start_workers: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Descriptors, or processes, are short for a moment."""
    one = start_workers()
    one.until_ready()

    def none_left(self: WorkerProcess) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(WorkerProcess, "launch", none_left)
        os.kill(one.pids()[0], signal.SIGKILL)
        one.until(lambda: len(one.died) == 5, "it was tried four times")
    assert (one.first.failed_starts, one.gone) == (0, [])
    one.until_ready()


def test_a_worker_that_never_gets_ready_is_given_up_after_three_times(start_workers: Begin) -> None:
    one = start_workers("leaving", code=3)
    one.until(lambda: one.gone, "given up")
    assert [how.rpartition(") ")[2] for _, _, how in one.died] == ["ended with exit code 3"] * 3
    assert one.gone == [one.died[-1][2]]


def test_a_worker_that_hangs_up_is_ended(start_workers: Begin) -> None:
    one = start_workers("deaf")
    one.until(lambda: one.died, "the end of the connection")
    assert one.died[0][2].endswith("closed its connection")


def test_where_no_process_can_be_made_it_is_tried_again(start_workers: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    real, refused = GroupLeader, list[object]()

    def popen(*arguments: Any, **options: Any) -> Any:
        if len(refused) < 2:
            refused.append(arguments)
            raise OSError(errno.EAGAIN, "no process left")
        return real(*arguments, **options)

    monkeypatch.setattr(worker_process, "GroupLeader", popen)
    one = start_workers()
    assert "worker 0 cannot be started: " in one.died[0][2]
    one.until_ready()
    assert len(one.died) == 2
    assert one.first.failed_starts == 0


def test_giving_up_the_last_worker_is_told(start_workers: Begin) -> None:
    one = start_workers(count=2)
    one.until_ready()
    one.assign(1)
    for worker in one.supervisor.workers:
        assert one.gone == []
        one.supervisor.give_up(worker.number, f"of worker {worker.number}")
    assert one.died == [(0, [1], "of worker 0"), (1, [], "of worker 1")]
    assert one.gone == ["of worker 1"]


@pytest.mark.parametrize("number", [None, signal.SIGSTOP])
def test_stop_leaves_no_process_however_it_is_occupied(start_workers: Begin, number: signal.Signals | None) -> None:
    one = start_workers("stuck", count=2)
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
def test_a_worker_at_work_never_blocks_a_broadcast(start_workers: Begin) -> None:
    """It reads nothing while it builds, and its connection takes some hundred messages."""
    one = start_workers("stuck")
    one.until_ready()
    one.assign(1)
    for number in range(5000):
        one.supervisor.broadcast(Retire(f"lsv-{number}"))
    assert len(one.first.later) == 5000


def test_retired_segments_are_unmapped_by_idle_and_by_busy_workers(start_workers: Begin) -> None:
    one = start_workers()
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
    one = WorkerHarness("small", 3, {})
    workers = one.supervisor.workers
    given: list[int] = []
    workers[1].ready = workers[2].ready = True
    while (free := one.supervisor.next_free()) is not None:
        workers[free].tasks.append(len(given))
        given.append(free)
    assert given == [1, 2, 1, 2]
    one.memory.close()


@pytest.mark.parametrize(("streak", "delay_s"), [(1, 0.1), (2, 0.2), (3, 0.4), (6, 3.2), (7, 5.0), (10**6, 5.0)])
def test_the_pause_before_a_restart_doubles_up_to_a_limit(streak: int, delay_s: float) -> None:
    assert Supervisor._backoff_s(WorkerProcess(0, streak=streak)) == pytest.approx(delay_s)
