"""Workers at one thing for too long: with a clock of the test's, and as real processes."""

from __future__ import annotations

import logging
import os
import signal
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_service.daemon.workers.messages import Built, Need
from loader_service.daemon.workers.watchdog import Timeouts, Watchdog
from tests.daemon.broker.broker_harness import FakeTimer
from tests.daemon.workers.worker_harness import Begin


@dataclass(eq=False)
class Suspected:
    """A worker that gives `stacks` one after the other as it is looked at, then the last for ever."""

    stacks: list[str] = field(default_factory=lambda: ["", "half", "whole"])
    asked: int = 0
    killed: int = 0
    forgot: int = 0
    name: str = "worker 0 (pid 1)"

    def forget_stack(self) -> None:
        self.forgot += 1

    def ask_for_stack(self) -> None:
        self.asked += 1

    def stack(self) -> str:
        return self.stacks.pop(0) if len(self.stacks) > 1 else self.stacks[0]

    def kill(self) -> None:
        self.killed += 1


class Ward:
    """A watchdog under a clock, and what was told."""

    def __init__(self) -> None:
        self.timer, self.told = FakeTimer(), list[tuple[str, float, str]]()
        self.watchdog = Watchdog(self.timer, self)

    def hung(self, worker: Suspected, elapsed_s: float, stack: str) -> None:
        assert worker.killed == 0
        self.told.append((worker.name, round(elapsed_s, 1), stack))

    def unkillable(self, worker: Suspected) -> None:
        self.told.append(("unkillable", 0.0, ""))
        self.watchdog.end(worker)


def test_one_that_is_overdue_is_asked_for_its_stack_and_killed_once_that_is_whole() -> None:
    ward, worker = Ward(), Suspected()
    ward.watchdog.begin(worker, 10.0)
    ward.timer.pass_time(9.9)
    assert worker.asked == 0
    ward.timer.pass_time(1.0)
    assert (worker.asked, worker.killed) == (1, 1)
    assert ward.told == [("worker 0 (pid 1)", 10.2, "whole")]
    ward.watchdog.end(worker)
    ward.timer.pass_time(100.0)
    assert (worker.killed, len(ward.told), ward.timer.wanted) == (1, 1, [])


def test_one_that_gives_no_stack_is_killed_without_and_replaced_where_that_does_not_end_it() -> None:
    ward, worker = Ward(), Suspected([""])
    ward.watchdog.begin(worker, 10.0)
    ward.timer.pass_time(11.5)
    assert (worker.killed, ward.told) == (1, [("worker 0 (pid 1)", 11.0, "")])
    ward.timer.pass_time(10.0)
    assert ward.told[1:] == [("unkillable", 0.0, "")]


def test_one_that_ends_its_step_while_it_is_asked_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    ward, worker = Ward(), Suspected([""])
    ward.watchdog.begin(worker, 10.0)
    ward.timer.pass_time(10.5)
    assert worker.asked == 1
    ward.watchdog.begin(worker, 10.0)
    ward.timer.pass_time(9.0)
    assert (worker.killed, ward.told) == (0, [])
    assert caplog.messages == ["worker 0 (pid 1) was done after more than 10.0 s, before it was killed"]
    assert worker.forgot == 1, "that stack is of no later death"
    ward.timer.pass_time(3.0)
    assert worker.killed == 1, "the next one counts too"


def test_a_shorter_time_after_a_longer_one_counts_at_once_and_a_longer_one_after_it_later() -> None:
    """A worker has minutes for its start and perhaps seconds for a step."""
    ward, worker = Ward(), Suspected()
    ward.watchdog.begin(worker, 100.0)
    ward.timer.pass_time(1.0)
    ward.watchdog.begin(worker, 5.0)
    ward.timer.pass_time(4.0)
    ward.watchdog.begin(worker, 200.0)
    ward.timer.pass_time(199.0)
    assert worker.asked == 0
    ward.watchdog.begin(worker, 5.0)
    ward.timer.pass_time(6.0)
    assert (worker.killed, len(ward.told)) == (1, 1)


def test_without_a_limit_nothing_is_watched() -> None:
    ward, worker = Ward(), Suspected()
    ward.watchdog.begin(worker, 0.0)
    ward.timer.pass_time(1e6)
    assert (worker.asked, ward.timer.armed) == (0, 0)


