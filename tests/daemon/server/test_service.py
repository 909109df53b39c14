"""The daemon as a whole, in this process: it is ready, or has failed with one error, and leaves nothing."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import loader_client
from loader_service.daemon.config.load import Config
from loader_service.daemon.server.service import Service
from loader_service.daemon.server.shared_memory import identity
from loader_service.errors import AlreadyRunningError, FactoryError, LoaderServiceError, MemoryLimitError


def config(directory: Path, factory: str = "small", **server: Any) -> Config:
    server = {"workers": 0, "endpoint": f"ipc://{directory}/run/x.sock", **server}
    return Config.of(
        {"server": server, "streams": {"s": {"factory": f"tests.daemon.streams:{factory}", "prefetch": 2}}}
    )


def left(directory: Path) -> list[str]:
    """Whatever of the daemon is still there."""
    segments = [path.name for path in Path("/dev/shm").glob(f"{identity(os.getpid())}-*")]
    return segments + [path.name for path in directory.rglob("*") if not path.is_dir()]


def test_it_serves_until_it_is_told_to_end_and_leaves_nothing(tmp_path: Path) -> None:
    told: list[object] = []

    def use(endpoint: str) -> None:
        with loader_client.connect(endpoint) as client:
            with client.open("s", 0, 3) as consumer:
                told.extend(batch.step for batch in consumer)
            told.append([one["name"] for one in client.status()["streams"]])
            client.stop_service()

    threads: list[threading.Thread] = []

    def ready(endpoint: str) -> None:
        threads.append(threading.Thread(target=use, args=(endpoint,)))
        threads[0].start()

    before = signal.getsignal(signal.SIGUSR2)
    assert Service(config(tmp_path), ready).run() == 0
    threads[0].join(60)
    assert told == [0, 1, 2, ["s"]]
    assert left(tmp_path) == []
    assert signal.getsignal(signal.SIGUSR2) == before


@pytest.mark.parametrize(
    ("changes", "error"),
    [({"factory": "missing"}, FactoryError), ({"memory_limit": 1}, MemoryLimitError)],
)
def test_what_keeps_it_from_starting_is_one_error_and_nothing_is_left(
    tmp_path: Path, changes: dict[str, Any], error: type[LoaderServiceError]
) -> None:
    with pytest.raises(error):
        Service(config(tmp_path, **changes), lambda endpoint: None).run()
    assert left(tmp_path) == []


def test_one_endpoint_has_one_daemon(tmp_path: Path) -> None:
    errors: list[LoaderServiceError] = []

    def ready(endpoint: str) -> None:
        with pytest.raises(AlreadyRunningError) as caught:
            Service(config(tmp_path), lambda endpoint: None).run()
        errors.append(caught.value)
        first.stop("the test is done")

    first = Service(config(tmp_path), ready)
    assert first.run() == 0
    assert f"pid {os.getpid()}" in errors[0].message
    assert left(tmp_path) == []
