"""Filling /dev/shm and emptying it again.

Owns `ShmFiller`. Invariant: what it takes it gives back. `check` refuses where filling /dev/shm would take the
machine's memory; give the run a small /dev/shm of its own then, for instance

    unshare --user --map-root-user --mount sh -c 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec python …'
"""

from __future__ import annotations

import os
from pathlib import Path

from loader_service.daemon.server.shared_memory import free_bytes

__all__ = ["ShmFiller"]

_LEFT_BYTES = 64 * 1024
"""Bytes that stay free: fewer than a segment needs."""
_MACHINE_BYTES = 2**30
"""Bytes of the machine's memory that must stay available besides."""


class ShmFiller:
    """A file in /dev/shm that takes what is free there."""

    def __init__(self) -> None:
        self._path = Path(f"/dev/shm/soak-{os.getpid()}")

    @staticmethod
    def check() -> None:
        """Check that the machine's memory suffices to fill /dev/shm.

        Raises:
            ValueError: If it does not.
        """
        free, available = free_bytes() or 0, _available_bytes()
        if free + _MACHINE_BYTES > available:
            raise ValueError(
                f"/dev/shm has {free} bytes free and the machine {available}; filling the one needs {_MACHINE_BYTES} "
                "more than it has free: run with a smaller /dev/shm (see benchmarks/soak/shm_filler.py)"
            )

    @property
    def full(self) -> bool:
        """True between `fill` and `clear`."""
        return self._path.exists()

    def fill(self) -> None:
        """Take all but a few KiB of what is free in /dev/shm.

        Raises:
            OSError: If the memory cannot be had; then nothing is taken.
        """
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            taken = (free_bytes() or 0) - _LEFT_BYTES
            if taken > 0:
                os.posix_fallocate(fd, 0, taken)
        except OSError:
            self.clear()
            raise
        finally:
            os.close(fd)

    def clear(self) -> None:
        """Give the memory back. Idempotent."""
        self._path.unlink(missing_ok=True)


def _available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
