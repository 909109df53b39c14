"""A worker in the daemon's own process: the same bytes, the same answers, and where processes cannot be had."""

from __future__ import annotations

from typing import Any

import pytest

from loader_service.daemon.workers import messages, worker_process
from loader_service.daemon.workers.messages import Built, Failed
from loader_service.daemon.workers.watchdog import Timeouts
from tests.daemon.workers.worker_harness import Begin


def test_no_workers_are_one_thread_that_builds_the_same_bytes(start_workers: Begin) -> None:
    one = start_workers(count=0)
    one.until_ready()
    assert one.pids() == []
    one.assign(7, step=13)
    built = one.until_said(Built)
    one.check(built, one.segment, 13, 7)
    assert one.first.name == "worker 0 (a thread of the daemon)"


def test_a_stream_that_cannot_be_made_is_told_and_not_tried_again(start_workers: Begin) -> None:
    one = start_workers("refused", count=0, path="/data")
    error = one.until_said(messages.StartFailed).error
    assert "no data at /data" in error["message"]
    one.until(lambda: one.gone, "given up")


def test_a_time_limit_ends_no_thread(start_workers: Begin) -> None:
    """Another one in its place would write the same segment."""
    one = start_workers("slow", count=0, timeouts=Timeouts(build_s=0.1), delay_s=0.2)
    one.until_ready()
    one.assign(1)
    one.until_said(Built)
    assert one.died == []


def test_the_number_of_workers_changes_from_and_to_none(start_workers: Begin) -> None:
    one = start_workers(count=0)
    one.until_ready()
    one.supervisor.resize(2)
    one.until(lambda: len(one.pids()) == 2 and all(worker.ready for worker in one.supervisor.workers), "two processes")
    one.supervisor.resize(0)
    one.until(lambda: one.pids() == [] and one.first.ready, "a thread again")
    one.assign(3, step=1)
    one.check(one.until_said(Built), one.segment, 1, 3)


def test_where_no_process_can_be_started_a_thread_takes_the_place_of_all(
    start_workers: Begin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(*arguments: Any, **options: Any) -> Any:
        raise PermissionError("no process may be started here")

    monkeypatch.setattr(worker_process, "GroupLeader", none)
    one = start_workers(count=3)
    one.until_ready()
    assert len(one.supervisor.workers) == 1
    assert "no worker process can be started (no process may be started here)" in caplog.text
    one.assign(1)
    one.until_said(Built)
    assert one.all_said(Failed) == []


def test_a_thread_that_cannot_be_had_is_asked_for_again(start_workers: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:

        def none_left(self: Any) -> None:
            raise RuntimeError("can't start new thread")

        patch.setattr("loader_service.daemon.workers.worker_thread.Thread.start", none_left)
        one = start_workers(count=0)
        one.until(lambda: len(one.died) == 2, "it was tried twice")
    one.until_ready()
