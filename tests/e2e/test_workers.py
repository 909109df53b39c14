"""Workers that die: the step is built again, to the same bytes, or fails with its story."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest

import loader_client
from loader_service import LocalService
from loader_service.errors import BuildError, FactoryError
from tests.e2e.harness import digests, eventually, service
from tests.e2e.streams import shuffled_slow, slow


@pytest.mark.parametrize("workers", [1, 2])
def test_a_step_whose_worker_dies_is_built_again_to_the_same_bytes(workers: int, tmp_path: Path) -> None:
    with (
        service("dying", workers=workers, journal=str(tmp_path / "journal"), times=2) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", 0, 12) as consumer,
    ):
        assert [batch.digest() for batch in consumer] == digests(slow(), 0, 12)
        eventually(lambda: all(one["state"] == "ready" for one in client.status()["workers"]), "all are back")
        assert sum(one["deaths"] for one in client.status()["workers"]) == 2


def test_a_step_that_kills_every_worker_fails_after_three_deaths_and_the_others_go_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        service("dying", journal=str(tmp_path / "journal"), times=1000) as daemon,
        loader_client.connect(daemon.endpoint) as client,
    ):
        with client.open("s", 4) as consumer:
            assert next(consumer).step == 4
            with pytest.raises(BuildError, match=r"step 5 .*was killed by SIGKILL; 3 workers died"):
                next(consumer)
        with client.open("s", 6, 14) as beyond:
            assert [batch.digest() for batch in beyond] == digests(slow(), 6, 14)
    log = capfd.readouterr().err
    killed = r"worker \d \(pid \d+\) was killed by SIGKILL"
    assert len(re.findall(f"stream s step 5 was built when {killed}", log)) == 3
    assert re.search(f"stream s step 5 has dataset indices 20, 21, 22, 23: of them {killed}", log)


def test_workers_killed_at_random_moments_change_no_byte() -> None:
    rng = random.Random(11)
    with (
        service("shuffled_slow", workers=3, prefetch=5) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        loader_client.connect(daemon.endpoint) as watcher,
        client.open("s", 0, 150) as consumer,
    ):
        done = threading.Event()

        def kill() -> None:
            while not done.wait(rng.uniform(0.02, 0.2)):
                ready = [one["pid"] for one in watcher.status()["workers"] if one["state"] == "ready"]
                if len(ready) > 1:
                    with suppress(ProcessLookupError):
                        os.kill(rng.choice(ready), signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            seen = [batch.digest() for batch in consumer]
        finally:
            done.set()
            killer.join()
        assert seen == digests(shuffled_slow(), 0, 150)
        assert sum(one["deaths"] for one in watcher.status()["workers"]) > 0


def test_workers_end_with_a_killed_daemon() -> None:
    daemon = service("slow", delay_s=30.0, slot_bytes=4096).start()
    with loader_client.connect(daemon.endpoint) as client:
        pids = [one["pid"] for one in client.status()["workers"]]
        client.open("s").close()
        assert daemon.pid is not None
        os.kill(daemon.pid, signal.SIGKILL)
    daemon.stop()
    eventually(lambda: not any(_alive(pid) for pid in pids), "the workers end, blocked as they are")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt", "GeneratorExit"])
def test_what_would_end_a_process_is_an_error_at_its_step_in_a_worker(kind: str) -> None:
    with (
        service("ending", kind=kind) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", 8) as consumer,
    ):
        with next(consumer) as batch:
            assert batch.step == 8
        with pytest.raises(BuildError, match=rf"step 9 .* slot 1 \(dataset index 37\): {kind}"):
            next(consumer)
        assert [one["deaths"] for one in client.status()["workers"]] == [0, 0]


def test_a_factory_that_would_end_its_process_is_named() -> None:
    config = {"streams": {"train": {"factory": "tests.e2e.streams:leaving"}}}
    with pytest.raises(FactoryError, match=r"stream 'train': .*leaving' raised SystemExit: 7"):
        LocalService(config).start()
