"""The daemon, started again whenever it ends, as systemd would.

Owns `Keeper` and `Life`. Invariant: at most one daemon lives, as this process's child, in a process group of its own; a
life that ends without a signal of ours, or not as that signal should make it, is told to `failed`. Everything here but
the thread's own loop may be called from any thread.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.soak.vitals import Vitals, vitals
from loader_service.daemon.server.shared_memory import identity

__all__ = ["MARK", "Keeper", "Life"]

MARK = "LOADER_SERVICE_SOAK"
"""The environment variable by which the processes of a soak are known."""
_POLL_S, _SAMPLE_S, _AGAIN_S, _END_S = 0.02, 1.0, 0.1, 20.0
_TAIL = 4000


@dataclass(slots=True)
class Life:
    """One daemon process. told: the signals that it was sent, and whether it was ready then."""

    process: subprocess.Popen[bytes]
    identity: str
    log: Path
    started_s: float
    ready: bool = False
    told: list[tuple[signal.Signals, bool]] = field(default_factory=list)
    first: Vitals | None = None
    last: Vitals | None = None
    ready_s: float = 0.0
    seconds: float = 0.0

    @property
    def figures(self) -> tuple[float, float, float, str]:
        """When it started, seconds until it was ready and until its end, and the signal that ended it."""
        return self.started_s, self.ready_s, self.seconds, " ".join(number.name for number, _ in self.told)

    def wrong_end(self) -> str:
        """What is not as it should be with its end, or nothing."""
        code = self.process.returncode
        allowed = {-signal.SIGKILL} if any(number is signal.SIGKILL for number, _ in self.told) else set()
        if any(number is signal.SIGTERM for number, _ in self.told):
            allowed |= {0} if all(ready for _, ready in self.told) else {0, -signal.SIGTERM}
        text = self.log.read_text(errors="replace")
        if code not in allowed:
            return f"the daemon ended with {code} after {self.told or 'no signal'}:\n{text[-_TAIL:]}"
        quiet = "Traceback" not in text and (code == -signal.SIGKILL or "leaked" not in text)
        return "" if quiet else f"the daemon that ended with {code} said:\n{text[-_TAIL:]}"


class Keeper:
    """failed(text): called in the thread. full(): whether /dev/shm is filled, so that a start may fail."""

    def __init__(self, config: Path, directory: Path, failed: Callable[[str], None], full: Callable[[], bool]) -> None:
        self._config, self._directory, self._failed, self._full = config, directory, failed, full
        self.lives: list[Life] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="keeper")

    def start(self) -> None:
        self._thread.start()

    @property
    def life(self) -> Life | None:
        """The daemon of now, if there is one."""
        life = self.lives[-1] if self.lives else None
        return None if life is None or life.process.poll() is not None else life

    def send(self, number: signal.Signals) -> bool:
        """Send the daemon a signal, if one lives that was not sent one yet."""
        with self._lock:
            life = self.life
            if life is None or life.told:
                return False
            life.told.append((number, life.ready))
            life.process.send_signal(number)
        return True

    def stop(self) -> None:
        """End the daemon for good, by SIGTERM, and where that does not help by SIGKILL. Idempotent."""
        self._stop.set()
        self.send(signal.SIGTERM)
        if self._thread.ident is not None:
            self._thread.join()

    def _keep(self) -> None:
        while not self._stop.is_set():
            with self._lock:
                life = self._begin()
            self._watch(life)
            was_full = self._full()
            if (wrong := life.wrong_end()) and not (was_full and not life.ready and not life.told):
                self._failed(wrong)
            self._stop.wait(_AGAIN_S)

    def _begin(self) -> Life:
        log = self._directory / f"daemon-{len(self.lives)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "loader_service", "serve", str(self._config)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | {MARK: str(self._directory)},
                process_group=0,
            )
        self.lives.append(Life(process, identity(process.pid), log, time.monotonic()))
        return self.lives[-1]

    def _watch(self, life: Life) -> None:
        """Until it has ended; one that was told to and does not is killed."""
        deadline = sample = 0.0
        while life.process.poll() is None:
            now = time.monotonic()
            if not life.ready:
                life.ready, life.ready_s = b": serving " in life.log.read_bytes(), now - life.started_s
            elif now >= sample and not life.told:
                life.last = vitals(life.process.pid) or life.last
                life.first, sample = life.first or life.last, now + _SAMPLE_S
            if self._stop.is_set():
                self.send(signal.SIGTERM)  # it may have been started while it was set
            deadline = deadline or (now + _END_S if life.told else 0.0)
            if deadline and now >= deadline:
                self._failed(f"the daemon did not end within {_END_S} s of {life.told}")
                life.process.kill()
            time.sleep(_POLL_S)
        life.seconds = time.monotonic() - life.started_s
