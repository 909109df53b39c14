"""One place for a worker: what `launch` opens `close` closes, and what its process prints is logged."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from loader_service.daemon.workers.crashes import Crash
from loader_service.daemon.workers.messages import Start, encode
from loader_service.daemon.workers.worker_process import MAX_FAILED_STARTS, WorkerProcess


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_what_launch_opens_close_closes_and_the_process_ends_with_its_connection() -> None:
    before, worker = descriptors(), WorkerProcess(3)
    connection = worker.launch()
    assert worker.process is not None
    connection.send_bytes(encode(Start([], [])))
    connection.recv_bytes()
    for _ in range(2):
        worker.close()
    assert worker.ended() == f"worker 3 (pid {worker.process.pid}) ended with exit code 0"
    assert descriptors() == before


def test_what_it_prints_is_logged_with_whose_it_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "loader_service.output")
    worker = WorkerProcess(3)
    worker.output_fd, printed = os.pipe()
    os.set_blocking(worker.output_fd, False)
    assert worker.read_output()
    os.write(printed, b"one\ntwo \xff\n")
    assert worker.read_output()
    os.close(printed)
    assert not worker.read_output()
    worker.close()
    assert not worker.read_output()
    [record] = caplog.records
    assert record.getMessage() == "worker 3 (pid None) printed:\none\ntwo \N{REPLACEMENT CHARACTER}"
    assert vars(record)["worker"] == 3


@pytest.mark.parametrize(
    ("change", "state"),
    [({}, "starting"), ({"ready": True}, "ready"), ({"failed_starts": 3}, "given up"), ({"leaving": True}, "leaving")],
)
def test_its_state_is_told_in_a_word(change: dict[str, bool | int], state: str) -> None:
    worker = WorkerProcess(0)
    for name, value in change.items():
        setattr(worker, name, value)
    assert worker.report()["state"] == state
    assert worker.report()["pid"] is None


def test_the_latest_ends_are_kept_and_the_last_is_told() -> None:
    worker = WorkerProcess(0)
    assert worker.last_death == ""
    for number in range(10):
        worker.crashes.append(Crash(f"end {number}"))
    assert len(worker.crashes) == MAX_FAILED_STARTS
    assert worker.report()["last_death"] == "end 9"
