"""Runs a case and takes its figures from outside, while its consumers go on.

Owns `measure`, `Figures` and `Reference`. Invariant: the rate of a memcpy (M) and of the best numpy build (N) are taken
in this process right before each case, so that a ratio is of one moment of the machine; at the end of a case no process
of its own is left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.peers import lines
from benchmarks.peers.cases import Case, Role
from benchmarks.peers.counters import Counters
from benchmarks.processes import cpu_seconds, descendants, pss_bytes

__all__ = ["CaseError", "Figures", "Reference", "measure"]

_WARM_UP = 40
"""Batches that each consumer takes before anything is measured."""
_START_S = 60.0
_PAUSE_S = 0.02


class CaseError(Exception):
    """A case did not run; the text says why."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One run of a case.

    Attributes:
        case: Name of the case.
        title: What it is, in words.
        group: Cases of one group are compared.
        slowest: Batches a second of the slowest consumer.
        total: Batches a second of all consumers together.
        of_m: `slowest` over the rate of a memcpy; None for another workload.
        of_n: `slowest` over the rate of the best numpy build; None for another workload.
        cpu_ms: CPU milliseconds of all processes for one delivered batch.
        pss_mb: Proportional set size of all processes, in MB.
        first_batch_s: Seconds from the start of the first process until every consumer has its first batch.
        wait_us_p50: Median wait in microseconds for a batch that is asked for every 20 ms, and so is built by then.
        wait_us_p99: The 99th percentile of the same.
    """

    case: str
    title: str
    group: str
    slowest: float
    total: float
    of_m: float | None
    of_n: float | None
    cpu_ms: float
    pss_mb: float
    first_batch_s: float
    wait_us_p50: float | None = None
    wait_us_p99: float | None = None

    def line(self) -> str:
        """One JSON object."""
        return json.dumps(
            {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(self).items()}
        )


class Reference:
    """M and N of now, in batches a second."""

    def __init__(self) -> None:
        data = lines.Lines.load()
        self._build, self._slots = lines.NumpyBuild(data, 0), lines.ring()
        self._indices = lines.epochs(len(data), 9)
        size = len(self._slots[0].floats)
        self._source = np.random.default_rng(0).random((10, size), dtype=np.float32)

    def measure(self, seconds: float = 0.5) -> tuple[float, float]:
        """M and N, measured for `seconds` each."""
        return self._rate(self._copy, seconds), self._rate(self._numpy, seconds)

    def _rate(self, act: object, seconds: float) -> float:
        assert callable(act)
        count, began = 0, time.perf_counter()
        while (taken := time.perf_counter() - began) < seconds:
            act(count)
            count += 1
        return count / taken

    def _copy(self, turn: int) -> None:
        np.copyto(self._slots[turn % lines.DEPTH].floats, self._source[turn % len(self._source)])
        lines.touch(self._slots[turn % lines.DEPTH].floats)

    def _numpy(self, turn: int) -> None:
        lines.touch(self._build(next(self._indices), self._slots[turn % lines.DEPTH]).images)


class _Running:
    """The processes of a case, and the page that its consumers count in."""

    def __init__(self, case: Case, directory: Path, pause_s: float) -> None:
        self.counters = Counters(directory / "counters")
        roles = case.roles(directory)
        self.consumers = [int(role.options.get("consumer", 0)) for role in roles if role.consumes]
        self._log = (directory / "log").open("wb")
        self._before = _shared_files()
        self.began_ns = time.monotonic_ns()
        self._processes = [self._start(role, directory, pause_s) for role in roles]

    def _start(self, role: Role, directory: Path, pause_s: float) -> subprocess.Popen[bytes]:
        options = json.dumps({**role.options, "pause_s": pause_s if role.consumes else 0.0})
        command = [sys.executable, "-m", "benchmarks.peers.roles", role.name, str(directory / "counters"), options]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, start_new_session=True
        )

    def pids(self) -> list[int]:
        """All processes of the case that live now."""
        return [pid for process in self._processes for pid in (process.pid, *descendants(process.pid))]

    def wait_until(self, taken: int, log: Path) -> None:
        """Wait until each consumer has taken so many batches. Raises CaseError."""
        deadline = time.monotonic() + _START_S
        while not all(self.counters.taken[number] >= taken for number in self.consumers):
            if any(process.poll() not in (None, 0) for process in self._processes):
                raise CaseError(f"a process ended: {_last_line(log)}")
            if time.monotonic() > deadline:
                counts = [int(self.counters.taken[number]) for number in self.consumers]
                raise CaseError(f"not all consumers had {taken} batches after {_START_S:.0f} s, but {counts}")
            time.sleep(0.02)

    def end(self) -> None:
        """End all processes of the case: the first of each asked to, then whatever is left."""
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        left = self.pids()
        for process in self._processes:
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid in left:
            _kill(pid)
        for path in _shared_files() - self._before:
            path.unlink(missing_ok=True)
        self._log.close()


def _shared_files() -> set[Path]:
    """Files of Python's shared memory and semaphores, which some peers leave behind when they are ended."""
    return {path for pattern in ("psm_*", "sem.mp-*") for path in Path("/dev/shm").glob(pattern)}


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _last_line(log: Path) -> str:
    found = log.read_text(errors="replace").strip().splitlines()
    return found[-1] if found else "it printed nothing"


