"""Short-lived processes of a soak that each try one thing: a slow consumer, a stranger who floods.

Owns `HelperProcesses`. Invariant: each process that was started is collected; one that does not end in time, or not
with code 0, is an error. It raises nothing: problems are counted by the `DigestChecker`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.soak.daemon_runner import ENVIRONMENT_MARK
from benchmarks.soak.digest_checker import DigestChecker

__all__ = ["HelperProcesses"]

_MAX_S = 100.0
"""Seconds that a helper may take; it may wait for a daemon meanwhile that was killed."""
_END_S = 30.0


@dataclass(slots=True)
class _Helper:
    process: subprocess.Popen[bytes]
    log: Path
    started_s: float


class HelperProcesses:
    """Processes `python -m benchmarks.soak.NAME ENDPOINT SEED LOG`, which write event logs.

    Args:
        seed: Each process has a seed of its own that follows from this one.
        endpoint: Endpoint of the daemon.
        directory: Where their logs lie.
        checker: Reads their logs.
    """

    def __init__(self, seed: int, endpoint: str, directory: Path, checker: DigestChecker) -> None:
        self._seed, self._endpoint, self._directory, self._checker = seed, endpoint, directory, checker
        self._running: list[_Helper] = []
        self._starts = 0

    @property
    def running(self) -> int:
        """Number of processes that have not been collected."""
        return len(self._running)

    def start(self, name: str) -> None:
        """Start a process of the module `benchmarks.soak.NAME`."""
        log = self._directory / f"{name}-{self._starts}.log"
        self._starts += 1
        with log.with_suffix(".err").open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", f"benchmarks.soak.{name}", self._endpoint, f"{self._seed}-{log.stem}", str(log)],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env=os.environ | {ENVIRONMENT_MARK: str(self._directory)},
                process_group=0,
            )
        self._checker.follow(log)
        self._running.append(_Helper(process, log, time.monotonic()))

    def collect(self) -> None:
        """Collect the processes that have ended; one that takes too long is an error, and killed."""
        for helper in list(self._running):
            late = time.monotonic() - helper.started_s > _MAX_S
            if late and helper.process.poll() is None:
                self._checker.count_error(f"{helper.log.stem} did not end within {_MAX_S} s")
                helper.process.kill()
                helper.process.wait()
            if helper.process.poll() is not None:
                self._finish(helper, expected=(0,))

    def end(self) -> None:
        """Send SIGTERM to all that run, and collect them. Idempotent."""
        for helper in self._running:
            helper.process.send_signal(signal.SIGTERM)
        for helper in list(self._running):
            with suppress(subprocess.TimeoutExpired):
                helper.process.wait(_END_S)
            helper.process.kill()
            helper.process.wait()
            self._finish(helper, expected=(0, -signal.SIGTERM))

    def _finish(self, helper: _Helper, expected: tuple[int, ...]) -> None:
        self._running.remove(helper)
        self._checker.finish(helper.log)
        errors = helper.log.with_suffix(".err")
        printed = errors.read_text(errors="replace")
        errors.unlink()
        if helper.process.returncode not in expected or printed:
            ending = f"{helper.log.stem} ended with {helper.process.returncode}"
            self._checker.count_error(f"{ending}, and printed: {printed or 'nothing'}")
