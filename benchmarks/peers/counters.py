"""A page that consumers count in, so that none of them stops to report while it is measured.

Owns `Counters`. Each consumer writes words of its own; the measuring process only reads.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["MAX_CONSUMERS", "MAX_WAITS", "Counters"]

MAX_CONSUMERS, MAX_WAITS = 32, 512
_WORDS = 3 * MAX_CONSUMERS + MAX_CONSUMERS * MAX_WAITS


class Counters:
    """Words of 64 bits in a file that all processes of a case map.

    Attributes:
        taken: Batches that each consumer has taken, int64 [32].
        first_ns: Monotonic nanoseconds at which each took its first, int64 [32].
        waits: Waits that each has noted, int64 [32].
        wait_ns: Those waits in nanoseconds, int64 [32, 512].
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(8 * _WORDS))
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), 8 * _WORDS)
        words: NDArray[np.int64] = np.frombuffer(memory, np.int64)
        self.taken, self.first_ns, self.waits = words[: 3 * MAX_CONSUMERS].reshape(3, MAX_CONSUMERS)
        self.wait_ns = words[3 * MAX_CONSUMERS :].reshape(MAX_CONSUMERS, MAX_WAITS)

    def note_wait(self, consumer: int, wait_ns: int) -> None:
        """Note how long a consumer waited for a batch; the first 512 waits are kept."""
        count = int(self.waits[consumer])
        if count < MAX_WAITS:
            self.wait_ns[consumer, count] = wait_ns
            self.waits[consumer] = count + 1
