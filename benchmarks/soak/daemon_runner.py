"""The daemon of a soak, started again whenever it ends, as systemd would.

Owns `DaemonRunner` and `DaemonProcess`. Invariant: at most one daemon runs, as a child of this process and in a process
group of its own. A daemon that ends without a signal of the soak, or not in the way that its signal should make it end,
is reported to `on_error`. All methods may be called from any thread.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.processes import ResourceUsage, processes_with_environment, resource_usage
from benchmarks.soak.streams import CHILD_COMMAND
from loader_service.daemon.server.shared_memory import identity

__all__ = ["ENVIRONMENT_MARK", "DaemonProcess", "DaemonRunner"]

ENVIRONMENT_MARK = "LOADER_SERVICE_SOAK"
"""The environment variable by which the processes of a soak are recognised."""
_WORKER = "loader_service.daemon.workers.main"
_DAEMON_MARK = "LOADER_SERVICE_SOAK_DAEMON"
"""The environment variable by which the processes that one daemon's datasets started are recognised: its log."""
_POLL_S, _MEASURE_S, _RESTART_S, _END_S = 0.02, 1.0, 0.1, 20.0
_TAIL_CHARACTERS = 4000


@dataclass(slots=True)
class DaemonProcess:
    """One process of the daemon, from its start to its end.

    Attributes:
        identity: The part of its segments' names that is its own.
        log: File with what it printed.
        started_s: Time of its start, on the monotonic clock.
        ready: True once it serves.
        signals: The signals that the soak sent, each with `ready` at that moment.
        first, last: Its resources when it had just begun to serve, and last measured.
        ready_s, seconds: Seconds from its start until it served, and until its end.
    """

    process: subprocess.Popen[bytes]
    identity: str
    log: Path
    started_s: float
    ready: bool = False
    signals: list[tuple[signal.Signals, bool]] = field(default_factory=list)
    first: ResourceUsage | None = None
    last: ResourceUsage | None = None
    ready_s: float = 0.0
    seconds: float = 0.0

    @property
    def figures(self) -> tuple[float, float, float, str]:
        """Start, seconds until it served, seconds until its end, and the names of the signals that ended it."""
        return self.started_s, self.ready_s, self.seconds, " ".join(number.name for number, _ in self.signals)

    def wrong_end(self) -> str:
        """Describe what is wrong with its end; empty where nothing is."""
        code = self.process.returncode
        allowed = {-signal.SIGKILL} if any(number is signal.SIGKILL for number, _ in self.signals) else set()
        if any(number is signal.SIGTERM for number, _ in self.signals):
            allowed |= {0} if all(ready for _, ready in self.signals) else {0, -signal.SIGTERM}
        text = self.log.read_text(errors="replace")
        if code not in allowed:
            sent = self.signals or "no signal"
            return f"the daemon ended with {code} after {sent}:\n{text[-_TAIL_CHARACTERS:]}"
        quiet = "Traceback" not in text and (code == -signal.SIGKILL or "leaked" not in text)
        return "" if quiet else f"the daemon that ended with {code} printed:\n{text[-_TAIL_CHARACTERS:]}"


class DaemonRunner:
    """A thread that starts the daemon, waits for its end and starts it again.

    Args:
        config: The daemon's configuration file.
        directory: Where its logs lie.
        on_error: Called by the thread with a description.
        shm_full: Returns True while /dev/shm is filled, so that a start may fail.

    Attributes:
        processes: All processes of the daemon, the present one last.
    """

    def __init__(
        self, config: Path, directory: Path, on_error: Callable[[str], None], shm_full: Callable[[], bool]
    ) -> None:
        self._config, self._directory, self._on_error, self._shm_full = config, directory, on_error, shm_full
        self.processes: list[DaemonProcess] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="daemon-runner")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def running(self) -> DaemonProcess | None:
        """The present process of the daemon, if there is one."""
        last = self.processes[-1] if self.processes else None
        return None if last is None or last.process.poll() is not None else last

    def send(self, number: signal.Signals) -> bool:
        """Send the daemon a signal, if one runs that was not sent one yet."""
        with self._lock:
            daemon = self.running
            if daemon is None or daemon.signals:
                return False
            daemon.signals.append((number, daemon.ready))
            daemon.process.send_signal(number)
        return True

    def stop(self) -> None:
        """End the daemon for good, by SIGTERM, and by SIGKILL where that does not help. Idempotent."""
        self._stopping.set()
        self.send(signal.SIGTERM)
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            with self._lock:
                daemon = self._start_daemon()
            self._watch(daemon)
            was_full = self._shm_full()
            if (wrong := daemon.wrong_end()) and not (was_full and not daemon.ready and not daemon.signals):
                self._on_error(wrong)
            self._stopping.wait(_RESTART_S)
            if any(number is signal.SIGKILL for number, _ in daemon.signals):
                _end_children_of_killed(daemon)

    def _start_daemon(self) -> DaemonProcess:
        log = self._directory / f"daemon-{len(self.processes)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "loader_service", "serve", str(self._config)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | {ENVIRONMENT_MARK: str(self._directory), _DAEMON_MARK: str(log)},
                process_group=0,
            )
        self.processes.append(DaemonProcess(process, identity(process.pid), log, time.monotonic()))
        return self.processes[-1]

    def _watch(self, daemon: DaemonProcess) -> None:
        """Measure the daemon until it has ended; kill one that was told to end and does not."""
        deadline = measure_s = 0.0
        while daemon.process.poll() is None:
            now = time.monotonic()
            if not daemon.ready:
                daemon.ready, daemon.ready_s = b": serving " in daemon.log.read_bytes(), now - daemon.started_s
            elif now >= measure_s and not daemon.signals:
                daemon.last = resource_usage(daemon.process.pid) or daemon.last
                daemon.first, measure_s = daemon.first or daemon.last, now + _MEASURE_S
            if self._stopping.is_set():
                self.send(signal.SIGTERM)  # the daemon may have been started while `stop` was called
            deadline = deadline or (now + _END_S if daemon.signals else 0.0)
            if deadline and now >= deadline:
                self._on_error(f"the daemon did not end within {_END_S} s of {daemon.signals}")
                daemon.process.kill()
            time.sleep(_POLL_S)
        daemon.seconds = time.monotonic() - daemon.started_s


def _end_children_of_killed(daemon: DaemonProcess) -> None:
    """End what the datasets of a daemon that was killed have started: nobody else can, for its workers died with it."""
    for pid, command in processes_with_environment(_DAEMON_MARK, str(daemon.log)):
        if command.split() == CHILD_COMMAND or _WORKER in command:  # a child that has not become its program yet
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
