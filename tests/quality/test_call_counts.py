"""The three hottest ways stay as short as docs/architecture.md says: measured while they run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def counts() -> dict[str, dict[str, Any]]:
    """Each way, measured in a process of its own: the daemon needs the main thread."""
    command = [sys.executable, "-m", "tools.call_counts", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    measured: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return measured


@pytest.mark.parametrize(("way", "functions", "files"), [("next", 20, 6), ("get", 20, 6), ("built", 33, 8)])
def test_a_way_is_no_longer_than_it_is_said_to_be(
    counts: dict[str, dict[str, Any]], way: str, functions: int, files: int
) -> None:
    count = counts[way]
    assert (count["functions"] <= functions, count["files"] <= files) == (True, True), "\n".join(count["path"])


def test_each_way_is_the_one_that_is_meant(counts: dict[str, dict[str, Any]]) -> None:
    """Else a change could make a count small by measuring nothing."""
    begins = {way: count["path"][0].rpartition(":")[2] for way, count in counts.items()}
    assert begins["next"] == "Consumer.__next__"
    assert begins["get"].startswith("Broker.")
    assert begins["built"].startswith("Broker.")
    assert counts["get"]["calls"] < counts["get, whole"]["calls"]
    assert counts["built"]["calls"] < counts["built, whole"]["calls"]
