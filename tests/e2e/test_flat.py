"""A daemon that runs for months: a thousand consumers come and go, and nothing is left of them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import loader_client
from loader_client import Client
from tests.e2e.harness import eventually, python, service, stream_status
from tests.e2e.streams import slow

_CYCLES = 1000
_EVERY = 5
"""So many consumers a client."""


def _held(pid: int) -> dict[str, int]:
    """Descriptors, threads and mapped segments of a process."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return {
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "segments": len(set(re.findall(r"/dev/shm/(lsv-\S+)", maps))),
    }


def _resident_bytes(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def _cycle(endpoint: str, number: int) -> None:
    with loader_client.connect(endpoint) as client:
        for turn in range(_EVERY):
            with client.open("s", (number * _EVERY + turn) * 37 % 5000, hold=1 + turn % 2) as consumer:
                with next(consumer) as batch:
                    assert batch.step == consumer.next_step - 1
                if turn % 3 == 0:
                    consumer.seek(9000)


def test_a_thousand_consumers_leave_nothing_behind() -> None:
    with service("slow", prefetch=3) as daemon, loader_client.connect(daemon.endpoint) as client:
        assert daemon.pid is not None
        ours, daemons = os.getpid(), daemon.pid
        for number in range(20):
            _cycle(daemon.endpoint, number)
        _settle(client)
        before, resident = (_held(ours), _held(daemons)), _resident_bytes(daemons)
        for number in range(_CYCLES // _EVERY):
            _cycle(daemon.endpoint, number)
        _settle(client)
        eventually(lambda: _held(ours) == before[0], "the client's process is as it was")
        eventually(lambda: _held(daemons) == before[1], "the daemon's process is as it was")
        assert _resident_bytes(daemons) < resident + 8 * 2**20
        with client.open("s") as consumer, next(consumer) as batch:
            assert batch.digest() == slow().build(0).digest()


def _settle(client: Client) -> None:
    eventually(lambda: client.status()["clients"] == 1, "all others have left")
    eventually(lambda: client.status()["consumers"] == [], "so have their consumers")
    eventually(lambda: stream_status(client)["segments"] == 3, "one ring is kept")


_ONE_CLIENT = """
import sys, loader_client

def resident_bytes():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

def cycle(times):
    for step in range(times):
        with client.open("s", step) as consumer, consumer.get(step):
            pass

with loader_client.connect(sys.argv[1]) as client:
    cycle(200)
    before = resident_bytes()
    cycle(1000)
    print(resident_bytes() - before)
"""


def test_a_thousand_consumers_of_one_client_leave_its_memory_flat() -> None:
    """Also the answers that nobody reads."""
    with service("slow", prefetch=3) as daemon, python(_ONE_CLIENT, daemon.endpoint) as trainer:
        out, err = trainer.communicate(timeout=100)
        assert (trainer.returncode, err) == (0, "")
        assert int(out) < 2 * 2**20
