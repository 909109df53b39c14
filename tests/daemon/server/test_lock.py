"""One daemon to an endpoint: the lock that dies with its holder, and what the next one makes of its leavings."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from loader_service.daemon.server.lock import EndpointLock
from loader_service.errors import AlreadyRunningError, EndpointError

HOLDER = """
import socket, sys
from pathlib import Path
from loader_service.daemon.server.lock import EndpointLock
path = Path(sys.argv[1])
lock = EndpointLock(path, "lsv-of-the-holder")
listening = socket.socket(socket.AF_UNIX)
listening.bind(str(path))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The place of the daemon's socket."""
    return tmp_path / "daemon.sock"


def lock_file(path: Path) -> Path:
    return path.with_name("daemon.sock.lock")


def stale_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


def test_the_lock_names_its_holder_to_its_user_alone(path: Path) -> None:
    lock = EndpointLock(path, "lsv-mine")
    assert lock.predecessor is None
    assert json.loads(lock_file(path).read_text()) == {"pid": os.getpid(), "identity": "lsv-mine"}
    assert stat.S_IMODE(lock_file(path).stat().st_mode) == 0o600
    lock.release()
    assert list(path.parent.iterdir()) == []


def test_a_second_one_is_told_who_has_it_and_changes_nothing(path: Path) -> None:
    lock = EndpointLock(path, "lsv-mine")
    stale_socket(path)
    before = lock_file(path).read_bytes()
    for _ in range(2):
        with pytest.raises(AlreadyRunningError, match=rf"{path} already: running, pid {os.getpid()}; .*service stop`"):
            EndpointLock(path, "lsv-other")
    assert lock_file(path).read_bytes() == before
    assert path.exists()
    lock.release()
    EndpointLock(path, "lsv-other").release()


def test_locks_of_two_endpoints_are_apart(path: Path) -> None:
    locks = [EndpointLock(path.with_name(name), "lsv-mine") for name in ("one.sock", "two.sock")]
    for lock in locks:
        lock.release()


def test_a_killed_holder_is_succeeded_and_its_socket_removed(path: Path) -> None:
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(AlreadyRunningError, match=f"running, pid {process.pid};"):
        EndpointLock(path, "lsv-mine")
    process.kill()
    process.communicate()
    assert path.exists()
    lock = EndpointLock(path, "lsv-mine")
    assert lock.predecessor == "lsv-of-the-holder"
    assert not path.exists()
    lock.release()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"null", b"3", b"{}", b'{"pid": 1}', b"x" * 10_000])
def test_a_lock_file_without_sense_names_no_predecessor(path: Path, content: bytes) -> None:
    lock_file(path).write_bytes(content)
    lock = EndpointLock(path, "lsv-mine")
    assert lock.predecessor is None
    assert json.loads(lock_file(path).read_text())["identity"] == "lsv-mine"
    lock.release()


@pytest.mark.parametrize("kind", ["file", "directory", "link", "fifo"])
def test_what_is_no_socket_is_not_removed(path: Path, kind: str) -> None:
    if kind == "file":
        path.write_bytes(b"precious")
    elif kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("elsewhere")
    for _ in range(2):  # the lock was let go: the second try meets the same error
        with pytest.raises(EndpointError, match=f"{path} exists and is no socket; remove it, or choose another"):
            EndpointLock(path, "lsv-mine")
    assert path.is_symlink() or path.is_dir() or path.is_fifo() or path.read_bytes() == b"precious"
    assert not lock_file(path).exists()


@pytest.mark.parametrize("kind", ["directory", "link", "missing parent"])
def test_a_lock_file_that_cannot_be_opened_is_told(path: Path, kind: str) -> None:
    if kind == "directory":
        lock_file(path).mkdir()
    elif kind == "link":
        lock_file(path).symlink_to("target")
    else:
        path = path.parent / "missing" / "daemon.sock"
    with pytest.raises(EndpointError, match=f"the lock file {lock_file(path)} cannot be opened: "):
        EndpointLock(path, "lsv-mine")
    assert not (path.parent / "target").exists()


@pytest.mark.parametrize("kind", ["fifo", "second name", "somebody else's"])
def test_a_lock_file_that_is_something_else_is_refused_and_left(
    path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = path.parent / "precious"
    precious.write_bytes(b"precious")
    if kind == "fifo":
        os.mkfifo(lock_file(path))
    elif kind == "second name":
        os.link(precious, lock_file(path))
    else:
        lock_file(path).touch()
        me = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: me + 1)
    with pytest.raises(EndpointError, match=f"the lock file {lock_file(path)} is no regular file of user"):
        EndpointLock(path, "lsv-mine")
    assert precious.read_bytes() == b"precious"
    assert lock_file(path).exists()


def test_a_socket_at_which_somebody_listens_is_not_taken_from_them(path: Path) -> None:
    """A daemon whose lock file a clean-up has removed serves on."""
    with socket.socket(socket.AF_UNIX) as neighbour:
        neighbour.bind(str(path))
        neighbour.listen(0)
        for _ in range(3):  # by the third it has no room for one more caller
            with pytest.raises(EndpointError, match=f"a process listens at {path}"):
                EndpointLock(path, "lsv-mine")
        assert path.is_socket()
    EndpointLock(path, "lsv-mine").release()


def test_a_socket_that_cannot_be_removed_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale_socket(path)

    def refuse(self: Path, missing_ok: bool = False) -> None:
        if self == path:
            raise PermissionError(13, "Permission denied")
        os.unlink(self)

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(EndpointError, match=f"what stands at {path} cannot be replaced: Permission denied"):
        EndpointLock(path, "lsv-mine")
    assert path.is_socket()


def test_a_lock_file_removed_by_its_last_holder_meanwhile_is_not_taken_for_the_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was opened, its holder ended and removed it, then it was locked: a third one would lock another file."""
    real, calls = fcntl.flock, list[int]()

    def flock(fd: int, operation: int) -> None:
        if not calls:
            lock_file(path).unlink()
        elif len(calls) == 1:
            lock_file(path).unlink()
            lock_file(path).touch()
        calls.append(fd)
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = EndpointLock(path, "lsv-mine")
    monkeypatch.undo()
    assert len(calls) == 3
    with pytest.raises(AlreadyRunningError):
        EndpointLock(path, "lsv-other")
    lock.release()
    assert list(path.parent.iterdir()) == []


def test_among_many_that_come_and_go_one_at_a_time_has_it(path: Path) -> None:
    holders, most, taken = list[int](), list[int](), list[int]()

    def contend(number: int) -> None:
        for _ in range(60):
            try:
                lock = EndpointLock(path, f"lsv-{number}")
            except AlreadyRunningError:
                continue
            holders.append(number)
            most.append(len(holders))
            holders.remove(number)
            lock.release()
            taken.append(number)

    threads = [threading.Thread(target=contend, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken
    assert set(most) == {1}


def test_a_lock_whose_place_another_has_taken_is_not_removed(path: Path) -> None:
    """A clean-up emptied the directory, and another daemon has come since."""
    first = EndpointLock(path, "lsv-first")
    lock_file(path).unlink()
    assert not first.is_ours
    second = EndpointLock(path, "lsv-second")
    first.release()
    assert second.is_ours
    with pytest.raises(AlreadyRunningError):
        EndpointLock(path, "lsv-third")
    second.release()
    assert not lock_file(path).exists()


def test_a_lock_file_that_cannot_be_written_is_a_clear_error_and_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(EndpointError, match="cannot be written: No space left"):
        EndpointLock(path, "lsv-mine")
    assert not lock_file(path).exists()
    assert len(os.listdir("/proc/self/fd")) == before
