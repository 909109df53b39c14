"""Ctrl-C, deadlines and forgotten consumers: nothing that was given up is kept, and nobody waits for it."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import time
from subprocess import Popen

import pytest

import loader_client
from loader_service.errors import DeadlineError, ServiceUnavailableError
from tests.e2e.harness import ROOT, digests, eventually, python, service, stream_status
from tests.e2e.streams import slow

_TRAINER = """
import sys, loader_client
from loader_service import Loader
from tests.e2e.streams import slow
expected = [batch.digest() for batch in Loader(slow(), 0, 16)]
interrupts = wrong = 0
with loader_client.connect(sys.argv[1]) as client, client.open("s") as consumer:
    print("open", flush=True)
    step, announced = 0, False
    while interrupts < 25:
        try:
            if not announced:
                print("reading", flush=True)  # an interrupt from here on falls into this try
                announced = True
            with consumer.get(step, timeout_s=30) as batch:
                wrong += batch.copy()["labels"][0] != step % 16 * 4
            step += 1
        except KeyboardInterrupt:
            interrupts, announced = interrupts + 1, False
            print("interrupted", flush=True)
    for _ in range(50):
        with consumer.get(step, timeout_s=30) as batch:
            wrong += batch["labels"][0] != step % 16 * 4
        step += 1
print("wrong", wrong, flush=True)
"""


def test_no_interrupt_is_swallowed_and_none_loses_a_lease() -> None:
    """25 times Ctrl-C at any moment of a tight loop: each arrives, and the stream goes on after it."""
    rng = random.Random(5)
    with service("slow", prefetch=4) as daemon, python(_TRAINER, daemon.endpoint) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "open\n"
        for _ in range(25):
            assert trainer.stdout.readline() == "reading\n"
            time.sleep(rng.uniform(0.01, 0.06))  # the moment is what is tested
            trainer.send_signal(signal.SIGINT)
            assert trainer.stdout.readline() == "interrupted\n"
        out, err = trainer.communicate(timeout=60)
        assert (trainer.returncode, out, err) == (0, "wrong 0\n", "")


def test_an_open_that_was_given_up_leaves_no_consumer_behind() -> None:
    with service("slow", prefetch=4) as daemon, loader_client.connect(daemon.endpoint, timeout_s=5.0) as client:
        assert daemon.pid is not None
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            with pytest.raises(DeadlineError):
                client.open("s", 0)
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        with client.open("s", 0, 20) as consumer:
            assert [batch.digest() for batch in consumer] == digests(slow(), 0, 20)
        eventually(lambda: client.status()["consumers"] == [], "the one that was given up is closed too")


def test_a_get_that_was_given_up_often_leaves_no_lease_behind() -> None:
    with (
        service("slow", prefetch=2, delay_s=0.01) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", 0, 8) as consumer,
    ):
        seen: list[str] = []
        while len(seen) < 8:
            try:
                with consumer.get(len(seen), timeout_s=0.005) as batch:
                    seen.append(batch.digest())
            except DeadlineError:
                continue
        assert seen == digests(slow(), 0, 8)
        assert consumer.held_steps == []
        eventually(lambda: client.status()["consumers"][0]["leases"] == 0, "nothing is leased")


def test_a_consumer_that_is_dropped_is_closed() -> None:
    with service("slow", prefetch=2) as daemon, loader_client.connect(daemon.endpoint) as client:
        consumer = client.open("s")
        kept = next(consumer)["images"]
        box = [consumer]
        del consumer
        with pytest.warns(ResourceWarning, match="was not closed"):
            box.clear()
        eventually(lambda: stream_status(client)["lanes"] == [], "its lane ends")
        assert client.status()["consumers"][0]["leases"] == 1
        assert kept.sum() == slow().build(0)["images"].sum()


def test_a_consumer_keeps_its_client_alive() -> None:
    with service("slow") as daemon:
        box = [loader_client.connect(daemon.endpoint).open("s", 0, 9)]
        gc.collect()
        assert [batch.digest() for batch in box[0]] == digests(slow(), 0, 9)
        with pytest.warns(ResourceWarning, match=r"the client of .* was not closed"):
            box.clear()


_DEMO = [sys.executable, "-m", "loader_service", "demo", "--steps", "100000"]


@pytest.mark.parametrize("after_s", [0.0, 0.3, 1.0, 2.0])
def test_ctrl_c_ends_the_running_demo_without_noise_and_leaves_nothing(after_s: float) -> None:
    with Popen(_DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as demo:
        try:
            assert demo.stdout is not None
            assert "text lines" in demo.stdout.readline()
            time.sleep(after_s)  # the moment is what is tested
            demo.send_signal(signal.SIGINT)
            _, err = demo.communicate(timeout=30)
        finally:
            demo.kill()
    assert (demo.returncode, err) == (130, "")


_STARTING_DEMO = """
print("Python has started", flush=True)  # before that an interrupt meets no line of ours: Python ends with 1
import runpy
runpy.run_module("loader_service", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.3, 0.8])
def test_ctrl_c_while_its_modules_are_imported_ends_the_demo_too(after_s: float) -> None:
    command = [sys.executable, "-c", _STARTING_DEMO, *_DEMO[3:]]
    with Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as demo:
        try:
            assert demo.stdout is not None
            assert demo.stdout.readline() == "Python has started\n"
            time.sleep(after_s)  # the moment is what is tested
            demo.send_signal(signal.SIGINT)
            try:
                demo.communicate(timeout=30)
            except subprocess.TimeoutExpired:  # Python drops one that comes within a callback of its import locks
                demo.send_signal(signal.SIGINT)
                demo.communicate(timeout=60)
        finally:
            demo.kill()
    assert demo.returncode in (130, -signal.SIGINT)


def test_nobody_waits_long_for_a_daemon_that_is_not_there() -> None:
    with pytest.raises(ServiceUnavailableError):
        loader_client.connect("ipc:///nowhere/at/all.sock", timeout_s=0.05)
