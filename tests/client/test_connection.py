"""A client refuses what cannot be, before it sends anything, and says who is there and who is not."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loader_client
from loader_client import (
    ArgumentError,
    Client,
    EndpointError,
    ForkedClientError,
    ServiceClosedError,
    ServiceUnavailableError,
)
from loader_service import errors
from loader_service.wire.endpoint import ENVIRONMENT_VARIABLE
from loader_service.wire.messages import Bye, Hello, Open, Status, Stop, Tune
from loader_service.wire.process import pid_namespace
from tests.client.fake_daemon import FakeDaemon, eventually


def test_a_client_says_who_it_is_and_hears_what_is_served(client: Client, daemon: FakeDaemon) -> None:
    assert client.streams == ("s",)
    assert client.daemon_pid == 1
    assert [(hello.pid, hello.pid_namespace) for hello in daemon.got(Hello)] == [(os.getpid(), pid_namespace())]


def test_nobody_there_is_an_error_that_names_the_endpoint_and_the_time(endpoint: str) -> None:
    with pytest.raises(ServiceUnavailableError) as raised:
        loader_client.connect(endpoint, timeout_s=0.05)
    assert raised.value.code == "E3001"
    assert f"no daemon answered at {endpoint} within 0.05 s; start one with `loader-service serve" in str(raised.value)


def test_a_daemon_that_is_starting_is_waited_for(endpoint: str) -> None:
    daemon = FakeDaemon(endpoint)
    starting = threading.Timer(0.1, daemon.start)
    starting.start()
    with contextlib.closing(daemon), loader_client.connect(endpoint, timeout_s=20) as client:
        assert client.streams == ("s",)
    starting.join()


@pytest.mark.parametrize("unset", [None, ""])
def test_without_an_endpoint_it_is_that_of_the_environment(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, unset: str | None
) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, daemon.endpoint)
    with loader_client.connect(unset) as client:
        assert client.endpoint == daemon.endpoint


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"endpoint": "tcp://127.0.0.1:5555"}, "must be ipc://"),
        ({"endpoint": 5}, "endpoint is 5"),
        ({"timeout_s": -1}, "timeout_s is -1"),
        ({"timeout_s": "10"}, "timeout_s is '10'"),
        ({"timeout_s": None}, "timeout_s is None"),
        ({"timeout_s": True}, "timeout_s is True"),
        ({"reconnect_s": float("nan")}, "reconnect_s is nan"),
        ({"reconnect_s": [1]}, r"reconnect_s is \[1\]"),
    ],
)
def test_what_cannot_be_connected_with_is_named(endpoint: str, arguments: dict[str, Any], told: str) -> None:
    with pytest.raises((ArgumentError, EndpointError), match=told):
        loader_client.connect(**({"endpoint": endpoint} | arguments))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"stream": 5}, "stream is 5"),
        ({"stream": None}, "stream is None"),
        ({"start_step": -1}, "start_step is -1"),
        ({"start_step": 1.0}, "start_step is 1.0"),
        ({"start_step": "alive"}, "start_step is 'alive'"),
        ({"start_step": False}, "start_step is False"),
        ({"start_step": 5, "stop_step": 4}, "stop_step is 4 and start_step 5"),
        ({"pace": "run"}, "pace is 'run'; it must be one of 'split', 'wait'"),
        ({"pace": None}, "pace is None"),
        ({"patience_s": -1.0}, "patience_s is -1.0"),
        ({"patience_s": float("inf")}, "patience_s is inf"),
        ({"patience_s": "1"}, "patience_s is '1'"),
        ({"patience_s": True}, "patience_s is True"),
        ({"hold": 0}, "hold is 0"),
        ({"hold": True}, "hold is True"),
        ({"hold": 2.0}, "hold is 2.0"),
        ({"hold": 65536}, "hold is 65536"),
        ({"shard": 5}, "shard is 5"),
        ({"shard": (2, 2)}, "rank is 2"),
        ({"shard": (0, 2**31 + 1)}, "world"),
        ({"shard": ("0", 1)}, "rank is '0'"),
        ({"hold_timeout_s": float("nan")}, "hold_timeout_s is nan"),
    ],
)
def test_what_cannot_be_opened_is_named_and_nothing_is_sent(
    client: Client, daemon: FakeDaemon, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(ArgumentError, match=told):
        client.open(**({"stream": "s"} | options))
    assert daemon.got(Open) == []


def test_numbers_of_numpy_are_the_numbers_that_they_are(client: Client, daemon: FakeDaemon) -> None:
    options: dict[str, Any] = {
        "start_step": np.int64(7),
        "stop_step": np.array(9),
        "patience_s": np.float32(0.5),
        "hold": np.uint8(1),
        "shard": (np.int8(1), np.int16(2)),
    }
    with client.open("s", **options) as consumer:
        assert [batch.step for batch in consumer] == [7, 8]
    sent = daemon.got(Open)[0]
    assert (sent.start_step, sent.patience_us, sent.hold, sent.rank, sent.world) == (7, 500_000, 1, 1, 2)


def test_status_tune_and_stop_are_sent_as_they_were_said(client: Client, daemon: FakeDaemon) -> None:
    assert client.status(builds=True) == {"pid": 1, "builds": True}
    client.tune("s", prefetch=8, memory_limit="1GiB")
    client.tune(workers=2)
    client.stop_service()
    assert [message.builds for message in daemon.got(Status)] == [True]
    settings = [(message.stream, message.settings, message.incarnation) for message in daemon.got(Tune)]
    assert settings == [("s", {"prefetch": 8, "memory_limit": "1GiB"}, 1), ("", {"workers": 2}, 1)]
    assert [message.incarnation for message in daemon.got(Stop)] == [1]
    client.tune("s", prefetch=np.int64(8), evict_after_s=np.float64(0.5))
    assert daemon.got(Tune)[-1].settings == {"prefetch": 8, "evict_after_s": 0.5}
    for value in (None, [1], b"1", float("nan"), np.complex64(1), object()):
        with pytest.raises(ArgumentError, match="prefetch is"):
            client.tune("s", prefetch=value)
    with pytest.raises(ArgumentError, match="stream is 5"):
        client.tune(5)  # type: ignore[arg-type]  # that is the test


def test_a_closed_client_says_bye_and_then_refuses(client: Client, daemon: FakeDaemon) -> None:
    consumer = client.open("s")
    for _ in range(2):
        client.close()
    assert consumer.closed
    eventually(lambda: daemon.got(Bye) == [Bye()], "it said Bye once")
    for ask in (client.status, lambda: client.open("s"), client.stop_service):
        with pytest.raises(ServiceClosedError, match="this client is closed"):
            ask()
    assert repr(client) == f"Client({client.endpoint!r}, closed)"


def test_its_text_tells_whom_it_is_connected_to(client: Client) -> None:
    assert repr(client) == f"Client({client.endpoint!r}, daemon pid 1, streams ['s'])"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_client_refuses_to_be_copied_and_says_what_to_do(client: Client, copied: Callable[[Any], Any]) -> None:
    with pytest.raises(ArgumentError, match=r"cannot be pickled or copied.*loader_client\.connect\(\)"):
        copied(client)
    assert client.status()["pid"] == 1


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # of Python 3.12 on; that is the test
def test_a_forked_child_is_refused_and_its_parent_goes_on(client: Client) -> None:
    with client.open("s") as consumer:
        child = os.fork()
        if child == 0:
            refused = 0
            for ask in (client.status, lambda: client.open("s"), lambda: next(consumer), lambda: consumer.seek(3)):
                try:
                    ask()
                except ForkedClientError:
                    refused += 1
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
        assert next(consumer).step == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # of Python 3.12 on; that is the test
def test_a_forked_child_connects_for_itself(client: Client) -> None:
    child = os.fork()
    if child == 0:
        with loader_client.connect(client.endpoint, timeout_s=20) as own, own.open("s", 0, 3) as consumer:
            os._exit(sum(batch["x"].shape == (2,) for batch in consumer))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_the_end_of_the_daemons_process_is_seen(endpoint: str) -> None:
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process,
        FakeDaemon(endpoint, pid=process.pid, pid_namespace=pid_namespace()) as daemon,
        loader_client.connect(endpoint, reconnect_s=0) as client,
        client.open("s") as consumer,
    ):
        assert not client.wait_for_end(0)
        daemon.withheld = {0}
        process.kill()
        for timeout_s in (None, -1, "1", float("inf"), True):
            with pytest.raises(ArgumentError, match="timeout_s is"):
                client.wait_for_end(timeout_s)  # type: ignore[arg-type]  # that is the test
        assert client.wait_for_end(20)
        with pytest.raises(ServiceClosedError, match="its process or connection has ended"):
            next(consumer)


def test_all_errors_of_a_trainer_are_exported() -> None:
    """All but those that only a daemon, a worker or a container raises."""
    elsewhere = {"AlreadyRunningError", "DataError", "FactoryError", "FileAccessError"}
    elsewhere |= {"FingerprintError", "WorkerStartError"}
    named = {name for name in errors.__all__ if name.endswith("Error")} - elsewhere
    assert named <= set(loader_client.__all__)
    assert all(getattr(loader_client, name) is getattr(errors, name) for name in named)


def test_a_trainer_needs_no_daemon_module() -> None:
    code = "import loader_client, sys; assert not [name for name in sys.modules if 'loader_service.daemon' in name]"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
