"""Shared memory: reserved, limited, named so that a dead daemon's can be told from a living one's, and gone at last."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from loader_service.daemon.server import shared_memory as memory
from loader_service.daemon.server.permissions import Permissions
from loader_service.daemon.server.shared_memory import SharedMemoryAllocator, identity, sweep
from loader_service.errors import MemoryLimitError, SharedMemoryError
from loader_service.wire.process import pid_namespace, start_time

SHM = Path("/dev/shm")
OWNER = """
import sys
from loader_service.daemon.server.shared_memory import SharedMemoryAllocator
allocator = SharedMemoryAllocator()
print(*(allocator.create(4096) for _ in range(int(sys.argv[1]))), flush=True)
sys.stdin.read()
"""


def segments() -> list[str]:
    """List what this process has in /dev/shm."""
    return sorted(path.name for path in SHM.glob(f"{identity(os.getpid())}-*"))


def owner(code: str, *arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def identity_of_the_dead() -> str:
    """The identity of a process that has ended."""
    process = owner("import sys; sys.stdin.read()")
    name = identity(process.pid)
    process.communicate()
    return name


@pytest.fixture
def allocator() -> Iterator[SharedMemoryAllocator]:
    made = SharedMemoryAllocator()
    yield made
    made.close()
    assert segments() == []


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for /dev/shm, where the daemons of other tests sweep too."""
    monkeypatch.setattr(memory, "_DIRECTORY", tmp_path)
    return tmp_path


# --- segments --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [1, 4095, 4096, 4097, 2**20 - 1, 2**20, 2**20 + 1])
def test_every_page_of_a_segment_is_reserved_for_its_user_alone(allocator: SharedMemoryAllocator, nbytes: int) -> None:
    found = (SHM / allocator.create(nbytes)).stat()
    assert found.st_size == nbytes
    assert found.st_blocks * 512 >= nbytes
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert found.st_uid == os.getuid()


def test_segments_have_names_of_their_own(allocator: SharedMemoryAllocator) -> None:
    names = [allocator.create(4096) for _ in range(40)]
    assert len(set(names)) == 40
    assert all(name.startswith(f"{identity(os.getpid())}-") for name in names)
    assert segments() == sorted(names)


def test_the_longest_name_fits_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest pid of Linux, thirty years of uptime in ticks, any namespace, two thousand million segments."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 4194304)
        patch.setattr(memory, "start_time", lambda pid: 10**11)
        patch.setattr(memory, "pid_namespace", lambda: 2**64 - 1 - (2**64 - 1) % 36**4 + 36**4 - 1)
        allocator = SharedMemoryAllocator()
    monkeypatch.setattr(memory, "permute", lambda index, n, key: n - 1)
    name = allocator.create(4096)
    assert (SHM / name).exists()
    assert len(name) == 30
    allocator.close()


def test_retired_segments_are_gone_and_remembered(allocator: SharedMemoryAllocator) -> None:
    kept, gone = allocator.create(4096), allocator.create(8192)
    allocator.retire(gone)
    assert segments() == [kept]
    assert (allocator.used_bytes, allocator.retired) == (4096, [gone])


@pytest.mark.skipif(not hasattr(mmap, "MADV_REMOVE"), reason="only Linux can free pages under a mapping")
@pytest.mark.parametrize("may_be_read", [False, True])
def test_a_retired_segment_keeps_its_memory_only_while_somebody_may_read_it(
    allocator: SharedMemoryAllocator, may_be_read: bool
) -> None:
    """One who idles with it mapped keeps no memory from the others, and reads no wrong bytes, but zeros."""
    name = allocator.create(2**20)
    with (SHM / name).open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        mapping[:4] = b"data"
        allocator.retire(name, may_be_read=may_be_read)
        assert os.fstat(file.fileno()).st_blocks * 512 == (2**20 if may_be_read else 0)
        assert mapping[:4] == (b"data" if may_be_read else bytes(4))
    assert allocator.used_bytes == 0


def test_close_ends_all_and_may_be_repeated(allocator: SharedMemoryAllocator) -> None:
    names = [allocator.create(4096) for _ in range(3)]
    for _ in range(2):
        allocator.close()
    assert segments() == []
    assert allocator.retired == names
    assert allocator.used_bytes == 0


