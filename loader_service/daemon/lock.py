"""One daemon to an endpoint.

Owns `EndpointLock`: a file beside the socket, locked while the daemon lives, that names it. Invariant: who has the
lock may replace what its predecessor left. Fails with AlreadyRunningError and EndpointError.
"""

from __future__ import annotations

import fcntl
import json
import os
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
        self._fd = self._open()
        self._take(path)
        while not self._is_in_place():
            os.close(self._fd)
            self._fd = self._open()
            self._take(path)
        self.predecessor: str | None = self._read().get("identity")
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, json.dumps({"pid": os.getpid(), "identity": identity}).encode(), 0)
        try:
            _clear(path)
        except EndpointError:
            self.release()
            raise

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise EndpointError(f"the lock file {self._path} cannot be opened: {error.strerror}") from error

    def _take(self, path: Path) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = self._read()
            os.close(self._fd)
            raise AlreadyRunningError(
                f"a daemon serves {path} already: running, pid {holder.get('pid', 'unknown')}; stop it with "
                "`loader-service stop`, or give this one another endpoint"
            ) from None

    def _is_in_place(self) -> bool:
        """False where the file was removed, by the daemon that ended, after it was opened here."""
        try:
            return os.path.samestat(os.fstat(self._fd), self._path.lstat())
        except FileNotFoundError:
            return False

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads(os.pread(self._fd, 4096, 0) or b"{}")
        except ValueError:
            return {}
        return content if isinstance(content, dict) else {}

    def release(self) -> None:
        """Remove the lock file and let go."""
        self._path.unlink(missing_ok=True)
        os.close(self._fd)


def _clear(path: Path) -> None:
    """Remove a dead daemon's socket; anything else at its place is not ours to remove."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise EndpointError(f"{path} exists and is no socket; remove it, or choose another endpoint")
    path.unlink()
