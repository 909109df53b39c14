"""The events that processes of the soak recorded, compared with the contract.

Owns `DigestChecker`. Invariant: every line that was written is read and checked once. The right digests are computed in
this process by the stream itself, and kept. Building takes longer than reading a line, so lines wait for their turn:
neither faults nor consumers are delayed by the checks.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from pathlib import Path

from benchmarks.soak.event_log import ShardStep
from loader_service import Stream

__all__ = ["DigestChecker"]

_MAX_TEXTS, _MAX_WAITS = 40, 10


class DigestChecker:
    """Reads event logs and counts what is wrong.

    Args:
        streams: The streams that are served, by name.
        shm_filled: Errors of a full /dev/shm are to be expected.

    Attributes:
        batches: Number of batches checked.
        views: Number of views that were read once more before they were dropped.
        wrong: Number of wrong digests among both.
        errors: Number of errors.
        texts: The first errors, and all wrong digests, for people.
        waits: The longest waits in seconds, each with its place.
        notes: How often each promised event happened.
    """

    def __init__(self, streams: dict[str, Stream], *, shm_filled: bool) -> None:
        self._streams, self._shm_filled = streams, shm_filled
        self._right: dict[str, str] = {}
        self._offsets: dict[Path, int] = {}
        self._unchecked: deque[tuple[str, str]] = deque()  # (line, name of its log)
        self.batches = self.views = self.wrong = self.errors = 0
        self.waits: list[tuple[float, str]] = []
        self.notes: Counter[str] = Counter()
        self.texts: list[str] = []

    def follow(self, log: Path) -> None:
        """Read this file, too, from now on."""
        self._offsets[log] = 0

    def read(self, budget_s: float) -> None:
        """Read all whole lines that were written, and check lines for about `budget_s` seconds."""
        for log in self._offsets:
            self._read(log)
        end_s = time.monotonic() + budget_s
        while self._unchecked and time.monotonic() < end_s:
            self._check_line(*self._unchecked.popleft())

    def settle(self) -> None:
        """Check all lines that were read."""
        while self._unchecked:
            self._check_line(*self._unchecked.popleft())

    def finish(self, log: Path) -> None:
        """Read the rest of a file whose writer has ended, and remove it."""
        self._read(log)
        del self._offsets[log]
        log.unlink(missing_ok=True)

    def count_error(self, text: str) -> None:
        """Count an error, whoever saw it."""
        self.errors += 1
        if len(self.texts) < _MAX_TEXTS:
            self.texts.append(text)

    def _read(self, log: Path) -> None:
        if not log.exists():  # its writer has not begun
            return
        with log.open("rb") as file:
            file.seek(self._offsets[log])
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._offsets[log] += len(whole)
        self._unchecked.extend((line, log.stem) for line in whole.decode().splitlines())

    def _check_line(self, line: str, writer: str) -> None:
        event, _, rest = line.partition(" ")
        match event:
            case "batch":
                self.batches += 1
                self._check_digest(rest, writer)
            case "view":
                self.views += 1
                self._check_digest(rest, f"{writer}, a view that was kept")
            case "wait":
                self.waits.append((float(rest.split()[0]), f"{writer} {rest}"))
                self.waits = sorted(self.waits, reverse=True)[:_MAX_WAITS]
            case "note":
                self._count_note(rest, writer)
            case "error":
                self.count_error(f"{writer} {json.loads(rest)}")
            case _:
                self.count_error(f"{writer} wrote a line without a meaning: {line!r}")

    def _count_note(self, text: str, writer: str) -> None:
        words = text.split()
        if "SharedMemoryError" in text and not self._shm_filled:
            self.count_error(f"{writer} {text}")
        self.notes[" ".join(words[:2] if words[0] == "refused" else words).rstrip(":")] += 1

    def _check_digest(self, text: str, writer: str) -> None:
        rows, _, digest = text.rpartition(" ")
        right = self._right.get(rows)
        if right is None:
            place = ShardStep.parse(rows)
            built = self._streams[place.stream].build(place.step, (place.rank, place.world))
            right = self._right[rows] = built.digest()
        if digest != right:
            self.wrong += 1
            self.texts.append(f"WRONG {writer}: (stream step rank world) {rows}: {digest}, not {right}")
