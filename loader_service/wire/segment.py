"""A shared-memory segment: a header of 64 bytes, then one batch (R70, R71).

Owns `Segment`. Invariant: a write is begin, write, commit; the header says READY only after the last byte. Only
the daemon creates and unlinks segments; `Segment.open` maps one without telling the resource tracker, which would
delete it when this process ends (https://github.com/python/cpython/issues/82300). Where a clean-up has removed a
name, another user can take it: whoever maps it says whose it must be. Fails with SharedMemoryError (it is not there,
or not theirs) and IntegrityError (it is not what a message said).

    header: magic 8 bytes, state u64, step u64, generation u64, nbytes u64; little-endian, padded to 64
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from functools import partial

import numpy as np
from numpy.typing import NDArray

from loader_service.errors import IntegrityError, SharedMemoryError

__all__ = ["HEADER_BYTES", "Segment", "ready_header"]

HEADER_BYTES = 64
_HEADER = struct.Struct("<8sQQQQ")
_MAGIC = b"LSRVSEG1"
_WRITING, _READY = 1, 2
ready_header = partial(_HEADER.pack, _MAGIC, _READY)
"""`ready_header(step, generation, nbytes)`: the first bytes of a segment in which that batch is READY."""
_POPULATE = getattr(mmap, "MAP_POPULATE", 0)
"""Linux maps all pages at once, so that no batch pays for page faults."""


def _map(name: str, owner: int, writeable: bool) -> mmap.mmap:
    import _posixshmem  # not on Windows, where only in-process loading runs

    protection = mmap.PROT_READ | mmap.PROT_WRITE if writeable else mmap.PROT_READ
    access = os.O_RDWR if writeable else os.O_RDONLY
    fd = _posixshmem.shm_open(f"/{name}", access | os.O_NONBLOCK, mode=0o600)  # a pipe in its place would block
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise PermissionError("something else has its name")
        if found.st_uid not in (owner, os.geteuid(), 0):
            raise PermissionError(f"it belongs to user {found.st_uid}, and the daemon is user {owner}")
        return mmap.mmap(fd, found.st_size, mmap.MAP_SHARED | _POPULATE, protection)
    finally:
        os.close(fd)


class Segment:
    """One mapped segment. The mapping ends when the last array over `memory` dies.

    Attributes:
        memory: uint8 [size of the segment], read-only unless opened writeable.
        payload: uint8, the bytes after the header.
        header: the fields of the header as they are now; equal to `ready_header(…)` where that batch is READY.
        address: where the payload begins in this process.
    """

    __slots__ = ("address", "header", "memory", "name", "payload")

    def __init__(self, name: str, memory: NDArray[np.uint8]) -> None:
        self.name, self.memory = name, memory
        self.payload = memory[HEADER_BYTES:]
        self.header = memory.data[: _HEADER.size]
        self.address = int(self.payload.ctypes.data)

    @classmethod
    def open(cls, name: str, owner: int, *, writeable: bool = False) -> Segment:
        """Map the segment `name` of the daemon, whose user id is `owner`. Raises SharedMemoryError."""
        try:
            mapping = _map(name, owner, writeable)
        except (OSError, ValueError) as error:
            raise SharedMemoryError(
                f"shared-memory segment {name!r} cannot be mapped ({error}); the trainer must run on the daemon's "
                "machine, as its user, with the same /dev/shm (containers: share the IPC namespace)"
            ) from error
        return cls(name, np.frombuffer(mapping, np.uint8))

    def begin(self, step: int, generation: int) -> None:
        """Mark the segment as being written."""
        _HEADER.pack_into(self.memory.data, 0, _MAGIC, _WRITING, step, generation, 0)

    def commit(self, step: int, generation: int, nbytes: int) -> None:
        """Publish: `nbytes` of payload hold the batch of `step`."""
        _HEADER.pack_into(self.memory.data, 0, _MAGIC, _READY, step, generation, nbytes)

    def check(self, step: int, generation: int, nbytes: int) -> None:
        """Raises IntegrityError unless this use of the segment is the one that a message named."""
        expected = (_MAGIC, _READY, step, generation, nbytes)
        found = _HEADER.unpack_from(self.memory.data, 0) if self.memory.size >= HEADER_BYTES else ()
        if found != expected or nbytes > self.payload.size:
            raise IntegrityError(
                f"segment {self.name} holds {found}, and the daemon's message says {expected}; "
                "please report this with the daemon's log"
            )
