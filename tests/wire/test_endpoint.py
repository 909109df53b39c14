"""Endpoints: where a daemon listens by default, and what is refused."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from loader_service.errors import EndpointError
from loader_service.wire.endpoint import (
    ENVIRONMENT_VARIABLE,
    check_trusted,
    default_endpoint,
    make_private_directory,
    runtime_directory,
    socket_path,
)


@pytest.fixture(autouse=True)
def _no_endpoint_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)


def test_the_default_lies_in_the_runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert runtime_directory() == tmp_path / "loader-service"
    assert default_endpoint() == f"ipc://{tmp_path}/loader-service/default.sock"
    assert socket_path(default_endpoint()) == tmp_path / "loader-service" / "default.sock"


def test_the_environment_overrides_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "ipc:///somewhere/else.sock")
    assert default_endpoint() == "ipc:///somewhere/else.sock"


def test_an_empty_variable_overrides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "")
    assert default_endpoint() == f"ipc://{tmp_path}/loader-service/default.sock"


@pytest.mark.parametrize("unusable", ["", "relative", ".", "/does/not/exist"])
def test_a_runtime_directory_that_cannot_be_used_is_passed_over(
    unusable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The specification of XDG_RUNTIME_DIR has relative paths ignored."""
    (tmp_path / "relative").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", unusable)
    expected = [Path(f"/run/user/{os.getuid()}/loader-service")]
    expected += [Path(tempfile.gettempdir()) / f"loader-service-{os.getuid()}"]
    assert runtime_directory() in expected


def test_without_any_runtime_directory_it_is_the_temporary_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert runtime_directory() == tmp_path / f"loader-service-{os.getuid()}"


