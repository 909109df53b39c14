"""Filling /dev/shm.

Owns `Room`. Invariant: what it takes it gives back. Fails with OSError where it cannot be filled, and with ValueError
where that would take the machine's memory: give the run a small /dev/shm of its own then, for instance

    unshare --user --map-root-user --mount sh -c 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec python …'
"""

from __future__ import annotations

import os
from pathlib import Path

from loader_service.daemon.server.shared_memory import free_bytes

__all__ = ["Room"]

_LEFT_BYTES = 64 * 1024
"""Less than a segment."""
_MACHINE_BYTES = 2**30
"""So much of the machine's memory must be left besides."""


def _available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


class Room:
    """What is left in /dev/shm, and a file that takes it."""

    def __init__(self) -> None:
        self._path = Path(f"/dev/shm/soak-{os.getpid()}")

    @staticmethod
    def check() -> None:
        """Raises ValueError where filling it is no good idea."""
        free, available = free_bytes() or 0, _available_bytes()
        if free + _MACHINE_BYTES > available:
            raise ValueError(
                f"/dev/shm has {free} bytes free and the machine {available}; filling the one needs {_MACHINE_BYTES} "
                "more than it has free: run with a smaller /dev/shm (see benchmarks/soak/room.py)"
            )

    @property
    def full(self) -> bool:
        return self._path.exists()

    def fill(self) -> None:
        """Leave less than a segment free. Raises OSError."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            left = (free_bytes() or 0) - _LEFT_BYTES
            if left > 0:
                os.posix_fallocate(fd, 0, left)
        except OSError:
            self.clear()
            raise
        finally:
            os.close(fd)

    def clear(self) -> None:
        """Idempotent."""
        self._path.unlink(missing_ok=True)
