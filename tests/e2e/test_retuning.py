"""Settings that change while the daemon runs change no byte."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

import loader_client
from loader_client import Client
from loader_service.errors import ArgumentError, ConfigurationError, MemoryLimitError, UnknownStreamError
from tests.e2e.harness import ROOT, digests, eventually, service, stream_status
from tests.e2e.streams import small


def _ready(client: Client) -> list[int]:
    return [worker["worker"] for worker in client.status()["workers"] if worker["state"] == "ready"]


def _slots(client: Client) -> list[int]:
    return [len(lane["slots"]) for lane in stream_status(client)["lanes"]]


def test_workers_come_and_go_and_rings_grow_and_shrink_under_two_consumers() -> None:
    rng = random.Random(7)
    with (
        service("small", prefetch=4) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", 0, 240) as one,
        client.open("s", 0, 240) as other,
    ):
        seen: dict[str, list[str]] = {"one": [], "other": []}
        for step in range(240):
            if step % 20 == 19:
                client.tune(workers=rng.randint(1, 3), prefetch=rng.choice([3, 4, 5, 8, 13]))
            with one.get(step, timeout_s=60) as batch:
                seen["one"].append(batch.digest())
            with other.get(step, timeout_s=60) as batch:
                seen["other"].append(batch.digest())
        assert seen["one"] == seen["other"] == digests(small(), 0, 240)
        client.tune(workers=1, prefetch=3)
        eventually(lambda: len(_ready(client)) == len(client.status()["workers"]) == 1, "one worker is left")
        with one.get(250, timeout_s=60), other.get(250, timeout_s=60):
            pass  # held until both have it: so the second finds the first one's lane at this step
        eventually(lambda: _slots(client) == [3], "one ring of three slots is left: a last build ends the lane behind")
        eventually(lambda: stream_status(client)["segments"] == 3, "it has all segments that are left")


def test_more_workers_help_at_once_and_a_worker_too_many_finishes_its_step() -> None:
    with (
        service("slow", delay_s=0.05, workers=1, prefetch=8) as daemon,
        loader_client.connect(daemon.endpoint) as client,
    ):
        with client.open("s", 0, 30) as consumer:
            next(consumer).release()
            client.tune(workers=4)
            eventually(lambda: len(_ready(client)) == 4, "four are ready")
            for batch in consumer:
                batch.release()
                if batch.step == 10:
                    client.tune(workers=2)
        assert stream_status(client)["lost"] == 0
        eventually(lambda: len(client.status()["workers"]) == 2, "two are left")


def test_what_cannot_be_set_is_refused_and_nothing_has_changed() -> None:
    with (
        service("small", prefetch=8) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", hold=4) as consumer,
    ):
        before = stream_status(client)["prefetch"], client.status()["memory_limit_bytes"]
        with pytest.raises(ConfigurationError, match="seed cannot be changed"):
            client.tune(seed=4)
        with pytest.raises(ConfigurationError, match="workers is -1"):
            client.tune(workers=-1)
        with pytest.raises(ArgumentError, match="it must be at least 5"):
            client.tune(prefetch=4, memory_limit="1GiB")
        with pytest.raises(UnknownStreamError, match="no stream 'x'"):
            client.tune("x", prefetch=4)
        with pytest.raises(MemoryLimitError):
            client.tune(memory_limit="64KiB", prefetch=64)
        assert (stream_status(client)["prefetch"], client.status()["memory_limit_bytes"]) == before
        assert consumer.get(0, timeout_s=60).digest() == small().build(0).digest()


def test_the_command_line_sets_and_says_what_is_wrong() -> None:
    with service("small", prefetch=4) as daemon, loader_client.connect(daemon.endpoint) as client:

        def run(*arguments: str) -> tuple[int, str]:
            command = [sys.executable, "-m", "loader_service", "set", *arguments, "--endpoint", daemon.endpoint]
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
            return done.returncode, done.stdout + done.stderr

        assert run("workers=3", "prefetch=16") == (0, "loader-service: set workers=3, prefetch=16\n")
        assert stream_status(client)["prefetch"] == 16
        eventually(lambda: len(_ready(client)) == 3, "three workers are ready")
        assert run("prefetch") == (2, "loader-service: E1001: 'prefetch' is no setting; write NAME=VALUE, such as "
                                      "workers=4 or prefetch=16\n")  # fmt: skip
        code, text = run("prefetch=many")
        assert code == 2
        assert "prefetch is 'many'" in text