def _run(case: Case, seconds: float, reference: Reference, directory: Path) -> Figures:
    m, n = reference.measure()
    running = _Running(case, directory, 0.0)
    try:
        running.wait_until(_WARM_UP, directory / "log")
        first_ns = max(int(running.counters.first_ns[number]) for number in running.consumers)
        pids = running.pids()
        cpu, taken, began = cpu_seconds(pids), running.counters.taken.copy(), time.monotonic()
        time.sleep(seconds)
        lasted, used = time.monotonic() - began, cpu_seconds(pids) - cpu
        counts = running.counters.taken - taken
        rates = [float(counts[number]) / lasted for number in running.consumers]
        total = sum(rates)
        return Figures(
            case=case.name,
            title=case.title,
            group=case.group,
            slowest=min(rates),
            total=total,
            of_m=min(rates) / m if case.group == "lines" else None,
            of_n=min(rates) / n if case.group == "lines" else None,
            cpu_ms=1000 * used / max(1.0, total * lasted),
            pss_mb=pss_bytes(pids) / 1e6,
            first_batch_s=(first_ns - running.began_ns) / 1e9,
        )
    finally:
        running.end()


def _waits_us(case: Case, seconds: float, directory: Path) -> tuple[float, float]:
    """Time that a consumer waits for a batch which it asks for every 20 ms: p50 and p99, in microseconds."""
    running = _Running(case, directory, _PAUSE_S)
    try:
        running.wait_until(lines.DEPTH + int(seconds / _PAUSE_S), directory / "log")
        number = running.consumers[0]
        waits = running.counters.wait_ns[number, : int(running.counters.waits[number])]
        return float(np.percentile(waits, 50)) / 1e3, float(np.percentile(waits, 99)) / 1e3
    finally:
        running.end()


def measure(case: Case, seconds: float, reference: Reference, workspace: Path, waits: bool) -> Figures:
    """Run a case once.

    Args:
        case: what to run.
        seconds: how long to count.
        reference: for M and N.
        workspace: a directory for the files of all cases.
        waits: also measure how long a consumer waits that asks every 20 ms.

    Raises:
        CaseError: it did not start, or ended.
    """
    with tempfile.TemporaryDirectory(dir=workspace) as directory:
        figures = _run(case, seconds, reference, Path(directory))
    if not waits:
        return figures
    with tempfile.TemporaryDirectory(dir=workspace) as directory:
        p50, p99 = _waits_us(case, min(seconds, 4.0), Path(directory))
    return replace(figures, wait_us_p50=p50, wait_us_p99=p99)
