"""Workers that hang: found out after `build_timeout_s`, killed with their stack told, their step built again."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import loader_client
from loader_client import Consumer
from loader_service import LocalService
from loader_service.errors import BuildError, ServiceClosedError
from tests.e2e.harness import ROOT, digests, eventually
from tests.e2e.streams import slow

HUNG = r"hung: it was at one step \(build_timeout_s = 3\) for \d+\.\d s, and was killed by SIGKILL"


def hanging(journal: Path, times: int, bad: int = 21) -> dict[str, Any]:
    args = {"journal": str(journal), "times": times, "bad": bad}
    return {"factory": "tests.e2e.streams:hanging", "args": args, "slot_bytes": 4096}


def test_a_worker_that_hangs_is_replaced_and_a_step_that_always_hangs_fails_and_no_other(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Both hold the GIL in C code as they hang, so nothing of Python's runs in them any more."""
    streams = {"once": hanging(tmp_path / "once", 1), "ever": hanging(tmp_path / "ever", 1000)}
    config = {"server": {"workers": 2, "build_timeout_s": 3.0}, "streams": streams}
    with LocalService(config) as daemon, loader_client.connect(daemon.endpoint) as client:
        with client.open("once", 0, 12) as consumer:
            assert [batch.digest() for batch in consumer] == digests(slow(), 0, 12)
        with client.open("ever", 3) as consumer:
            assert [next(consumer).step for _ in range(2)] == [3, 4]
            with pytest.raises(BuildError, match=rf"step 5 .*WorkerHung: worker \d \(pid \d+\) {HUNG}; ") as raised:
                next(consumer)
        assert str(raised.value).endswith("3 workers died while they built this step (dataset indices 20, 21, 22, 23)")
        assert "in __getitem__" in raised.value.remote_traceback
        with client.open("ever", 6, 14) as beyond:
            assert [batch.digest() for batch in beyond] == digests(slow(), 6, 14)
        status = client.status()
        assert sum(one["deaths"] for one in status["workers"]) == 4
        assert any("hung: it was at one step" in one["last_death"] for one in status["workers"])
    log = capfd.readouterr().err
    assert log.count("where it hung:\n") == 4
    assert log.count('streams.py", line') >= 4
    assert "stream ever step 5 has dataset indices 20, 21, 22, 23: of them worker" in log


CHANGING = """
import os
from tests.e2e.streams import slow

def make():
    if os.path.exists({flag!r}):
        raise RuntimeError("the data has gone")
    return slow(delay_s=0.05)
"""


def read_all(consumer: Consumer) -> None:
    for batch in consumer:
        batch.release()


def test_where_no_worker_can_start_any_more_consumers_get_the_cause_and_the_daemon_fails(tmp_path: Path) -> None:
    flag = tmp_path / "gone"
    (tmp_path / "changing.py").write_text(CHANGING.format(flag=str(flag)))
    server = {"workers": 2, "import_paths": [str(tmp_path), str(ROOT), *sys.path]}
    daemon = LocalService({"server": server, "streams": {"s": {"factory": "changing:make"}}}).start()
    try:
        with loader_client.connect(daemon.endpoint, reconnect_s=0) as client, client.open("s") as consumer:
            next(consumer).release()
            flag.touch()
            first, second = client.status()["workers"]
            os.kill(first["pid"], signal.SIGKILL)
            eventually(lambda: client.status()["workers"][0]["state"] == "given up", "the first is given up")
            assert client.status()["workers"][0]["last_death"].endswith("ended with exit code 0")
            os.kill(second["pid"], signal.SIGKILL)
            with pytest.raises(ServiceClosedError, match=r"all workers are gone: .*RuntimeError: the data has gone"):
                read_all(consumer)
    finally:
        assert daemon.stop() == 1