def test_a_segment_that_somebody_removed_is_retired_without_a_word() -> None:
    """Also at the end of the process, where Python's resource tracker would complain of it."""
    code = OWNER + "import pathlib; pathlib.Path('/dev/shm', *allocator._segments).unlink(); allocator.close()"
    out, err = owner(code, "1").communicate()
    assert err == ""
    assert not (SHM / out.strip()).exists()


def test_a_killed_daemons_segments_are_removed_by_the_resource_tracker() -> None:
    process = owner(OWNER, "3")
    assert process.stdout is not None
    names = process.stdout.readline().split()
    assert len(names) == 3
    process.kill()
    process.communicate()  # the tracker holds its standard error until it is done
    assert not any((SHM / name).exists() for name in names)


def test_a_segment_exists_until_somebody_removes_its_name(
    allocator: SharedMemoryAllocator, caplog: pytest.LogCaptureFixture
) -> None:
    kept, lost = allocator.create(4096), allocator.create(4096)
    assert allocator.exists(kept)
    (SHM / lost).unlink()
    assert allocator.exists(kept)
    assert not allocator.exists(lost)
    assert [record.getMessage() for record in caplog.records] == [
        f"segment {lost} was removed from /dev/shm by somebody else; another takes its place"
    ]
    allocator.retire(lost)
    assert (segments(), allocator.used_bytes) == ([kept], 4096)


