"""The processes of the random consumers.

Owns `ConsumerPool`. Invariant: each place of the pool has a living process, except between its death and the next
`restart_ended`; only processes that the pool started are signalled. It raises nothing: problems are counted by the
`DigestChecker`.
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

from benchmarks.soak.daemon_runner import ENVIRONMENT_MARK
from benchmarks.soak.digest_checker import DigestChecker

__all__ = ["ConsumerPool"]

_END_S = 30.0
"""Seconds that a consumer may take to end: one that waits for a step gets it first, for the daemon is alive."""


@dataclass(slots=True)
class _Place:
    place_id: int
    starts: int = 0
    process: subprocess.Popen[bytes] | None = None
    log: Path = Path()
    killed: bool = False
    stopped: bool = False


class ConsumerPool:
    """Processes of `benchmarks.soak.random_consumer`.

    Args:
        size: Number of processes.
        seed: Each process has a seed of its own that follows from this one.
        endpoint: Endpoint of the daemon.
        directory: Where their logs lie.
        checker: Reads their logs.
    """

    def __init__(self, size: int, seed: int, endpoint: str, directory: Path, checker: DigestChecker) -> None:
        self._seed, self._endpoint, self._directory, self._checker = seed, endpoint, directory, checker
        self._places = [_Place(place_id) for place_id in range(size)]

    @property
    def all_running(self) -> bool:
        """True once every process has begun to act."""
        return all(place.log.is_file() for place in self._places)

    def restart_ended(self) -> None:
        """Start each process that does not run; one that ended by itself is an error."""
        for place in self._places:
            if place.process is None or place.process.poll() is not None:
                self._collect(place, expected=-signal.SIGKILL if place.killed else None)
                self._start(place)

    def kill_one(self, rng: random.Random) -> bool:
        """Send SIGKILL to a running process; False where none runs."""
        place = self._choose(rng)
        if place is not None and place.process is not None:
            place.killed = True
            place.process.kill()
        return place is not None

    def stop_one(self, rng: random.Random) -> int | None:
        """Send SIGSTOP to a running process; its place for `resume`, None where none runs."""
        place = self._choose(rng)
        if place is None or place.process is None:
            return None
        place.stopped = True
        place.process.send_signal(signal.SIGSTOP)
        return place.place_id

    def resume(self, place_id: int) -> None:
        """Send SIGCONT to a process that was stopped, if it is still there."""
        place = self._places[place_id]
        if place.stopped and place.process is not None:
            place.stopped = False
            place.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Send SIGTERM to all and wait for them; one that does not end in time is an error, and killed. Idempotent."""
        for place in self._places:
            self.resume(place.place_id)
            if place.process is not None:
                place.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _END_S
        for place in self._places:
            if place.process is None:
                continue
            with suppress(subprocess.TimeoutExpired):
                place.process.wait(max(0.01, deadline - time.monotonic()))
            if place.process.poll() is None:
                self._checker.count_error(f"{place.log.stem} did not end within {_END_S} s")
                place.process.kill()
                place.process.wait()
                place.killed = True
            begun = place.log.exists()  # before that, it does not handle SIGTERM
            self._collect(place, expected=-signal.SIGKILL if place.killed else 0 if begun else -signal.SIGTERM)

    def _choose(self, rng: random.Random) -> _Place | None:
        running = [
            place
            for place in self._places
            if place.process is not None and place.process.poll() is None and not place.stopped and not place.killed
        ]
        return rng.choice(running) if running else None

    def _start(self, place: _Place) -> None:
        name = f"consumer-{place.place_id}-{place.starts}"
        place.log, place.killed, place.stopped = self._directory / f"{name}.log", False, False
        with (self._directory / f"{name}.err").open("wb") as errors:
            command = [sys.executable, "-m", "benchmarks.soak.random_consumer", self._endpoint, f"{self._seed}-{name}"]
            place.process = subprocess.Popen(
                [*command, str(place.log)],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env=os.environ | {ENVIRONMENT_MARK: str(self._directory)},
                process_group=0,
            )
        self._checker.follow(place.log)
        place.starts += 1

    def _collect(self, place: _Place, expected: int | None) -> None:
        """Read the rest of what an ended process wrote; `expected` is its exit code, None where it should not end."""
        process, place.process = place.process, None
        if process is None:
            return
        self._checker.finish(place.log)
        errors = place.log.with_suffix(".err")
        printed = errors.read_text(errors="replace")
        errors.unlink()
        if process.returncode != expected or printed:
            ending = f"{place.log.stem} ended with {process.returncode}"
            self._checker.count_error(f"{ending}, and printed: {printed or 'nothing'}")