@given(st.lists(st.floats(0.01, 9.9), max_size=60))
def test_each_step_has_its_own_time_and_a_worker_one_timer(times: list[float]) -> None:
    ward, worker = Ward(), Suspected()
    for time_s in times:
        ward.watchdog.begin(worker, 10.0)
        ward.timer.pass_time(time_s)
        assert len(ward.timer.wanted) == 1
    ward.watchdog.end(worker)
    ward.timer.pass_time(100.0)
    assert (worker.asked, ward.timer.wanted) == (0, [])
    assert ward.timer.armed <= 1 + sum(times) / 0.01


# --- real processes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("factory", "line"), [("stuck", "in _sleep"), ("gripping", "in _grip")])
def test_a_worker_that_hangs_even_with_the_gil_leaves_its_stack_and_is_replaced(
    start_workers: Begin, factory: str, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = start_workers(factory, timeouts=Timeouts(build_s=1.5))
    one.until_ready()
    pid = one.pids()[0]
    one.assign(1)
    one.assign(2)
    one.until(lambda: one.died, "the end of the one that hangs")
    [(_, tasks, how)], [death] = one.died, one.deaths
    assert tasks == [1, 2]
    assert how.startswith(f"worker 0 (pid {pid}) hung: it was at one step (build_timeout_s = 1.5) for ")
    assert how.endswith(" s, and was killed by SIGKILL")
    assert death.hung
    assert line in death.stack
    [error] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert line in error.getMessage()
    one.until_ready()
    assert one.first.report()["last_death"] == how


def test_the_second_of_two_steps_has_its_time_from_the_end_of_the_first(start_workers: Begin) -> None:
    """All together take longer than the limit."""
    one = start_workers("slow", timeouts=Timeouts(build_s=3.0), delay_s=0.3)
    one.until_ready()
    for task in range(1, 4):  # 4 samples each: 1.2 s
        one.assign(task)
    one.until_said(Built, 3)
    assert one.died == []


def test_asking_for_more_memory_gives_no_more_time(start_workers: Begin) -> None:
    """Nobody answers it, so it waits from the 6th second on, and has 7 in all; 13 where it got its time anew."""
    one = start_workers("slow", timeouts=Timeouts(build_s=7.0), delay_s=1.5)
    one.until_ready()
    one.assign(1, nbytes=128)
    one.until_said(Need)
    one.until(lambda: one.died, "its end")
    assert 7.0 <= float(one.died[0][2].partition(") for ")[2].partition(" s")[0]) < 13.0
    assert "in larger" in one.deaths[0].stack


def test_a_worker_that_is_stopped_gives_no_stack_and_is_killed(start_workers: Begin) -> None:
    one = start_workers("stuck", timeouts=Timeouts(build_s=0.2))
    one.until_ready()
    one.assign(1)
    os.kill(one.pids()[0], signal.SIGSTOP)
    one.until(lambda: one.died, "its end")
    assert (one.deaths[0].hung, one.deaths[0].stack) == (True, "")


def test_a_worker_that_hangs_as_it_starts_is_told_so_and_given_up(start_workers: Begin) -> None:
    one = start_workers("endless", timeouts=Timeouts(start_s=4.0))
    one.until(lambda: one.gone, "given up")
    assert len(one.died) == 3
    assert "hung: it was at its start for " in one.gone[0]
    assert "in endless" in one.deaths[0].stack
    assert one.first.report()["state"] == "given up"


def test_a_worker_that_crashes_leaves_the_stack_of_that(start_workers: Begin) -> None:
    one = start_workers("crashing")
    one.until_ready()
    one.assign(1)
    one.until(lambda: one.died, "its end")
    assert one.died[0][2].endswith("was killed by SIGSEGV")
    assert "in _crash" in one.deaths[0].stack


def test_one_that_no_signal_ends_loses_its_place(start_workers: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    one = start_workers("stuck", timeouts=Timeouts(build_s=0.1))
    one.until_ready()
    one.assign(1)
    process = one.first.process
    assert process is not None
    with monkeypatch.context() as patch:
        patch.setattr(process, "kill", lambda: None)
        patch.setattr("loader_service.daemon.workers.watchdog._KILL_S", 0.1)
        one.until(lambda: one.died, "another in its place")
        assert one.died[0][1] == [1]
        assert "of which it has not ended yet" in one.died[0][2]
    one.until_ready()
    one.until(lambda: not one.supervisor._dismissed, "it is killed again, and reaped")
    assert process.poll() == -signal.SIGKILL
