"""The wanderers' processes.

Owns `Crowd`. Invariant: each place has a living process, but between its death and the next `tend`; only processes of
its own are signalled. Fails never: what is wrong is told to the ledger.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.soak.daemon_runner import MARK
from benchmarks.soak.digest_checker import Ledger

__all__ = ["Crowd"]

_END_S = 30.0
"""So long an end may take: who waits for a step gets it, for the daemon lives."""


@dataclass(slots=True)
class _Place:
    number: int
    lives: int = 0
    process: subprocess.Popen[bytes] | None = None
    log: Path = Path()
    killed: bool = False
    stopped: bool = False


class Crowd:
    """`count` wanderers at `endpoint`, whose seeds follow from `seed`; their files lie in `directory`."""

    def __init__(self, count: int, seed: int, endpoint: str, directory: Path, ledger: Ledger) -> None:
        self._seed, self._endpoint, self._directory, self._ledger = seed, endpoint, directory, ledger
        self._places = [_Place(number) for number in range(count)]

    @property
    def awake(self) -> bool:
        """Whether all have begun."""
        return all(place.log.is_file() for place in self._places)

    def tend(self) -> None:
        """Start who is not there; one that ended by itself is an error."""
        for place in self._places:
            if place.process is None or place.process.poll() is not None:
                self._bury(place, expected=-signal.SIGKILL if place.killed else None)
                self._start(place)

    def kill(self, rng: random.Random) -> bool:
        """SIGKILL for one of those that run."""
        place = self._pick(rng)
        if place is not None and place.process is not None:
            place.killed = True
            place.process.kill()
        return place is not None

    def stop(self, rng: random.Random) -> int | None:
        """SIGSTOP for one of those that run: its place, for `go_on`."""
        place = self._pick(rng)
        if place is None or place.process is None:
            return None
        place.stopped = True
        place.process.send_signal(signal.SIGSTOP)
        return place.number

    def go_on(self, number: int) -> None:
        """SIGCONT for who was stopped, if it is there still."""
        place = self._places[number]
        if place.stopped and place.process is not None:
            place.stopped = False
            place.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """SIGTERM for all, and their last words; who does not end in time is an error, and killed."""
        for place in self._places:
            self.go_on(place.number)
            if place.process is not None:
                place.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _END_S
        for place in self._places:
            if place.process is None:
                continue
            with suppress(subprocess.TimeoutExpired):
                place.process.wait(max(0.01, deadline - time.monotonic()))
            if place.process.poll() is None:
                self._ledger.count_error(f"{place.log.stem} did not end within {_END_S} s")
                place.process.kill()
                place.process.wait()
                place.killed = True
            unborn = not place.log.exists()  # it had not begun to listen to SIGTERM
            self._bury(place, expected=-signal.SIGKILL if place.killed else -signal.SIGTERM if unborn else 0)

    def _pick(self, rng: random.Random) -> _Place | None:
        running = [
            place
            for place in self._places
            if place.process is not None and place.process.poll() is None and not place.stopped and not place.killed
        ]
        return rng.choice(running) if running else None

    def _start(self, place: _Place) -> None:
        name = f"wanderer-{place.number}-{place.lives}"
        place.log, place.killed, place.stopped = self._directory / f"{name}.log", False, False
        with (self._directory / f"{name}.err").open("wb") as errors:
            command = [sys.executable, "-m", "benchmarks.soak.random_consumer", self._endpoint, f"{self._seed}-{name}"]
            place.process = subprocess.Popen(
                [*command, str(place.log)],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env=os.environ | {MARK: str(self._directory)},
                process_group=0,
            )
        self._ledger.follow(place.log)
        place.lives += 1

    def _bury(self, place: _Place, expected: int | None) -> None:
        """Read the last words of a process that has ended; None: it should not have."""
        process, place.process = place.process, None
        if process is None:
            return
        self._ledger.finish(place.log)
        errors = place.log.with_suffix(".err")
        said = errors.read_text(errors="replace")
        errors.unlink()
        if process.returncode != expected or said:
            self._ledger.count_error(f"{place.log.stem} ended with {process.returncode}, and said: {said or 'nothing'}")
