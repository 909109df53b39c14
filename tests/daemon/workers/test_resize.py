"""More workers and fewer while the daemon runs: the new are started, those too many do what they were given."""

from __future__ import annotations

import os
import signal

from loader_service.daemon.workers.messages import Build, Built, Retire, Started
from loader_service.daemon.workers.worker_process import WorkerProcess
from loader_service.sharing.placement import Placement
from loader_service.wire.process import start_time
from tests.daemon.workers.worker_harness import NBYTES, Begin, WorkerHarness


def numbers(one: WorkerHarness) -> list[int]:
    return [worker.number for worker in one.supervisor.workers]


def assign(one: WorkerHarness, worker: WorkerProcess, task: int, step: int = 0) -> None:
    one.supervisor.assign(worker.number, Build(task, 0, step, Placement(one.segment, task, NBYTES)))


def until_gone(one: WorkerHarness, *pids: int) -> None:
    """Until these processes have ended and have been waited for."""
    one.until(lambda: all(start_time(pid) is None for pid in pids), "the end of those that left")
    one.until(lambda: not one.supervisor._dismissed, "nothing of them is kept")


def test_new_workers_are_started_and_work(start_workers: Begin) -> None:
    one = start_workers()
    one.until_ready()
    one.supervisor.resize(3)
    assert numbers(one) == [0, 1, 2]
    assert [worker.report()["state"] for worker in one.supervisor.workers] == ["ready", "starting", "starting"]
    one.until_ready()
    assert len({start.streams[0].fingerprint for start in one.all_said(Started) if isinstance(start, Started)}) == 1
    assign(one, one.supervisor.workers[2], 7, step=13)
    one.check(one.until_said(Built), one.segment, 13, 7)
    assert (one.died, one.gone) == ([], [])


def test_idle_workers_that_are_too_many_end_at_once_and_are_reaped(start_workers: Begin) -> None:
    one = start_workers(count=3)
    one.until_ready()
    _, *leaving = one.pids()
    one.supervisor.resize(1)
    assert numbers(one) == [0]
    until_gone(one, *leaving)
    one.assign(1)
    one.until_said(Built)
    assert (one.died, one.gone) == ([], [])


def test_as_many_as_there_are_changes_nothing(start_workers: Begin) -> None:
    one = start_workers(count=2)
    one.until_ready()
    pids = one.pids()
    one.supervisor.resize(2)
    assert (one.pids(), numbers(one)) == (pids, [0, 1])


def test_a_leaving_worker_does_what_it_was_given_and_gets_no_more(start_workers: Begin) -> None:
    one = start_workers(count=2)
    one.until_ready()
    staying, leaving = one.supervisor.workers
    pid = one.pids()[1]
    for task, worker in enumerate((leaving, staying, staying)):
        assign(one, worker, task, step=task)
    one.supervisor.resize(1)
    assert leaving.report()["state"] == "leaving"
    assert one.supervisor.next_free() is None
    one.supervisor.broadcast(Retire("lsv-none"))
    one.until_said(Built, 3)
    assert numbers(one) == [0]
    until_gone(one, pid)
    assert (one.died, leaving.built, staying.built) == ([], 1, 2)


def test_one_that_dies_while_it_leaves_is_told_and_not_replaced(start_workers: Begin) -> None:
    one = start_workers("stuck", count=2)
    one.until_ready()
    leaving, pid = one.supervisor.workers[1], one.pids()[1]
    for task in (1, 2):
        assign(one, leaving, task)
    one.supervisor.resize(1)
    assert numbers(one) == [0, 1]
    os.kill(pid, signal.SIGKILL)
    one.until(lambda: one.died, "the death")
    assert one.died == [(1, [1, 2], f"worker 1 (pid {pid}) was killed by SIGKILL")]
    assert (numbers(one), one.gone) == ([0], [])
    one.supervisor._spawn(leaving)
    assert (leaving.pid, leaving.connection) == (pid, None)
    until_gone(one, pid)


def test_one_that_was_about_to_be_replaced_when_it_was_dismissed_is_not(start_workers: Begin) -> None:
    """The pause before a new process takes its place has begun."""
    one = start_workers(count=2)
    one.until_ready()
    leaving, pid = one.supervisor.workers[1], one.pids()[1]
    os.kill(pid, signal.SIGKILL)
    one.until(lambda: one.died, "the death")
    one.supervisor.resize(1)
    assert numbers(one) == [0]
    one.supervisor._spawn(leaving)
    assert (leaving.pid, leaving.connection) == (pid, None)
    until_gone(one, pid)


def test_one_that_is_not_ready_yet_may_leave(start_workers: Begin) -> None:
    one = start_workers(count=2)
    pid = one.pids()[1]
    one.supervisor.resize(1)
    assert numbers(one) == [0]
    until_gone(one, pid)
    one.until_ready()
    assert one.died == []


def test_more_workers_while_one_leaves_are_new_ones_with_numbers_of_their_own(start_workers: Begin) -> None:
    one = start_workers("stuck", count=2)
    one.until_ready()
    assign(one, one.supervisor.workers[1], 1)
    one.supervisor.resize(1)
    one.supervisor.resize(3)
    assert numbers(one) == [0, 1, 2, 3]
    assert [worker.leaving for worker in one.supervisor.workers] == [False, True, False, False]
    one.supervisor.resize(1)
    assert numbers(one) == [0, 1]


def test_those_that_were_given_up_leave_before_those_that_work(start_workers: Begin) -> None:
    one = start_workers(count=3)
    one.until_ready()
    for worker in one.supervisor.workers[:2]:
        one.supervisor.give_up(worker.number, "it makes another stream")
    one.supervisor.resize(2)
    assert numbers(one) == [0, 2]
    one.supervisor.resize(1)
    assert numbers(one) == [2]
    assert (one.supervisor.next_free(), one.gone) == (one.first.number, [])


def test_the_last_that_stays_is_missed_though_others_are_yet_to_leave(start_workers: Begin) -> None:
    one = start_workers("stuck", count=2)
    one.until_ready()
    assign(one, one.supervisor.workers[1], 1)
    one.supervisor.resize(1)
    one.supervisor.give_up(one.first.number, "it makes another stream")
    assert one.gone == ["it makes another stream"]


def test_one_that_is_given_up_while_it_leaves_is_reaped(start_workers: Begin) -> None:
    one = start_workers("stuck", count=2)
    one.until_ready()
    leaving, pid = one.supervisor.workers[1], one.pids()[1]
    assign(one, leaving, 1)
    one.supervisor.resize(1)
    one.supervisor.give_up(leaving.number, "no use")
    assert (numbers(one), one.died, one.gone) == ([0], [(1, [1], "no use")], [])
    os.kill(pid, signal.SIGKILL)
    until_gone(one, pid)


def test_stop_ends_those_that_were_dismissed_and_cannot_end_themselves(start_workers: Begin) -> None:
    one = start_workers(count=2)
    one.until_ready()
    pid = one.pids()[1]
    os.kill(pid, signal.SIGSTOP)
    one.supervisor.resize(1)
    assert start_time(pid) is not None
    one.supervisor.stop(0.1)
    assert start_time(pid) is None


def test_one_that_is_dismissed_and_does_not_end_is_killed(start_workers: Begin) -> None:
    one = start_workers("lingering", count=2)
    one.until_ready()
    _, leaving = one.pids()
    one.supervisor.resize(1)
    until_gone(one, leaving)
    assert (one.died, one.gone) == ([], [])
