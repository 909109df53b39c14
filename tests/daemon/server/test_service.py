"""The daemon as a whole, in this process: it is ready or has failed with one error, and leaves nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import loader_client
from loader_service.daemon.config.load import Config
from loader_service.daemon.server.service import Service
from loader_service.errors import FactoryError, LoaderServiceError, MemoryLimitError

STREAM = {"factory": "loader_service.data:synthetic_lines", "args": {"count": 20, "batch_size": 4}, "prefetch": 4}


def service(directory: Path, ready: Callable[[str], None], stream: dict[str, Any] = STREAM, **server: Any) -> Service:
    endpoint = {"endpoint": f"ipc://{directory}/run/daemon.sock", "workers": 1}
    return Service(Config.of({"server": endpoint | server, "streams": {"s": stream}}), ready)


def left(directory: Path) -> list[str]:
    return [path.name for path in (directory / "run").iterdir()]


def test_it_serves_tells_its_state_and_ends_when_it_is_told_to(tmp_path: Path) -> None:
    told: dict[str, Any] = {}
    clients: list[threading.Thread] = []

    def use(endpoint: str) -> None:
        with loader_client.connect(endpoint) as client:
            with client.open("s", start_step=3) as consumer:
                told["step"] = next(consumer).step
                told["status"] = client.status()
            client.stop_service()

    def ready(endpoint: str) -> None:
        clients.append(threading.Thread(target=use, args=(endpoint,)))
        clients[0].start()

    assert service(tmp_path, ready).run() == 0
    clients[0].join(20)
    assert told["step"] == 3
    status = told["status"]
    assert [stream["name"] for stream in status["streams"]] == ["s"]
    assert [worker["state"] for worker in status["workers"]] == ["ready"]
    assert [consumer["stream"] for consumer in status["consumers"]] == ["s"]
    assert status["memory_bytes"] > 0
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("stream", "server", "error"),
    [
        (STREAM | {"factory": "loader_service.data:no_such_factory"}, {}, FactoryError),
        (STREAM, {"memory_limit": "4KiB"}, MemoryLimitError),
    ],
)
def test_what_keeps_it_from_starting_is_raised_and_nothing_is_left(
    stream: dict[str, Any], server: dict[str, Any], error: type[LoaderServiceError], tmp_path: Path
) -> None:
    served: list[str] = []
    with pytest.raises(error):
        service(tmp_path, served.append, stream, **server).run()
    assert served == []
    assert left(tmp_path) == []


def test_one_that_is_stopped_before_it_is_ready_never_serves(tmp_path: Path) -> None:
    served: list[str] = []
    one = service(tmp_path, served.append)
    one.stop("the test")
    assert one.run() == 0
    assert served == []
    assert left(tmp_path) == []
