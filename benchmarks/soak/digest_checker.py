"""What the wanderers say, against what the contract says.

Owns `Ledger`. Invariant: every line that was written is read and checked once; what is right is computed in this
process, by the stream itself, and kept. That takes longer than to say it, so what is read waits for its turn: faults
and consumers are not kept waiting by it.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from pathlib import Path

from loader_service import Stream

__all__ = ["Ledger"]

_KEPT_TEXTS, _KEPT_WAITS = 40, 10


class Ledger:
    """checked: batches; again: views that were read once more before they were dropped; wrong: of both together.

    waits: the longest, in seconds, with what was waited for. filled: errors of a full /dev/shm are to be expected.
    """

    def __init__(self, stream: Stream, *, filled: bool) -> None:
        self._stream, self._filled = stream, filled
        self._right: dict[str, str] = {}
        self._read_to: dict[Path, int] = {}
        self._unchecked: deque[tuple[str, str]] = deque()  # (line, who)
        self.checked = self.again = self.wrong = self.errors = 0
        self.waits: list[tuple[float, str]] = []
        self.notes: Counter[str] = Counter()
        self.texts: list[str] = []

    def follow(self, log: Path) -> None:
        """Read this file too from now on."""
        self._read_to[log] = 0

    def read(self, seconds: float) -> None:
        """All whole lines that have come; check some of them, for about so many seconds."""
        for log in self._read_to:
            self._read(log)
        end_s = time.monotonic() + seconds
        while self._unchecked and time.monotonic() < end_s:
            self._take(*self._unchecked.popleft())

    def settle(self) -> None:
        """Check all that has been read."""
        while self._unchecked:
            self._take(*self._unchecked.popleft())

    def finish(self, log: Path) -> None:
        """Its writer has ended: read the rest, and remove it."""
        self._read(log)
        del self._read_to[log]
        log.unlink(missing_ok=True)

    def count_error(self, text: str) -> None:
        """One more error, whoever saw it."""
        self.errors += 1
        if len(self.texts) < _KEPT_TEXTS:
            self.texts.append(text)

    def _read(self, log: Path) -> None:
        if not log.exists():  # its writer has not begun
            return
        with log.open("rb") as file:
            file.seek(self._read_to[log])
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._read_to[log] += len(whole)
        self._unchecked.extend((line, log.stem) for line in whole.decode().splitlines())

    def _take(self, line: str, who: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "error":
            self.count_error(f"{who} {json.loads(rest)}")
        elif word == "note":
            self._note(rest, who)
        elif word == "wait":
            self.waits.append((float(rest.split()[0]), f"{who} {rest}"))
            self.waits = sorted(self.waits, reverse=True)[:_KEPT_WAITS]
        elif word == "again":
            self.again += 1
            self._check(rest, f"{who}, a view that was kept")
        else:
            self.checked += 1
            self._check(line, who)

    def _note(self, text: str, who: str) -> None:
        words = text.split()
        if "SharedMemoryError" in text and not self._filled:
            self.count_error(f"{who} {text}")
        self.notes[" ".join(words[:2] if words[0] == "refused" else words[:1]).rstrip(":")] += 1

    def _check(self, line: str, who: str) -> None:
        place, _, digest = line.rpartition(" ")
        right = self._right.get(place)
        if right is None:
            step, rank, world = map(int, place.split())
            right = self._right[place] = self._stream.build(step, (rank, world)).digest()
        if digest != right:
            self.wrong += 1
            self.texts.append(f"WRONG {who}: (step rank world) {place}: {digest}, not {right}")
