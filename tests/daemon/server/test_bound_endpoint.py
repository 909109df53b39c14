"""The daemon's place at its endpoint: kept while somebody cleans up, given up where another daemon has taken it."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from loader_service.daemon.server.bound_endpoint import BoundEndpoint
from loader_service.daemon.server.lock import EndpointLock
from loader_service.daemon.server.permissions import Permissions
from loader_service.errors import AlreadyRunningError


class Place:
    """A bound endpoint whose socket is a file, and how often it was bound."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "run" / "x.sock"
        self.binds = 0
        self.place = BoundEndpoint(f"ipc://{self.path}", "lsv-1-2-3", Permissions())
        self.bind()

    def bind(self) -> None:
        self.binds += 1
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.path))

    def keep(self) -> None:
        self.place.keep(self.path.exists, self.bind)


def test_what_is_in_place_is_left_alone(tmp_path: Path) -> None:
    one = Place(tmp_path)
    one.keep()
    assert one.binds == 1
    one.place.release()
    assert list(one.path.parent.iterdir()) == []


@pytest.mark.parametrize("what", ["socket", "directory", "lock"])
def test_what_somebody_removed_is_there_again(tmp_path: Path, what: str) -> None:
    one = Place(tmp_path)
    if what == "directory":
        shutil.rmtree(one.path.parent)
    else:
        one.path.unlink()
    if what == "lock":
        one.path.with_name("x.sock.lock").unlink()
    one.keep()
    assert (one.binds, one.path.exists()) == (2, True)
    with pytest.raises(AlreadyRunningError):
        EndpointLock(one.path, "another")
    one.place.release()
    assert list(one.path.parent.iterdir()) == []


def test_where_another_daemon_came_meanwhile_the_place_is_its(tmp_path: Path) -> None:
    one = Place(tmp_path)
    shutil.rmtree(one.path.parent)
    one.path.parent.mkdir(mode=0o700)
    other = EndpointLock(one.path, "another")
    with pytest.raises(AlreadyRunningError):
        one.keep()
    one.place.release()
    assert other.is_ours
    other.release()
