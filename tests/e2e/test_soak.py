"""A soak of some seconds, with every kind of fault: nothing wrong, no error, no leak."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.soak.schedule import FaultKind, fault_schedule
from tests.e2e.harness import ROOT

_SEED = 11


def _start(seconds: float, figures: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.soak", "--minutes", str(seconds / 60), "--seed", str(_SEED)]
    return subprocess.Popen(
        [*command, "--json", str(figures)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    )


def _end(process: subprocess.Popen[str], timeout_s: float) -> str:
    """Return what it printed; one that takes too long is told to end, and cleans up after itself."""
    try:
        return process.communicate(timeout=timeout_s)[0]
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            printed = process.communicate(timeout=30)[0]
        finally:
            process.kill()
        pytest.fail(f"not within {timeout_s} s:\n{printed}")


def _soak(seconds: float, figures: Path, timeout_s: float) -> dict[str, Any]:
    process = _start(seconds, figures)
    printed = _end(process, timeout_s)
    assert process.returncode == 0, printed
    found: dict[str, Any] = json.loads(figures.read_text())
    assert found["batches"] > 0
    assert found["views"] > 0
    assert (found["wrong"], found["errors"], found["leaks"]) == (0, 0, [])
    planned = Counter(fault.kind.name.lower() for fault in fault_schedule(_SEED, seconds))
    assert found["faults"] == {name: [number, number] for name, number in planned.items()}
    return found


def test_a_short_soak_finds_nothing_wrong(tmp_path: Path) -> None:
    assert {fault.kind for fault in fault_schedule(_SEED, 15.0)} == set(FaultKind) - {FaultKind.FILL_SHM}
    _soak(15.0, tmp_path / "figures.json", timeout_s=75)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_soak_of_a_minute_finds_nothing_wrong(tmp_path: Path) -> None:
    _soak(60.0, tmp_path / "figures.json", timeout_s=180)


@pytest.mark.parametrize("after_s", [0.0, 4.0])
def test_an_interrupted_soak_ends_cleanly(tmp_path: Path, after_s: float) -> None:
    process = _start(600.0, tmp_path / "figures.json")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("soaking")
    time.sleep(after_s)  # at whatever moment
    process.send_signal(signal.SIGINT)
    printed = _end(process, 75)
    assert process.returncode == 130, printed
