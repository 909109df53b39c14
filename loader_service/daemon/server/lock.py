"""One daemon to an endpoint.

Owns `EndpointLock`: a file beside the socket, locked while the daemon lives, that names it. Invariant: who has the
lock may replace what its predecessor left. Fails with AlreadyRunningError and EndpointError.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
from pathlib import Path
from typing import Any

from loader_service.errors import AlreadyRunningError, EndpointError

__all__ = ["EndpointLock"]


class EndpointLock:
    """The lock of the socket at `path`; the kernel gives it up when the process ends, however it ends.

    predecessor: the identity of the daemon that had it before, which is dead then, or None.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self._path = path.with_name(f"{path.name}.lock")
        self._fd = self._acquire(path)
        self.predecessor: str | None = _read(self._fd).get("identity")
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, json.dumps({"pid": os.getpid(), "identity": identity}).encode(), 0)
            _clear(path)
        except EndpointError:
            self.release()
            raise
        except OSError as error:  # a full disk
            self.release()
            raise EndpointError(f"the lock file {self._path} cannot be written: {error.strerror}") from error

    def _acquire(self, path: Path) -> int:
        """The locked file. One that its last holder removed meanwhile locks nothing: try again with the next."""
        while True:
            fd = _open(self._path)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(fd), os.stat(self._path)):
                    return fd
            except BlockingIOError:
                holder = _read(fd)
                os.close(fd)
                raise AlreadyRunningError(
                    f"a daemon serves {path} already: running, pid {holder.get('pid', 'unknown')}; stop it with "
                    "`loader-service stop`, or give this one another endpoint"
                ) from None
            except FileNotFoundError:
                pass
            os.close(fd)

    @property
    def is_ours(self) -> bool:
        """True while the name leads to this lock: somebody who cleaned up may have made room for another daemon."""
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self._path))
        except OSError:
            return False

    def release(self) -> None:
        """Remove the lock file, if it is this one, and let go."""
        if self.is_ours:
            self._path.unlink(missing_ok=True)
        os.close(self._fd)


def _open(path: Path) -> int:
    """A regular file of this user's with no other name: it is written to, so it must be nothing else of theirs."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise EndpointError(f"the lock file {path} cannot be opened: {error.strerror}") from error
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_nlink > 1:
        os.close(fd)
        raise EndpointError(
            f"the lock file {path} is no regular file of user {os.getuid()} with one name; remove it, or choose "
            "another endpoint"
        )
    return fd


def _read(fd: int) -> dict[str, Any]:
    """Read what the last holder wrote."""
    try:
        content = json.loads(os.pread(fd, 4096, 0) or b"{}")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _clear(path: Path) -> None:
    """Remove a dead daemon's socket; anything else at its place is not ours to remove."""
    try:
        mode = path.lstat().st_mode
        if not stat.S_ISSOCK(mode):
            raise EndpointError(f"{path} exists and is no socket; remove it, or choose another endpoint")
        if _is_heard(path):
            raise EndpointError(
                f"a process listens at {path}, and it is no daemon that holds the lock beside it (its lock file may "
                "have been removed); end it, or choose another endpoint"
            )
        path.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        raise EndpointError(f"what stands at {path} cannot be replaced: {error.strerror}") from error


def _is_heard(path: Path) -> bool:
    """Return whether some process listens at this socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as caller:
        try:
            caller.connect(str(path))
        except BlockingIOError:  # so many callers that it has no room for one more
            return True
        except OSError:
            return False
        return True
