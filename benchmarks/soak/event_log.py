"""The lines that a process of the soak writes about what it saw, and `digest_checker` reads.

Owns `EventLog` and `ShardStep`. Invariant: a line is written whole, by one call of write.

    batch STREAM STEP RANK WORLD DIGEST   a batch was received
    view STREAM STEP RANK WORLD DIGEST    a view that was kept for a while was read again, just before it is dropped
    wait SECONDS until TIME after …       a request took long; the time includes a stop of the process by SIGSTOP
    note WHAT                             something that is promised to happen, such as an eviction
    error TEXT                            anything else, as a JSON string
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

__all__ = ["EventLog", "ShardStep"]

_LONG_WAIT_S = 0.5
_RECENT_ACTIONS = 12


@dataclass(frozen=True, slots=True)
class ShardStep:
    """Rows of shard `rank` of `world` of one global step of a stream: what determines the bytes of a batch."""

    stream: str
    step: int
    rank: int
    world: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` wrote."""
        stream, step, rank, world = text.split()
        return cls(stream, int(step), int(rank), int(world))

    def __str__(self) -> str:
        return f"{self.stream} {self.step} {self.rank} {self.world}"


class EventLog:
    """A file that one process appends events to.

    Attributes:
        actions: The last actions of the process, for the text of an error.
    """

    def __init__(self, path: Path | str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.actions: deque[str] = deque(maxlen=_RECENT_ACTIONS)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def batch(self, rows: ShardStep, digest: str) -> None:
        """Record a batch that was received."""
        self._write(f"batch {rows} {digest}")

    def view(self, rows: ShardStep, digest: str) -> None:
        """Record a view that was kept and is about to be dropped."""
        self._write(f"view {rows} {digest}")

    def note(self, what: str) -> None:
        """Record something that is promised to happen."""
        self._write(f"note {what}")

    def error(self, problem: BaseException | str) -> None:
        """Record something that must not happen, with the actions before it."""
        text = problem if isinstance(problem, str) else "".join(traceback.format_exception(problem))
        self._write(f"error {json.dumps(f'after {list(self.actions)}: {text}')}")

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Record the duration of the block where it is long."""
        start_s = time.monotonic()
        yield
        end_s = time.monotonic()
        if end_s - start_s > _LONG_WAIT_S:
            self._write(f"wait {end_s - start_s:.3f} until {end_s:.3f} after {list(self.actions)[-3:]}")

    def _write(self, line: str) -> None:
        os.write(self._fd, f"{line}\n".encode())