@pytest.mark.parametrize("variable", ["XDG_RUNTIME_DIR", "TMPDIR"])
def test_a_directory_whose_sockets_would_have_too_long_a_path_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """As a batch system's TMPDIR may be; what is short is left as it is."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(os, "getuid", lambda: 4321)  # whose /run/user there is not
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setenv(variable, str(long))
    assert runtime_directory() == Path("/tmp/loader-service-4321")
    assert default_endpoint() == "ipc:///tmp/loader-service-4321/default.sock"


def test_a_longer_name_needs_a_shorter_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    room = 103 - len(str(tmp_path / "loader-service")) - 1
    assert runtime_directory("x" * room) == tmp_path / "loader-service"
    assert runtime_directory("x" * (room + 1)) != tmp_path / "loader-service"


@pytest.mark.parametrize(
    "path", ["/a", "/run/user/1000/x.sock", "/with blank/ü.sock", "/a//b", "/a/../b", "/" + "x" * 102, "/" + "é" * 51]
)
def test_an_absolute_path_is_an_endpoint(path: str) -> None:
    assert socket_path(f"ipc://{path}") == Path(path)


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "ipc://",
        "ipc:///",
        "ipc://relative.sock",
        "ipc://./relative.sock",
        "ipc://@abstract",
        "ipc://*",
        "ipc:/one/slash",
        "IPC:///capitals",
        " ipc:///blank",
        "/no/scheme",
        "tcp://127.0.0.1:5555",
        "inproc://name",
        "ipc:///a/directory/",
        "ipc:///a\0b",
        "ipc:///not-\udcff-utf-8",
    ],
)
def test_what_is_no_file_of_this_machine_is_refused(endpoint: str) -> None:
    with pytest.raises(EndpointError, match="must be ipc:// with the absolute path of a file") as caught:
        socket_path(endpoint)
    assert repr(endpoint) in str(caught.value)


@pytest.mark.parametrize("path", ["/" + "x" * 103, "/" + "é" * 52, "/" + "x" * 5000])
def test_a_path_longer_than_a_socket_may_have_is_refused(path: str) -> None:
    length = len(path.encode())
    with pytest.raises(EndpointError, match=f"has {length} bytes of path; a socket's path may have 103"):
        socket_path(f"ipc://{path}")


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_directory_is_made_for_its_user_alone(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        make_private_directory(tmp_path / "parent" / "private")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "parent" / "private").stat().st_mode) == 0o700


def test_a_private_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    for _ in range(2):
        make_private_directory(tmp_path / "private")


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o750, 0o755, 0o770, 0o777, 0o1777])
def test_a_directory_that_others_may_enter_is_refused(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "open"
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(EndpointError, match=rf"{directory} has owner \d+ and mode {mode:04o}; it must be .* 0700"):
        make_private_directory(directory)
    assert stat.S_IMODE(directory.stat().st_mode) == mode


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_private_directory(tmp_path / "private")
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    with pytest.raises(EndpointError, match=f"has owner {me} and mode 0700; it must be a directory of user {me + 1}"):
        make_private_directory(tmp_path / "private")


def test_a_link_to_a_private_directory_is_refused(tmp_path: Path) -> None:
    make_private_directory(tmp_path / "private")
    (tmp_path / "link").symlink_to(tmp_path / "private")
    with pytest.raises(EndpointError, match=r"cannot be made or used: .*Not a directory"):
        make_private_directory(tmp_path / "link")


def test_a_link_to_nothing_is_refused_and_nothing_made(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(EndpointError, match="cannot be made"):
        make_private_directory(tmp_path / "link")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("below", [".", "below"])
def test_a_file_in_the_way_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    with pytest.raises(EndpointError, match="cannot be made"):
        make_private_directory(tmp_path / "file" / below)
    assert (tmp_path / "file").read_bytes() == b"precious"


# --- a group ---------------------------------------------------------------------------------------------


def test_a_directory_for_a_group_is_made_for_it_to_enter_and_taken_as_it_is(tmp_path: Path) -> None:
    gid = other_group()
    for _ in range(2):
        make_private_directory(tmp_path / "shared", gid)
    found = (tmp_path / "shared").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o750, gid)


def other_group() -> int:
    """A group that this process may give files to: any for root, else one of its own."""
    return 1 if os.geteuid() == 0 else os.getegid()


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o770, 0o751, 0o740])
def test_a_directory_that_is_not_as_the_group_needs_it_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "shared").mkdir()
    os.chown(tmp_path / "shared", -1, gid := other_group())
    (tmp_path / "shared").chmod(mode)
    with pytest.raises(EndpointError, match=rf"and mode {mode:04o}; it must be .* and group {gid} with mode 0750"):
        make_private_directory(tmp_path / "shared", gid)
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to any group")
def test_a_directory_of_another_group_is_refused(tmp_path: Path) -> None:
    make_private_directory(tmp_path / "shared", 1)
    with pytest.raises(EndpointError, match=r"group 1 and mode 0750; it must be .* group 2"):
        make_private_directory(tmp_path / "shared", 2)


def test_a_directory_that_everybody_may_replace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(EndpointError, match=r"everybody may replace .* mode 0777; take that from it"):
        make_private_directory(tmp_path / "open" / "private")
    (tmp_path / "open").chmod(0o1777)
    make_private_directory(tmp_path / "open" / "private")


@pytest.mark.parametrize("check", [lambda: make_private_directory(Path("/tmp")), lambda: check_trusted(Path("/tmp/x"))])
def test_a_socket_in_the_temporary_directory_itself_is_refused_with_one_below_it(
    check: Callable[[], None],
) -> None:
    with pytest.raises(EndpointError, match=r"a directory of its own, such as ipc:///tmp/NAME/x"):
        check()


# --- before a client connects ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o755, 0o711])
def test_a_client_trusts_its_users_directory_and_one_that_is_not_there_yet(tmp_path: Path, mode: int) -> None:
    check_trusted(tmp_path / "own" / "x.sock")
    (tmp_path / "own").mkdir()
    (tmp_path / "own").chmod(mode)
    check_trusted(tmp_path / "own" / "x.sock")
    (tmp_path / "link").symlink_to("own")
    check_trusted(tmp_path / "link" / "x.sock")


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777, 0o720])
def test_a_client_refuses_a_directory_where_others_could_have_put_the_socket(tmp_path: Path, mode: int) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own").chmod(mode)
    with pytest.raises(EndpointError, match=rf"mode {mode:04o}: others could have put a socket there"):
        check_trusted(tmp_path / "own" / "x.sock")


@pytest.mark.parametrize(("mode", "groups", "trusted"), [(0o750, "mine", True), (0o750, "not mine", False)])
@pytest.mark.parametrize("spoiled", [0, 0o020, 0o005])
def test_a_client_trusts_the_directory_of_a_daemon_that_serves_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, groups: str, trusted: bool, spoiled: int
) -> None:
    make_private_directory(tmp_path / "shared", gid := other_group())
    (tmp_path / "shared").chmod(mode | spoiled)
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1 if me else 12345)
    monkeypatch.setattr(os, "getegid", lambda: gid if groups == "mine" else gid + 1)
    monkeypatch.setattr(os, "getgroups", list)
    real = os.stat

    def of_somebody(path: Path) -> os.stat_result:
        found = list(real(path))
        found[4] = 4321  # st_uid
        return os.stat_result(found)

    monkeypatch.setattr(os, "stat", of_somebody)
    if trusted and not spoiled:
        check_trusted(tmp_path / "shared" / "x.sock")
    else:
        with pytest.raises(EndpointError, match="has owner 4321"):
            check_trusted(tmp_path / "shared" / "x.sock")


def test_the_default_directory_must_be_the_users_own_also_for_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    make_private_directory(runtime_directory(), other_group())
    me = os.getuid()
    check_trusted(socket_path(default_endpoint()))
    if me:
        monkeypatch.setattr(os, "getuid", lambda: me + 1)
        with pytest.raises(EndpointError, match="others could have put"):
            check_trusted(socket_path(default_endpoint()))
