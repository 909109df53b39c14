"""A daemon that belongs to another process: one line in, one line out, and it ends with its owner."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loader_service.errors import FactoryError, from_record

DEADLINE_S = 60.0
STREAMS = {"s": {"factory": "loader_service.data:synthetic_lines", "args": {"count": 20, "batch_size": 4}}}


class Owner:
    """A daemon's owner, as `LocalService` is one."""

    def __init__(self, directory: Path | None, config: dict[str, Any]) -> None:
        self.connection, theirs = socket.socketpair()
        self.connection.settimeout(DEADLINE_S)
        command = [sys.executable, "-m", "loader_service.daemon.server.embedded", str(theirs.fileno())]
        with theirs:
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        given = {"config": config, "directory": None if directory is None else str(directory)}
        self.connection.sendall(json.dumps(given).encode() + b"\n")
        with self.connection.makefile("rb") as lines:
            self.said: dict[str, Any] = json.loads(lines.readline())

    def end(self) -> int:
        self.connection.close()
        return self.process.wait(DEADLINE_S)


@pytest.fixture
def owners() -> Iterator[list[Owner]]:
    made: list[Owner] = []
    yield made
    for one in made:
        one.process.kill()
        one.end()


def config(directory: Path, **streams: Any) -> dict[str, Any]:
    return {"server": {"workers": 1, "endpoint": f"ipc://{directory}/daemon.sock"}, "streams": streams or STREAMS}


def test_it_says_where_it_serves_and_ends_with_its_owner_and_the_directory_with_it(
    tmp_path: Path, owners: list[Owner]
) -> None:
    directory = tmp_path / "run"
    owner = Owner(directory, config(directory))
    owners.append(owner)
    assert owner.said == {"endpoint": f"ipc://{directory}/daemon.sock"}
    assert (directory / "daemon.sock").is_socket()
    assert owner.end() == 0
    assert not directory.exists()


def test_what_keeps_it_from_starting_is_said_and_it_ends(tmp_path: Path, owners: list[Owner]) -> None:
    owner = Owner(None, config(tmp_path / "run", s={"factory": "loader_service.data:no_such_factory"}))
    owners.append(owner)
    error = from_record(owner.said["error"])
    assert isinstance(error, FactoryError)
    assert "no_such_factory" in error.message
    assert owner.process.wait(DEADLINE_S) == 1
