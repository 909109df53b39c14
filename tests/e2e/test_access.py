"""Access to a daemon: its user alone, or a configured group; and what may stand where its files are to be."""

from __future__ import annotations

import grp
import os
import shutil
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import loader_client
from loader_service.daemon.server.permissions import Permissions
from loader_service.errors import ConfigurationError, EndpointError
from tests.e2e.harness import ROOT, digests, eventually
from tests.e2e.serving import segments, serving
from tests.e2e.streams import small

AS_MEMBER = """
import os, sys
import _posixshmem, encodings.idna, hashlib, loader_client, loader_client.aio, numpy, zmq.utils.monitor
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(65534)
with loader_client.connect(sys.argv[1], timeout_s=float(sys.argv[3])) as client, client.open("s", 0, 5) as consumer:
    print(*(batch.digest() for batch in consumer))
"""


def own_group() -> tuple[str, int]:
    """A group that this process may give files to, by name: any for root, who has no need to be in it."""
    gid = 1 if os.geteuid() == 0 else os.getegid()
    try:
        return grp.getgrgid(gid).gr_name, gid
    except KeyError:
        pytest.skip("the group has no name")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes(pid: int) -> set[int]:
    """The modes of a daemon's segments; one that is given up meanwhile has none."""
    found: set[int] = set()
    for path in segments(pid):
        with suppress(FileNotFoundError):
            found.add(mode(path))
    return found


def test_a_group_may_enter_connect_and_read(tmp_path: Path) -> None:
    name, gid = own_group()
    directory = tmp_path / "shared"
    server = f"group = '{name}'\nendpoint = 'ipc://{directory}/x.sock'"
    with serving(tmp_path, server=server) as daemon:
        found = [directory, directory / "x.sock", *segments(daemon.pid)]
        assert [mode(path) for path in found] == [0o750, 0o660] + [0o640] * 4
        assert {path.stat().st_gid for path in found} == {gid}
        assert mode(directory / "x.sock.lock") == 0o600
        with loader_client.connect(f"ipc://{directory}/x.sock") as client, client.open("s", 0, 5) as consumer:
            assert next(consumer).digest() == digests(small(), 0, 1)[0]
            eventually(lambda: modes(daemon.pid) == {0o640}, "modes of the ring that it reads, once that is made")
            assert [batch.digest() for batch in consumer] == digests(small(), 1, 5)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user_of_the_group_reads_and_one_who_is_not_in_it_does_not() -> None:
    name, gid = own_group()
    directory = Path(f"/tmp/loader-service-test-{os.getpid()}")
    directory.mkdir(mode=0o755)
    try:
        endpoint = f"ipc://{directory}/shared/x.sock"
        with serving(directory, server=f"group = '{name}'\nendpoint = '{endpoint}'") as daemon:
            for member, code, timeout_s in ((gid, 0, "30"), (65534, 1, "2")):
                done = subprocess.run(
                    [sys.executable, "-c", AS_MEMBER, endpoint, str(member), timeout_s],
                    capture_output=True,
                    text=True,
                    cwd=ROOT,
                )
                assert done.returncode == code, done.stderr
                assert done.stdout.split() == (digests(small(), 0, 5) if code == 0 else [])
            daemon.terminate()
            daemon.wait(20)
    finally:
        shutil.rmtree(directory)


def test_a_group_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"\[server\] group is 'no-such-group', and this machine has no such"):
        Permissions.of("no-such-group")


def test_a_group_that_the_user_is_not_in_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    name, gid = own_group()
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    monkeypatch.setattr(os, "getegid", lambda: gid + 1)
    monkeypatch.setattr(os, "getgroups", list)
    with pytest.raises(ConfigurationError, match=f"group is {name!r}, and the daemon's user 4321 is not in it"):
        Permissions.of(name)
    monkeypatch.setattr(os, "getgroups", lambda: [gid])
    assert Permissions.of(name).gid == gid


def test_a_group_needs_a_directory_that_it_can_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(EndpointError, match=r"cannot enter .*; give \[server\] endpoint .* that they can reach"):
        Permissions(1, "daemon").make_directory(tmp_path / "loader-service")
    assert not (tmp_path / "loader-service").exists()


@pytest.mark.parametrize(
    ("what", "name"),
    [("file", "default.sock")]  # which is what a lock file is
    + [(what, name) for what in ("directory", "link", "fifo") for name in ("default.sock", "default.sock.lock")],
)
def test_what_stands_in_the_place_of_socket_or_lock_is_refused_and_left(tmp_path: Path, what: str, name: str) -> None:
    (tmp_path / "loader-service").mkdir(mode=0o700)
    place, target = tmp_path / "loader-service" / name, tmp_path / "target"
    target.write_text("mine")
    if what == "file":
        place.write_text("mine")
    elif what == "directory":
        place.mkdir()
    elif what == "link":
        place.symlink_to(target)
    else:
        os.mkfifo(place)
    before = os.lstat(place)
    done = serve(tmp_path)
    assert done.returncode == 1
    assert str(place) in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert os.path.samestat(os.lstat(place), before)
    assert target.read_text() == "mine"


def serve(directory: Path, server: str = "") -> subprocess.CompletedProcess[str]:
    """`serve`, which is to fail."""
    path = directory / "loader.toml"
    path.write_text(f"[server]\n{server}\n[streams.s]\nfactory = 'tests.e2e.streams:small'\n")
    return subprocess.run(
        [sys.executable, "-m", "loader_service", "serve", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "XDG_RUNTIME_DIR": str(directory)},
    )


def test_a_link_in_the_place_of_the_runtime_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "loader-service").symlink_to("elsewhere")
    done = serve(tmp_path)
    assert done.returncode == 1
    assert "Not a directory" in done.stderr
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loader-service").mkdir(mode=0o500)
    done = serve(tmp_path)
    assert done.returncode == 1
    assert "Permission denied" in done.stderr


@pytest.mark.parametrize(
    ("server", "text"), [("group = 'no-such-group'", "has no such group"), ("group = 3", "group is 3")]
)
def test_a_group_that_cannot_be_is_a_mistake_in_the_configuration(tmp_path: Path, server: str, text: str) -> None:
    done = serve(tmp_path, server)
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr
