"""A daemon that belongs to another process: its configuration comes over a socket, and it ends with its owner."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loader_service.errors import FactoryError, from_record

ROOT = Path(__file__).resolve().parents[3]


@contextmanager
def embedded(factory: str, directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """The process, and its owner's end."""
    directory.mkdir(mode=0o700)
    endpoint = f"ipc://{directory}/daemon.sock"
    server = {"workers": 0, "endpoint": endpoint, "import_paths": [str(ROOT)]}
    config = {"server": server, "streams": {"s": {"factory": f"tests.daemon.streams:{factory}", "slot_bytes": 4096}}}
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-P", "-m", "loader_service.daemon.server.embedded", str(theirs.fileno())]
    with ours, subprocess.Popen(command, pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        try:
            ours.sendall(json.dumps({"config": config, "directory": str(directory)}).encode() + b"\n")
            yield process, ours
        finally:
            process.kill()


def said(owner: socket.socket) -> dict[str, Any]:
    with owner.makefile("rb") as lines:
        content: dict[str, Any] = json.loads(lines.readline())
        return content


def test_it_tells_its_endpoint_and_ends_with_its_owner_and_its_directory_with_it(tmp_path: Path) -> None:
    with embedded("small", tmp_path / "run") as (process, owner):
        assert said(owner) == {"endpoint": f"ipc://{tmp_path}/run/daemon.sock"}
        owner.shutdown(socket.SHUT_RDWR)
        assert process.wait(60) == 0
    assert not (tmp_path / "run").exists()


def test_it_tells_the_error_that_keeps_it_from_starting(tmp_path: Path) -> None:
    with embedded("missing", tmp_path / "run") as (process, owner):
        error = from_record(said(owner)["error"])
        assert process.wait(60) == 1
    assert type(error) is FactoryError
    assert not (tmp_path / "run").exists()


def test_an_owner_that_ends_before_it_said_what_to_serve_leaves_no_traceback() -> None:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-P", "-m", "loader_service.daemon.server.embedded", str(theirs.fileno())]
    with theirs, subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE) as process:
        theirs.close()
        ours.sendall(b'{"config": ')
        ours.close()
        assert process.communicate(timeout=60)[1] == b""
        assert process.returncode == 0
