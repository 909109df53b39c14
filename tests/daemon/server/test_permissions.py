"""Permissions: modes of directory, socket and segments, for the user alone and with a group."""

from __future__ import annotations

import grp
import os
import stat
import tempfile
from pathlib import Path

import pytest

from loader_service.daemon.server.permissions import Permissions
from loader_service.errors import ConfigurationError, EndpointError
from loader_service.wire.endpoint import runtime_directory

OWN_GROUP = grp.getgrgid(os.getegid()).gr_name


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("group", "directory", "socket", "segment"), [("", 0o700, 0o600, 0o600), (OWN_GROUP, 0o750, 0o660, 0o640)]
)
def test_each_file_has_its_mode(group: str, directory: int, socket: int, segment: int, tmp_path: Path) -> None:
    permissions, path, file = Permissions.of(group), tmp_path / "run", tmp_path / "run" / "file"
    permissions.make_directory(path)
    assert mode(path) == directory
    file.touch()
    permissions.open_socket(file)
    assert mode(file) == socket
    with tempfile.TemporaryFile() as memory:
        os.fchmod(memory.fileno(), 0o600)
        permissions.open_segment(memory.fileno())
        assert stat.S_IMODE(os.fstat(memory.fileno()).st_mode) == segment


def test_a_group_owns_what_it_may_enter(tmp_path: Path) -> None:
    Permissions.of(OWN_GROUP).make_directory(tmp_path / "run")
    assert (tmp_path / "run").stat().st_gid == os.getegid()


@pytest.mark.parametrize("group", ["no-such-group", "no\0such"])
def test_a_group_that_is_not_there_is_refused(group: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Permissions.of(group)
    assert repr(group) in refused.value.message


def test_a_group_of_others_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getegid", lambda: 1000)
    monkeypatch.setattr(os, "getgroups", lambda: [1000])
    with pytest.raises(ConfigurationError) as refused:
        Permissions.of(grp.getgrgid(0).gr_name)
    assert "1000" in refused.value.message


def test_a_group_cannot_share_the_directory_of_the_user_alone() -> None:
    with pytest.raises(EndpointError) as refused:
        Permissions.of(OWN_GROUP).make_directory(runtime_directory())
    assert str(runtime_directory()) in refused.value.message


def test_a_directory_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "open"
    path.mkdir()
    path.chmod(0o755)
    with pytest.raises(EndpointError) as refused:
        Permissions().make_directory(path)
    assert str(path) in refused.value.message
