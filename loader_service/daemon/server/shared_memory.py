"""The daemon's shared memory: segments that are reserved before anybody writes, named so that a dead daemon's can
be told from a living one's, and gone when it ends.

Owns `SharedMemoryAllocator` and `sweep`. Invariant: the sum of segments never exceeds the memory limit, and every
page of a segment is reserved (`posix_fallocate`), for on a full tmpfs `ftruncate` succeeds and the first write dies
of SIGBUS. Fails with MemoryLimitError and SharedMemoryError.

    name: lsv-PID-START-NAMESPACE-NUMBER in base 36, at most 30 characters (macOS allows 30)
    NUMBER: the count of segments so far, permuted in [0, 36^6) with a key that nobody else knows: nobody can take a
    name before its segment is made, and none comes twice
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import secrets
import signal
import stat
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker, spawn
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

from loader_service.contract.permutation import permute
from loader_service.daemon.ops.signals import IGNORED, ignored_by_children
from loader_service.daemon.server.permissions import Permissions
from loader_service.errors import MemoryLimitError, SharedMemoryError
from loader_service.wire.process import pid_namespace, start_time

__all__ = ["SharedMemoryAllocator", "free_bytes", "identity", "start_resource_tracker", "sweep"]

_log = logging.getLogger("loader_service.memory")
_DIRECTORY = Path("/dev/shm")
_PREFIX = "lsv"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_NAMESPACE_TAGS = 36**4
_NUMBERS = 36**6
_TRIES = 8
"""To create a segment while somebody removes them."""
_REMEDY = (
    "lower prefetch or slot_bytes, or give /dev/shm more: `mount -o remount,size=8G /dev/shm` on a machine, "
    "`--shm-size=8g` or `--ipc=host` for a container, an emptyDir with medium Memory in Kubernetes"
)


def _base36(number: int) -> str:
    text = _DIGITS[number % 36]
    while number := number // 36:
        text = _DIGITS[number % 36] + text
    return text


def identity(pid: int) -> str:
    """Return what a daemon's segments are named by: its pid, when it started, and in which pid namespace."""
    started = start_time(pid) or 0
    return f"{_PREFIX}-{_base36(pid)}-{_base36(started)}-{_base36(pid_namespace() % _NAMESPACE_TAGS)}"


def free_bytes() -> int | None:
    """Free bytes of /dev/shm; None where there is no such directory."""
    try:
        found = os.statvfs(_DIRECTORY)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _reserve(path: Path, nbytes: int, access: Permissions) -> int:
    """Take every page now, then let others read who may; which file it is. Raises OSError: ENOSPC; its name is gone."""
    if not hasattr(os, "posix_fallocate") or not _DIRECTORY.is_dir():
        return 0
    fd = _open_own(path)
    try:
        os.posix_fallocate(fd, 0, nbytes)
        access.open_segment(fd)
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)


def _open_own(path: Path) -> int:
    """A descriptor of the file there; FileNotFoundError where somebody has removed ours, and perhaps taken its name."""
    gone = FileNotFoundError(errno.ENOENT, "its name is not its own any more", str(path))
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise (error if error.errno in (errno.EMFILE, errno.ENFILE) else gone) from None
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
        return fd
    os.close(fd)
    raise gone


def _free_pages(path: Path) -> None:
    """Give the pages of a segment back, whoever has it mapped; where that cannot be done they go with the mappings."""
    if not hasattr(mmap, "MADV_REMOVE"):
        return
    with suppress(OSError):
        fd = _open_own(path)
        try:
            with mmap.mmap(fd, 0) as pages:
                pages.madvise(mmap.MADV_REMOVE)
        finally:
            os.close(fd)


def start_resource_tracker() -> None:
    """Start the process that unlinks the segments of a killed daemon, so that no signal to its group ends it.

    Main thread only. Python's own precautions are against SIGINT and SIGTERM (multiprocessing.resource_tracker).
    """
    try:
        executable = os.fsdecode(spawn.get_executable())
        if not os.access(executable, os.X_OK):  # ensure_running would not notice
            raise FileNotFoundError(errno.ENOENT, "the interpreter cannot be started", executable)
        with ignored_by_children((signal.SIGHUP, *IGNORED)):
            resource_tracker.ensure_running()
    except OSError as error:  # no process can be started: what it would be told goes nowhere
        _log.warning("no process unlinks the segments if the daemon is killed (%s); the next daemon does", error)
        tracker: Any = resource_tracker._resource_tracker
        tracker._fd = os.open(os.devnull, os.O_WRONLY)


def _unlink(memory: SharedMemory) -> None:
    """End a segment whose name may be gone, or lead to what is not ours to remove: somebody cleaned /dev/shm up."""
    try:
        memory.unlink()
    except OSError:
        _forget(memory)


def _forget(memory: SharedMemory) -> None:
    resource_tracker.unregister(f"/{memory.name}", "shared_memory")


@dataclass(frozen=True, slots=True)
class _Reserved:
    """A segment; file: the inode at `path` as long as nobody cleans up, 0 where that cannot be told."""

    memory: SharedMemory
    path: str
    file: int

    @property
    def is_there(self) -> bool:
        """True while its name leads to it."""
        try:
            return self.file in (0, os.lstat(self.path).st_ino)
        except OSError:
            return not _DIRECTORY.is_dir()


