"""Strangers at the socket: whatever they send, the daemon lives, serves on, and grows by nothing."""

from __future__ import annotations

import random
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import loader_client
from loader_service import LocalService
from tests.e2e.harness import digests, eventually
from tests.e2e.serving import descriptors, endpoint_of, resident_bytes, serving
from tests.e2e.strangers import ATTACKS, mutated_messages, random_bytes, reading
from tests.e2e.streams import small

_SPARE_BYTES = 24 << 20
"""By so much memory may differ from one moment to another: allocators keep what they have had."""


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """For this process itself."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 10_000:
        pytest.skip("needs 10,000 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture(scope="module")
def daemon() -> Iterator[LocalService]:
    """It serves "s", which the reader reads, and "t", which strangers may do to what they like."""
    stream = {"factory": "tests.e2e.streams:small", "prefetch": 4, "max_lanes": 4}
    config = {"server": {"workers": 1, "heartbeat_s": 0.2}, "streams": {"s": stream, "t": stream}}
    with LocalService(config) as service:
        yield service


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_consumer_reads_on_beside(daemon: LocalService, attack: object) -> None:
    assert callable(attack)
    with reading(daemon.endpoint) as reader:
        eventually(lambda: reader.right > 0, "it reads")
        attack(daemon.endpoint, random.Random(5))
        before = reader.right
        eventually(lambda: reader.right > before + 5 or bool(reader.wrong), "it reads on")
    with loader_client.connect(daemon.endpoint) as client, client.open("s", 0, 3) as consumer:
        assert [batch.digest() for batch in consumer] == digests(small(), 0, 3)


def test_all_of_them_at_once_leave_the_daemon_as_it_was(daemon: LocalService) -> None:
    assert daemon.pid is not None
    pid = daemon.pid
    with reading(daemon.endpoint):
        _all_at_once(daemon.endpoint)
        used, resident = descriptors(pid), resident_bytes(pid)
        for _ in range(2):
            _all_at_once(daemon.endpoint)
        eventually(lambda: descriptors(pid) <= used + 4, "their connections are gone")
        assert resident_bytes(pid) < resident + _SPARE_BYTES


def _all_at_once(endpoint: str) -> None:
    threads = [threading.Thread(target=attack, args=(endpoint, random.Random(7))) for attack in ATTACKS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_flood_of_what_is_refused_does_not_fill_the_log(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log, serving(tmp_path, stderr=log) as process:
        began = time.monotonic()
        for seed in range(3):
            random_bytes(endpoint_of(tmp_path), random.Random(seed))
            mutated_messages(endpoint_of(tmp_path), random.Random(seed))
        with loader_client.connect(endpoint_of(tmp_path)) as client:
            assert client.streams == ("s",)
        seconds = time.monotonic() - began + 2
        process.terminate()
        assert process.wait(20) == 0
    lines = (tmp_path / "log").read_text().splitlines()
    refused = [line for line in lines if "a message was refused" in line]
    assert 0 < len(refused) <= 20 * seconds
    assert all(len(line) < 1000 for line in lines)


@pytest.mark.usefixtures("many_descriptors")
def test_connections_without_end_are_hung_up_on_before_descriptors_are_short(tmp_path: Path) -> None:
    """ZeroMQ would end the process; whoever is connected goes on, and others can come when there is room again."""
    endpoint = endpoint_of(tmp_path)
    with (tmp_path / "log").open("wb") as log, serving(tmp_path, stderr=log) as process:
        with reading(endpoint) as reader:
            eventually(lambda: reader.right > 0, "it reads")
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (8192, 8192))
            callers = [socket.socket(socket.AF_UNIX) for _ in range(9000)]
            for caller in callers:
                caller.connect(endpoint.removeprefix("ipc://"))
            eventually(lambda: descriptors(process.pid) < 4300, "the latest are hung up on")
            before = reader.right
            eventually(lambda: reader.right > before + 5, "it reads on")
            for caller in callers:
                caller.close()
            with loader_client.connect(endpoint) as client, client.open("s", 0, 2) as consumer:
                assert [batch.digest() for batch in consumer] == digests(small(), 0, 2)
        process.terminate()
        assert process.wait(20) == 0
    assert "a connection was refused: descriptor" in (tmp_path / "log").read_text()
