"""One soak, from the start of the first daemon to the last search for leaks.

Owns `SoakOptions`, `SoakResult` and `soak`. Invariant: whatever happens, all processes are ended, by their own handles,
and /dev/shm and the temporary directory are given back. It raises what keeps the first daemon from serving.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import loader_client
from benchmarks.processes import ResourceUsage, resource_usage
from benchmarks.soak.consumer_pool import ConsumerPool
from benchmarks.soak.daemon_runner import DaemonRunner
from benchmarks.soak.digest_checker import DigestChecker
from benchmarks.soak.faults import FaultInjector, Targets
from benchmarks.soak.helper_processes import HelperProcesses
from benchmarks.soak.leaks import leaks_after_end, leaks_at_rest
from benchmarks.soak.schedule import FaultKind, fault_schedule
from benchmarks.soak.shm_filler import ShmFiller
from benchmarks.soak.streams import make_streams
from benchmarks.soak.workload import CONSUMERS, MEMORY_LIMITS, configuration
from loader_client import Client
from loader_service.errors import LoaderServiceError, ServiceClosedError

__all__ = ["SoakOptions", "SoakResult", "soak"]

_TICK_S, _CHECK_S, _STATUS_S, _GRACE_S = 0.05, 0.15, 1.0, 30.0


@dataclass(frozen=True, slots=True)
class SoakOptions:
    """Options of a soak.

    Attributes:
        seconds: How long the consumers act.
        seed: Of all that is random.
        fill_shm: Also fill /dev/shm now and then.
    """

    seconds: float
    seed: int = 0
    fill_shm: bool = False


@dataclass(slots=True)
class SoakResult:
    """Results of a soak.

    Attributes:
        faults: Kind -> (planned, injected).
        batches, views, wrong, errors, texts, waits, notes: As of `DigestChecker`.
        leaks: One line for each thing that was left.
        daemons: For each process of the daemon: start, seconds until it served, seconds until its end, signals.
        longest_s: Lifetime in seconds of the daemon process that lived longest.
        longest: Its resources at its start and last measured.
        at_rest: Resources of the first daemon before the first consumer, and of the last one after the last consumer.
        own: Resources of this process at the same two moments.
    """

    options: SoakOptions
    seconds: float = 0.0
    faults: dict[str, tuple[int, int]] = field(default_factory=dict)
    batches: int = 0
    views: int = 0
    wrong: int = 0
    errors: int = 0
    texts: list[str] = field(default_factory=list)
    waits: list[tuple[float, str]] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)
    leaks: list[str] = field(default_factory=list)
    daemons: list[tuple[float, float, float, str]] = field(default_factory=list)
    longest_s: float = 0.0
    longest: tuple[ResourceUsage | None, ResourceUsage | None] = (None, None)
    at_rest: tuple[ResourceUsage | None, ResourceUsage | None] = (None, None)
    own: tuple[ResourceUsage | None, ResourceUsage | None] = (None, None)

    @property
    def good(self) -> bool:
        """True where nothing was wrong: no digest, no error, no leak."""
        return not (self.wrong or self.errors or self.leaks)

    def to_mapping(self) -> dict[str, Any]:
        """The results as plain values."""
        return asdict(self)


def soak(options: SoakOptions, interrupted: Callable[[], bool]) -> SoakResult:
    """Run a soak; once `interrupted()` is True it ends early, and as cleanly."""
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="soak-"))
        stack.callback(shutil.rmtree, directory)
        return _Soak(options, directory, stack).run(interrupted)


class _Soak:
    def __init__(self, options: SoakOptions, directory: Path, stack: ExitStack) -> None:
        self._options, self._directory, self._stack = options, directory, stack
        self._sockets = directory / "run"
        self._sockets.mkdir(mode=0o700)
        self._endpoint = f"ipc://{self._sockets / 'soak.sock'}"
        self._checker = DigestChecker(make_streams(options.seed), shm_filled=options.fill_shm)
        self._shm = ShmFiller()
        config = directory / "soak.toml"
        config.write_text(configuration(self._endpoint, options.seed))
        self._daemon = DaemonRunner(config, directory, self._checker.count_error, lambda: self._shm.full)
        self._consumers = ConsumerPool(CONSUMERS, options.seed, self._endpoint, directory, self._checker)
        self._helpers = HelperProcesses(options.seed, self._endpoint, directory, self._checker)
        self._result = SoakResult(options)

    def run(self, interrupted: Callable[[], bool]) -> SoakResult:
        start_s, result = time.monotonic(), self._result
        self._stack.callback(self._daemon.stop)
        self._stack.callback(self._shm.clear)
        try:
            self._run_daemon_and_consumers(interrupted)
        except LoaderServiceError as error:
            for text in self._checker.texts:  # what the first daemon printed says why it does not serve
                error.add_note(text)
            raise
        result.leaks += leaks_after_end(self._directory, self._sockets, self._daemon.processes)
        result.seconds = time.monotonic() - start_s
        self._fill_in_result()
        return result

    def _run_daemon_and_consumers(self, interrupted: Callable[[], bool]) -> None:
        """Start the daemon and the consumers, inject the faults, and end them."""
        result = self._result
        self._daemon.start()
        with loader_client.connect(self._endpoint, timeout_s=60.0, reconnect_s=120.0) as client:
            before, own = _settled_usage(client), resource_usage(0)
            self._stack.callback(self._consumers.end)
            self._stack.callback(self._helpers.end)
            self._inject_faults(client, interrupted)
            self._helpers.end()
            self._consumers.end()
            self._checker.settle()
            after, result.leaks = leaks_at_rest(client, before, self._directory)
            result.own, result.at_rest = (own, resource_usage(0)), (before, after)
        self._daemon.stop()

    def _inject_faults(self, client: Client, interrupted: Callable[[], bool]) -> None:
        """Let the consumers act and inject the faults: all of the schedule, unless interrupted."""
        options = self._options
        self._wait_for_consumers(interrupted)
        faults = fault_schedule(options.seed, options.seconds, fill_shm=options.fill_shm)
        targets = Targets(self._daemon, self._consumers, self._helpers, self._shm, client, self._checker)
        injector = FaultInjector(faults, options.seed, targets)
        self._stack.callback(injector.reverse_all)
        start_s = status_s = time.monotonic()
        while not interrupted():
            now = time.monotonic()
            late = now - start_s > options.seconds + _GRACE_S
            if now - start_s >= options.seconds and (not injector.pending or late):
                break
            self._consumers.restart_ended()
            self._helpers.collect()
            injector.act()
            self._checker.read(_CHECK_S)
            if now >= status_s:
                status_s = now + _STATUS_S
                self._check_memory(client)
            time.sleep(_TICK_S)
        injector.reverse_all()
        counts = {kind: (sum(fault.kind is kind for fault in faults), injector.done[kind]) for kind in FaultKind}
        self._result.faults = {kind.name.lower(): pair for kind, pair in counts.items() if pair[0]}

    def _wait_for_consumers(self, interrupted: Callable[[], bool]) -> None:
        """Wait until all consumers act, so that the first faults meet them at work."""
        deadline = time.monotonic() + _GRACE_S
        while not (interrupted() or self._consumers.all_running or time.monotonic() > deadline):
            self._consumers.restart_ended()
            time.sleep(_TICK_S)

    def _check_memory(self, client: Client) -> None:
        """Check that the daemon keeps to its memory limit."""
        try:
            status = client.status()
        except ServiceClosedError:  # it was killed twice within one request
            return
        if status["memory_bytes"] > max(MEMORY_LIMITS.values()):
            self._checker.count_error(f"the daemon has more memory than its limit allows: {status}")

    def _fill_in_result(self) -> None:
        result, checker, daemons = self._result, self._checker, self._daemon.processes
        for name in ("batches", "views", "wrong", "errors", "texts", "waits"):
            setattr(result, name, getattr(checker, name))
        result.notes = dict(sorted(checker.notes.items()))
        result.daemons = [daemon.figures for daemon in daemons]
        longest = max(daemons, key=lambda daemon: daemon.seconds)
        result.longest_s, result.longest = longest.seconds, (longest.first, longest.last)


def _settled_usage(client: Client) -> ResourceUsage:
    """Measure the daemon before it has served anybody."""
    assert all(worker["state"] == "ready" for worker in client.status()["workers"])
    found = resource_usage(client.daemon_pid)
    assert found is not None  # it has just answered
    return found
