"""At the end of a session nothing of it is left: no process, no segment, no socket; else the session fails.

The session has a runtime directory of its own, so that no test meets the daemon of the user who runs it. By that
directory in its environment a process is known as the session's, whoever its parent is by then.

Several processes may run the tests. A daemon that starts in one sweeps what dead ones have left, also those that
another has killed and means to look at; so what nobody owns is looked for when all are done.

No test fails because the machine is busy: Hypothesis measures no times here.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from loader_service.wire.endpoint import ENVIRONMENT_VARIABLE
from loader_service.wire.process import start_time

settings.register_profile("loader-service", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loader-service")

_DEADLINE_S = 20.0
"""For what ends by itself a moment after its owner, such as a resource tracker."""
_RUNTIME = pytest.StashKey[Path]()
_SEGMENTS = pytest.StashKey[set[str]]()
_LEFT = pytest.StashKey[list[str]]()


def pytest_sessionstart(session: pytest.Session) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background: children must not inherit that
        signal.signal(signal.SIGINT, signal.default_int_handler)
    directory = Path(tempfile.mkdtemp(prefix="loader-service-test-"))
    os.environ["XDG_RUNTIME_DIR"] = str(directory)
    os.environ.pop(ENVIRONMENT_VARIABLE, None)
    session.config.stash[_RUNTIME] = directory
    session.config.stash[_SEGMENTS] = _segments()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    directory, before = session.config.stash[_RUNTIME], session.config.stash[_SEGMENTS]
    gc.collect()
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    shares = output is not None  # the machine, with another process that runs tests
    deadline = time.monotonic() + _DEADLINE_S
    while (left := _left(directory, before, shares)) and time.monotonic() < deadline:
        time.sleep(0.05)
    session.config.stash.setdefault(_LEFT, []).extend(left)
    if output is not None:
        output["left"] = left
    left = session.config.stash[_LEFT]
    if not left:
        shutil.rmtree(directory, ignore_errors=True)
    elif session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


class _Workers:
    """In the process that distributes the tests: what was left by those that ran them."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        node.config.stash.setdefault(_LEFT, []).extend(getattr(node, "workeroutput", {}).get("left", []))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Workers(), "what workers left")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    left = config.stash.get(_LEFT, [])
    if left:
        terminalreporter.section("left behind by the tests", red=True, bold=True)
        for line in left:
            terminalreporter.line(line)


def _left(directory: Path, before: set[str], shares: bool) -> list[str]:
    """One line for each thing that should be gone."""
    processes = dict(_processes(directory))
    segments = [name for name in sorted(_segments() - before) if _is_ours(name, processes, shares)]
    files = [path for path in sorted(directory.rglob("*")) if path != directory / "loader-service"]
    return [
        *(f"process {pid}: {command}" for pid, command in processes.items()),
        *(f"segment /dev/shm/{name}" for name in segments),
        *(f"in the runtime directory: {path}" for path in files),
    ]


def _segments() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("lsv-*")}


def _is_ours(name: str, processes: dict[int, str], shares: bool) -> bool:
    """Return whether a segment that came meanwhile is this session's, or nobody's and nobody `shares` the machine."""
    try:
        pid, started = (int(part, 36) for part in name.split("-")[1:3])
    except ValueError:
        return not shares
    return pid == os.getpid() or pid in processes or (start_time(pid) != started and not shares)


def _processes(directory: Path) -> Iterator[tuple[int, str]]:
    """Children of this process, and all that were started with the session's environment, but for our tracker."""
    marker = f"XDG_RUNTIME_DIR={directory}\0".encode()
    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        if pid in (os.getpid(), tracker):
            continue
        try:
            parent = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
            if parent == os.getpid() or marker in (entry / "environ").read_bytes():
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                yield pid, command or "ended, and nobody waited for it"
        except OSError:
            continue  # it has ended, or is another user's
