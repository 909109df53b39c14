"""A daemon of one's own: it starts, ends with its owner, and tells at once what keeps it from starting."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

import loader_client
from loader_service import LocalService
from loader_service.errors import ConfigurationError, FactoryError
from loader_service.wire.process import start_time

CONFIG: dict[str, Any] = {
    "server": {"workers": 1},
    "streams": {"s": {"factory": "loader_service.data:synthetic_lines", "args": {"count": 20, "batch_size": 4}}},
}


def socket_file(endpoint: str) -> Path:
    return Path(endpoint.removeprefix("ipc://"))


def test_it_serves_in_a_private_directory_that_goes_with_it() -> None:
    with LocalService(CONFIG) as service:
        path = socket_file(service.endpoint)
        assert path.parent.stat().st_mode & 0o777 == 0o700
        with loader_client.connect(service.endpoint) as client:
            assert client.status()["pid"] == service.pid
    assert not path.parent.exists()
    assert service.pid is None


def test_its_text_names_the_streams_and_the_process() -> None:
    service = LocalService(CONFIG)
    assert repr(service) == "LocalService(s; not started)"
    with service:
        assert repr(service) == f"LocalService(s; pid {service.pid} at {service.endpoint})"


def test_an_endpoint_of_the_configuration_is_used(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/run/daemon.sock"
    with LocalService(CONFIG | {"server": {"workers": 1, "endpoint": endpoint}}) as service:
        assert service.endpoint == endpoint
        assert socket_file(endpoint).is_socket()


def test_a_file_is_a_configuration_too(tmp_path: Path) -> None:
    path = tmp_path / "loader.toml"
    path.write_text('[server]\nworkers = 1\n[streams.s]\nfactory = "loader_service.data:synthetic_lines"\n')
    with LocalService(path) as service, loader_client.connect(service.endpoint) as client:
        assert client.streams == ("s",)


def test_stopping_tells_the_exit_code_and_may_be_repeated() -> None:
    service = LocalService(CONFIG).start()
    assert service.stop() == 0
    assert service.stop() is None


def test_one_that_was_killed_is_stopped_like_any_other() -> None:
    service = LocalService(CONFIG).start()
    assert service.pid is not None
    os.kill(service.pid, 9)
    assert service.stop() == -9


def test_a_factory_that_is_not_there_is_told_at_the_start() -> None:
    streams = {"s": {"factory": "loader_service.data:no_such_factory"}}
    service = LocalService(CONFIG | {"streams": streams})
    with pytest.raises(FactoryError, match="no_such_factory"):
        service.start()
    assert service.pid is None


def test_arguments_that_no_file_could_hold_are_refused() -> None:
    streams = {"s": {"factory": "loader_service.data:synthetic_lines", "args": {"seed": object()}}}
    with pytest.raises(ConfigurationError):
        LocalService(CONFIG | {"streams": streams}).start()


def test_one_that_is_dropped_is_stopped_and_warned_of() -> None:
    service = LocalService(CONFIG).start()
    pid = service.pid
    assert pid is not None
    with pytest.warns(ResourceWarning, match="was not stopped"):
        del service
    deadline = time.monotonic() + 20
    while start_time(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert start_time(pid) is None
