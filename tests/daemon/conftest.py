"""Fixtures of several test files of the daemon."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from loader_service.daemon.workers.watchdog import Timeouts
from tests.daemon.workers.worker_harness import Begin, WorkerHarness


@pytest.fixture
def start_workers() -> Iterator[Begin]:
    """Starts workers; none of them, ready or stuck, outlives the test."""
    made: list[WorkerHarness] = []

    def start(factory: str = "small", count: int = 1, timeouts: Timeouts | None = None, **args: Any) -> WorkerHarness:
        made.append(WorkerHarness(factory, count, args, timeouts))
        made[-1].supervisor.spawn_all()
        return made[-1]

    yield start
    for one in made:
        one.end()