class SharedMemoryAllocator:
    """Creates and unlinks the segments of this daemon. Python's resource tracker unlinks them if it is killed.

    limit_bytes: of all segments together, 0 for none; access: who may map them.
    """

    def __init__(self, limit_bytes: int = 0, access: Permissions | None = None) -> None:
        self.limit_bytes = limit_bytes
        self._access = access or Permissions()
        self.used_bytes = 0
        self.retired: list[str] = []
        self._identity = identity(os.getpid())
        self._segments: dict[str, _Reserved] = {}
        self._count, self._key = 0, secrets.randbits(64)

    def create(self, nbytes: int) -> str:
        """A reserved segment of `nbytes`, readable for whom it may be. Raises MemoryLimitError, SharedMemoryError."""
        self._check_limit(nbytes)
        self._check_free(nbytes)
        for _ in range(_TRIES):
            try:
                made = self._create(nbytes)
            except FileExistsError:
                _log.warning("the name of a new segment was taken in %s; it gets another", _DIRECTORY)
                continue
            except FileNotFoundError:
                _log.warning("a segment was removed from %s while it was made; another takes its place", _DIRECTORY)
                continue
            self._segments[made.memory.name] = made
            self.used_bytes += made.memory.size
            return made.memory.name
        raise SharedMemoryError(
            f"somebody removes every new segment from {_DIRECTORY}, or takes its name; stop whatever does that"
        )

    def _create(self, nbytes: int) -> _Reserved:
        """Make a reserved segment of the next name. Raises SharedMemoryError, and what is wrong with the name."""
        name = f"{self._identity}-{_base36(permute(self._count % _NUMBERS, _NUMBERS, self._key))}"
        self._count += 1
        try:
            memory = SharedMemory(name, create=True, size=nbytes)
        except FileExistsError:
            raise
        except OSError as error:
            raise SharedMemoryError(f"a segment of {nbytes} bytes cannot be created: {error}") from error
        memory.close()  # the daemon itself neither reads nor writes it
        try:
            path = _DIRECTORY / name
            return _Reserved(memory, str(path), _reserve(path, nbytes, self._access))
        except FileNotFoundError:
            _forget(memory)
            raise
        except OSError as error:
            _unlink(memory)
            if error.errno == errno.ENOSPC:
                raise self._no_space(nbytes) from error
            raise SharedMemoryError(f"a segment of {nbytes} bytes cannot be reserved: {error}") from error

    def fits(self, nbytes: int) -> bool:
        """Return whether `nbytes` more are within the limit and free."""
        free = free_bytes()
        return (not self.limit_bytes or self.used_bytes + nbytes <= self.limit_bytes) and (
            free is None or nbytes <= free
        )

    def exists(self, segment: str) -> bool:
        """Return whether others can still map it: a clean-up may have removed its name, or somebody taken it."""
        if self._segments[segment].is_there:
            return True
        _log.warning("segment %s was removed from %s by somebody else; another takes its place", segment, _DIRECTORY)
        return False

    def check_ring(self, slots: int, slot_bytes: int) -> None:
        """Raises where a ring cannot be had at all, before any of it is made."""
        self._check_limit(slots * slot_bytes)
        self._check_free(slots * slot_bytes)

    def retire(self, segment: str, *, may_be_read: bool = True) -> None:
        """Unlink a segment. `retired` collects the names for the workers.

        Args:
            segment: its name.
            may_be_read: somebody may go on reading it, so whoever has it mapped keeps it. Otherwise its pages are free
                at once: who still has it mapped, a client that idles after a jump, reads zeros and keeps no memory.
        """
        retired = self._segments.pop(segment)
        self.used_bytes -= retired.memory.size
        if not may_be_read and retired.is_there:
            _free_pages(Path(retired.path))
        (_unlink if retired.is_there else _forget)(retired.memory)
        self.retired.append(segment)

    def close(self) -> None:
        """Unlink all. Idempotent."""
        for segment in list(self._segments):
            self.retire(segment)

    def _check_limit(self, nbytes: int) -> None:
        if self.limit_bytes and self.used_bytes + nbytes > self.limit_bytes:
            raise MemoryLimitError(
                f"{nbytes} bytes of shared memory are needed, and of [server] memory_limit = {self.limit_bytes} "
                f"bytes {max(0, self.limit_bytes - self.used_bytes)} are left; close a consumer, lower prefetch, or "
                "raise the limit"
            )

    def _check_free(self, nbytes: int) -> None:
        free = free_bytes()
        if free is not None and nbytes > free:
            raise self._no_space(nbytes)

    def _no_space(self, nbytes: int) -> SharedMemoryError:
        return SharedMemoryError(
            f"{nbytes} bytes of shared memory are needed, and {_DIRECTORY} has {free_bytes()} bytes free; {_REMEDY}"
        )


def _is_dead(name: str) -> bool:
    """Return whether `name` is a segment of a daemon of this pid namespace that no longer lives."""
    parts = name.split("-")
    if len(parts) != 5 or parts[0] != _PREFIX:
        return False
    try:
        pid, started, namespace = (int(part, 36) for part in parts[1:4])
    except ValueError:
        return False
    return namespace == pid_namespace() % _NAMESPACE_TAGS and start_time(pid) != started


def sweep(predecessor: str | None = None) -> list[str]:
    """Unlink the segments of dead daemons of this user, and return their names; a living neighbour's are kept.

    predecessor: the identity of a daemon that is known to be dead, whichever namespace it lived in.
    """
    swept: list[str] = []
    for path in sorted(_DIRECTORY.glob(f"{_PREFIX}-*")) if _DIRECTORY.is_dir() else ():
        of_predecessor = predecessor is not None and path.name.startswith(f"{predecessor}-")
        with suppress(OSError):
            if path.lstat().st_uid == os.getuid() and (of_predecessor or _is_dead(path.name)):
                path.unlink()
                swept.append(path.name)
    return swept