def test_a_name_that_somebody_else_has_taken_is_as_good_as_gone(
    allocator: SharedMemoryAllocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = allocator.create(4096)
    (SHM / name).rename(SHM / f"{name}-away")
    (SHM / name).write_bytes(bytes(4096))
    try:
        assert not allocator.exists(name)

        def refuse(path: str) -> None:
            raise PermissionError(errno.EPERM, "Operation not permitted", path)

        with monkeypatch.context() as patch:  # what a sticky directory says
            patch.setattr("multiprocessing.shared_memory._posixshmem.shm_unlink", refuse)
            allocator.retire(name)
        assert (segments(), allocator.used_bytes) == ([name, f"{name}-away"], 0)
    finally:
        (SHM / name).unlink()
        (SHM / f"{name}-away").unlink()


def test_where_there_is_no_dev_shm_a_segment_is_taken_to_exist(
    allocator: SharedMemoryAllocator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = allocator.create(4096)
    with monkeypatch.context() as patch:
        patch.setattr(memory, "_DIRECTORY", tmp_path / "missing")
        assert allocator.exists(name)


def test_a_group_may_read_segments_and_nobody_else() -> None:
    gid = 1 if os.geteuid() == 0 else os.getegid()
    shared = SharedMemoryAllocator(access=Permissions(gid, "some"))
    found = (SHM / shared.create(4096)).stat()
    assert (stat.S_IMODE(found.st_mode), found.st_gid, found.st_uid) == (0o640, gid, os.getuid())
    shared.close()
    assert segments() == []


# --- limits ----------------------------------------------------------------------------------------------


def test_the_limit_holds_for_all_segments_together() -> None:
    allocator = SharedMemoryAllocator(3 * 4096)
    first = allocator.create(2 * 4096)
    with pytest.raises(MemoryLimitError, match=r"4097 bytes .* memory_limit = 12288 bytes 4096 are left; close a"):
        allocator.create(4097)
    allocator.create(4096)
    with pytest.raises(MemoryLimitError, match=r"1 bytes .* 12288 bytes 0 are left"):
        allocator.create(1)
    allocator.retire(first)
    allocator.check_ring(2, 4096)
    with pytest.raises(MemoryLimitError, match="8194 bytes"):
        allocator.check_ring(2, 4097)
    allocator.create(2 * 4096)
    allocator.close()
    assert segments() == []


def test_more_than_there_is_is_refused_at_once_with_the_remedy(allocator: SharedMemoryAllocator) -> None:
    needed = (memory.free_bytes() or 0) + 2**40
    for refused in (lambda: allocator.create(needed), lambda: allocator.check_ring(2**10, needed // 2**10 + 1)):
        with pytest.raises(
            SharedMemoryError, match=r"\d+ bytes of shared memory are needed, and /dev/shm has \d+"
        ) as told:
            refused()
        for remedy in (
            "lower prefetch or slot_bytes",
            "mount -o remount,size=",
            "--shm-size",
            "--ipc=host",
            "emptyDir",
        ):
            assert remedy in str(told.value)
    assert (segments(), allocator.used_bytes) == ([], 0)


def test_the_message_names_needed_and_free_bytes(
    allocator: SharedMemoryAllocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 8191)
    with pytest.raises(
        SharedMemoryError, match="8192 bytes of shared memory are needed, and /dev/shm has 8191 bytes f"
    ):
        allocator.create(8192)
    allocator.create(8191)


@pytest.mark.parametrize(
    ("number", "told"),
    [(errno.ENOSPC, "8192 bytes of shared memory are needed, .*--shm-size"), (errno.EIO, "cannot be reserved: ")],
)
def test_memory_that_others_took_meanwhile_leaves_nothing_behind(
    allocator: SharedMemoryAllocator, monkeypatch: pytest.MonkeyPatch, number: int, told: str
) -> None:
    def fail(fd: int, offset: int, nbytes: int) -> None:
        assert (len(segments()), offset, nbytes) == (1, 0, 8192)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.raises(SharedMemoryError, match=told) as caught:
        allocator.create(8192)
    assert isinstance(caught.value, OSError)
    assert (segments(), allocator.used_bytes, allocator.retired) == ([], 0, [])
    monkeypatch.undo()
    allocator.create(8192)


@pytest.mark.parametrize("moment", ["created", "reserved", "refused"])
def test_a_segment_that_is_removed_while_it_is_made_gets_a_successor(
    allocator: SharedMemoryAllocator, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """At each moment of its making; one that is reserved by then is given up when it is looked for."""
    made, fallocate = 0, os.posix_fallocate

    def create(name: str, create: bool, size: int) -> SharedMemory:
        nonlocal made
        made += 1
        segment = SharedMemory(name, create=create, size=size)
        if moment == "created" and made < 4:
            (SHM / name).unlink()
        return segment

    def reserve(fd: int, offset: int, nbytes: int) -> None:
        fallocate(fd, offset, nbytes)
        if moment != "created" and made < 4:
            Path(os.readlink(f"/proc/self/fd/{fd}")).unlink()
        if moment == "refused":
            raise OSError(errno.EIO, "the memory is broken")

    monkeypatch.setattr(memory, "SharedMemory", create)
    monkeypatch.setattr(os, "posix_fallocate", reserve)
    if moment == "refused":
        with pytest.raises(SharedMemoryError, match="cannot be reserved: "):
            allocator.create(8192)
        assert (segments(), allocator.used_bytes) == ([], 0)
        return
    name = allocator.create(8192)
    assert (made, allocator.exists(name)) == ((4, True) if moment == "created" else (1, False))
    assert allocator.used_bytes == 8192


@pytest.mark.parametrize("what", ["link", "directory", "pipe", "another user's"])
def test_a_name_that_is_taken_while_its_segment_is_made_is_left_to_whoever_took_it(
    allocator: SharedMemoryAllocator, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if what == "another user's" and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    taken: list[Path] = []

    def create(name: str, create: bool, size: int) -> SharedMemory:
        segment = SharedMemory(name, create=create, size=size)
        if len(taken) < 3:
            path = SHM / name
            path.unlink()
            if what == "link":
                path.symlink_to("/dev/null")
            elif what == "directory":
                path.mkdir()
            else:
                os.mkfifo(path) if what == "pipe" else path.touch()
            if what == "another user's":
                os.chown(path, 12345, -1)
            taken.append(path)
        return segment

    monkeypatch.setattr(memory, "SharedMemory", create)
    try:
        name = allocator.create(8192)
        assert allocator.exists(name)
        assert len(taken) == 3
        assert all(os.path.lexists(path) for path in taken)
        assert allocator.used_bytes == 8192
    finally:
        for path in taken:
            path.rmdir() if what == "directory" else path.unlink()


def test_who_removes_every_new_segment_gets_an_error(
    allocator: SharedMemoryAllocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(name: str, create: bool, size: int) -> SharedMemory:
        segment = SharedMemory(name, create=create, size=size)
        (SHM / name).unlink()
        return segment

    monkeypatch.setattr(memory, "SharedMemory", create)
    with pytest.raises(SharedMemoryError, match="somebody removes every new segment from /dev/shm, or takes its"):
        allocator.create(8192)
    assert (segments(), allocator.used_bytes, allocator.retired) == ([], 0, [])
    monkeypatch.undo()
    assert allocator.exists(allocator.create(8192))


def test_a_name_that_is_taken_stays_its_owners_and_the_next_is_tried(
    allocator: SharedMemoryAllocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "permute", lambda index, n, key: index)
    taken = [SHM / f"{identity(os.getpid())}-{number}" for number in range(5)]
    for path in taken:
        path.write_bytes(b"precious")
    try:
        assert allocator.create(4096) == f"{identity(os.getpid())}-5"
        assert [path.read_bytes() for path in taken] == [b"precious"] * 5
    finally:
        for path in taken:
            path.unlink()


def test_names_come_in_an_order_that_only_this_daemon_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[set[str]] = []
    for _ in range(2):
        allocator = SharedMemoryAllocator()
        names.append({allocator.create(4096) for _ in range(50)})
        allocator.close()
    assert [len(one) for one in names] == [50, 50]
    assert names[0] & names[1] == set()


# --- sweeping --------------------------------------------------------------------------------------------


def made(directory: Path, *names: str) -> list[str]:
    for name in names:
        (directory / name).write_bytes(b"batch")
    return sorted(names)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_segments_of_the_dead_are_swept_and_of_the_living_kept(directory: Path) -> None:
    living = owner("import sys; sys.stdin.read()")
    dead = [identity_of_the_dead() for _ in range(4)]
    gone = made(directory, *(f"{one}-{number}" for one in dead for number in range(25)))
    kept = made(directory, f"{identity(living.pid)}-0", f"{identity(os.getpid())}-0")
    assert sweep() == gone
    assert names(directory) == kept
    assert sweep() == []
    living.communicate()
    assert sweep() == [f"{identity_at(living.pid, kept)}-0"]


def identity_at(pid: int, kept: list[str]) -> str:
    """The identity that was written down while `pid` lived."""
    return next(name.rpartition("-")[0] for name in kept if not name.startswith(identity(os.getpid())))


def test_in_dev_shm_itself_the_living_keep_and_the_dead_lose() -> None:
    living = owner(OWNER, "2")
    assert living.stdout is not None
    kept = living.stdout.readline().split()
    gone = made(SHM, f"{identity_of_the_dead()}-0")
    sweep()
    assert [(SHM / name).exists() for name in [*kept, *gone]] == [True, True, False]
    living.kill()
    living.communicate()


def test_a_pid_that_was_given_again_does_not_protect_the_dead(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = start_time(os.getpid()) or 0
    monkeypatch.setattr(memory, "start_time", lambda pid: started - 1)
    gone = made(directory, f"{identity(os.getpid())}-0")
    monkeypatch.setattr(memory, "start_time", start_time)
    assert sweep() == gone


def test_what_is_not_ours_is_kept(directory: Path) -> None:
    tail = identity_of_the_dead().removeprefix("lsv-")
    kept = [f"lsv-{tail}", f"lsv-{tail}-0-0", f"psm-{tail}-0", f"lsvx-{tail}-0", f"LSV-{tail}-0", f"x-lsv-{tail}-0"]
    kept += ["lsv", "lsv-", "lsv----", "lsv-!-!-!-0", "lsv-not-a-segment-", "psm_1234abcd", "sem.lsv-1-2-3-4"]
    kept = made(directory, *kept)
    (directory / f"lsv-{tail}-directory").mkdir()
    assert sweep() == []
    assert names(directory) == sorted([*kept, f"lsv-{tail}-directory"])


def test_segments_of_other_users_are_kept(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = identity_of_the_dead()
    kept = made(directory, f"{dead}-0", f"{dead}-1")
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    assert sweep() == sweep(dead) == []
    assert names(directory) == kept


def test_only_a_known_predecessor_is_swept_in_another_namespace(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pids mean nothing here: that one is dead is known from the lock that it lost."""
    here = pid_namespace()
    monkeypatch.setattr(memory, "pid_namespace", lambda: here + 1)
    predecessor, neighbour = identity(os.getpid()), identity_of_the_dead()
    monkeypatch.setattr(memory, "pid_namespace", lambda: here)
    gone = made(directory, *(f"{predecessor}-{number}" for number in range(3)))
    kept = made(directory, f"{neighbour}-0", f"{predecessor}0-0", predecessor)
    assert sweep() == []
    assert sweep(predecessor) == gone
    assert names(directory) == kept


def test_where_there_is_no_dev_shm_nothing_is_swept(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_DIRECTORY", directory / "missing")
    assert sweep() == []
    assert memory.free_bytes() is None
