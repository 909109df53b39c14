"""One soak, from the first daemon to the last look for leaks.

Owns `Options`, `Outcome` and `soak`. Invariant: whatever happens, all processes are ended, by their own handles, and
/dev/shm and the temporary directory are given back. Fails with what keeps the first daemon from serving.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import loader_client
from benchmarks.soak.consumer_pool import Crowd
from benchmarks.soak.daemon_runner import Keeper
from benchmarks.soak.digest_checker import Ledger
from benchmarks.soak.faults import Injector
from benchmarks.soak.leaks import at_rest, left_behind
from benchmarks.soak.plan import Kind, plan
from benchmarks.soak.setting import CONSUMERS, RINGS, configuration, stream
from benchmarks.soak.shm_filler import Room
from benchmarks.soak.vitals import Vitals, vitals
from loader_client import Client
from loader_service.errors import LoaderServiceError, ServiceClosedError

__all__ = ["Options", "Outcome", "soak"]

_TICK_S, _CHECK_S, _STATUS_S, _GRACE_S = 0.05, 0.15, 1.0, 30.0


@dataclass(frozen=True, slots=True)
class Options:
    """seconds: how long the consumers wander; fill: /dev/shm is filled now and then."""

    seconds: float
    seed: int = 0
    fill: bool = False


@dataclass(slots=True)
class Outcome:
    """What came of it. faults: kind -> (planned, done); life: of the daemon that lived longest, at its start and end.

    waits: the longest of consumers, in seconds; lives: of the daemons, (start, seconds to ready, seconds to the end,
    signal); rest: of the first daemon before the first consumer, and of the last one after the last; own: of this
    process.
    """

    options: Options
    seconds: float = 0.0
    faults: dict[str, tuple[int, int]] = field(default_factory=dict)
    checked: int = 0
    again: int = 0
    wrong: int = 0
    errors: int = 0
    texts: list[str] = field(default_factory=list)
    waits: list[tuple[float, str]] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)
    daemons: int = 0
    longest_s: float = 0.0
    lives: list[tuple[float, float, float, str]] = field(default_factory=list)
    life: tuple[Vitals | None, Vitals | None] = (None, None)
    rest: tuple[Vitals | None, Vitals | None] = (None, None)
    own: tuple[Vitals | None, Vitals | None] = (None, None)

    @property
    def good(self) -> bool:
        """Nothing was wrong, no error, no leak."""
        return not (self.wrong or self.errors or self.leaks)

    def to_mapping(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def soak(options: Options, interrupted: Callable[[], bool]) -> Outcome:
    """Run one; it ends early, and as well, once `interrupted()`."""
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="soak-"))
        stack.callback(shutil.rmtree, directory)
        return _Soak(options, directory, stack).run(interrupted)


class _Soak:
    def __init__(self, options: Options, directory: Path, stack: ExitStack) -> None:
        self._options, self._directory = options, directory
        self._sockets = directory / "run"
        self._sockets.mkdir(mode=0o700)
        endpoint = f"ipc://{self._sockets / 'soak.sock'}"
        self._ledger, self._room = Ledger(stream(options.seed), filled=options.fill), Room()
        config = directory / "soak.toml"
        config.write_text(configuration(endpoint, options.seed))
        self._keeper = Keeper(config, directory, self._ledger.count_error, lambda: self._room.full)
        self._crowd = Crowd(CONSUMERS, options.seed, endpoint, directory, self._ledger)
        self._endpoint, self._stack = endpoint, stack
        self._outcome = Outcome(options)
        self._injector: Injector | None = None

    def run(self, interrupted: Callable[[], bool]) -> Outcome:
        start_s, outcome = time.monotonic(), self._outcome
        self._stack.callback(self._keeper.stop)
        self._stack.callback(self._room.clear)
        try:
            self._from_first_to_last(interrupted)
        except LoaderServiceError as error:
            for text in self._ledger.texts:  # the first daemon's words say why it does not serve
                error.add_note(text)
            raise
        outcome.leaks += left_behind(self._directory, self._sockets, self._keeper.lives)
        outcome.seconds = time.monotonic() - start_s
        self._fill_in()
        return outcome

    def _from_first_to_last(self, interrupted: Callable[[], bool]) -> None:
        """Start the daemon and the consumers, and end them."""
        outcome = self._outcome
        self._keeper.start()
        with loader_client.connect(self._endpoint, timeout_s=60.0, reconnect_s=120.0) as client:
            before, own = self._settled(client), _own_vitals()
            self._stack.callback(self._crowd.end)
            self._wander(client, interrupted)
            self._crowd.end()
            self._ledger.settle()
            after, outcome.leaks = at_rest(client, before)
            outcome.own, outcome.rest = (own, _own_vitals()), (before, after)
        self._keeper.stop()

    @staticmethod
    def _settled(client: Client) -> Vitals:
        """The vitals of the daemon that serves nobody yet."""
        assert all(worker["state"] == "ready" for worker in client.status()["workers"])
        found = vitals(client.daemon_pid)
        assert found is not None  # it has just answered
        return found

    def _wander(self, client: Client, interrupted: Callable[[], bool]) -> None:
        """Let the consumers wander and the faults happen; all those of the plan, unless interrupted."""
        options = self._options
        self._awake(interrupted)
        faults = plan(options.seed, options.seconds, fill=options.fill)
        self._injector = injector = Injector(
            faults, options.seed, self._keeper, self._crowd, self._room, client, self._ledger
        )
        self._stack.callback(injector.undo)
        start_s = look_s = time.monotonic()
        while not interrupted():
            now = time.monotonic()
            if now - start_s >= options.seconds and (
                not injector.pending or now - start_s > options.seconds + _GRACE_S
            ):
                break
            self._crowd.tend()
            injector.act()
            self._ledger.read(_CHECK_S)
            if now >= look_s:
                look_s = now + _STATUS_S
                self._look(client)
            time.sleep(_TICK_S)
        injector.undo()
        counts = {kind: (sum(fault.kind is kind for fault in faults), injector.done[kind]) for kind in Kind}
        self._outcome.faults = {kind.name.lower(): pair for kind, pair in counts.items() if pair[0]}

    def _awake(self, interrupted: Callable[[], bool]) -> None:
        """Wait until the consumers' processes have begun, so that faults find them at work."""
        deadline = time.monotonic() + _GRACE_S
        while not (interrupted() or self._crowd.awake or time.monotonic() > deadline):
            self._crowd.tend()
            time.sleep(_TICK_S)

    def _look(self, client: Client) -> None:
        """Whether the daemon keeps to its limits."""
        try:
            status = client.status()
        except ServiceClosedError:  # it was killed twice within one request
            return
        if status["memory_bytes"] > max(RINGS.values()):
            self._ledger.count_error(f"the daemon has more memory than it may have: {status}")

    def _fill_in(self) -> None:
        outcome, ledger, lives = self._outcome, self._ledger, self._keeper.lives
        for name in ("checked", "again", "wrong", "errors", "texts", "waits"):
            setattr(outcome, name, getattr(ledger, name))
        outcome.notes = dict(sorted(ledger.notes.items()))
        outcome.lives = [life.figures for life in lives]
        longest = max(lives, key=lambda life: life.seconds)
        outcome.daemons, outcome.longest_s = len(lives), longest.seconds
        outcome.life = (longest.first, longest.last)


def _own_vitals() -> Vitals | None:
    return vitals(os.getpid())
