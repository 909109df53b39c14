"""Real worker processes under a supervisor, in a loop that the test turns."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loader_service import Loader
from loader_service.daemon.server.event_loop import Loop
from loader_service.daemon.server.shared_memory import SharedMemoryAllocator
from loader_service.daemon.workers import messages
from loader_service.daemon.workers.crashes import Crash
from loader_service.daemon.workers.messages import Build, Built, FromWorker, Start, StreamFacts
from loader_service.daemon.workers.supervisor import Supervisor
from loader_service.daemon.workers.watchdog import Timeouts
from loader_service.daemon.workers.worker_process import WorkerProcess
from loader_service.errors import FactoryError
from loader_service.sharing.placement import Placement
from loader_service.wire.layouts import unpack_layout
from loader_service.wire.process import start_time
from loader_service.wire.segment import Segment
from tests.daemon import streams

__all__ = ["NBYTES", "Begin", "WorkerHarness"]

ROOT = str(Path(__file__).resolve().parents[3])
DEADLINE_S = 20.0
NBYTES = 2**20


class WorkerHarness:
    """A supervisor in its loop, and what it told."""

    def __init__(self, factory: str, count: int, args: dict[str, Any], timeouts: Timeouts | None = None) -> None:
        self.said: list[FromWorker] = []
        self.died: list[tuple[int, list[int], str]] = []
        self.deaths: list[Crash] = []
        self.gone: list[str] = []
        self.ready: list[int] = []
        self.refused: FactoryError | None = None
        self.spec = messages.StreamSpec("s", f"tests.daemon.streams:{factory}", args, measure=factory == "small")
        self.loop = Loop(time.monotonic)
        self.supervisor = Supervisor(self.loop, self, count, lambda _: Start([ROOT], [self.spec]), timeouts)
        self.supervisor.events = self
        self.memory = SharedMemoryAllocator()
        self.segment = self.memory.create(NBYTES)

    def worker_said(self, worker_id: int, message: FromWorker) -> None:
        self.said.append(message)

    def worker_died(self, worker_id: int, task_ids: list[int], crash: Crash) -> None:
        self.died.append((worker_id, task_ids, crash.how))
        self.deaths.append(crash)

    def worker_ready(self, worker_id: int) -> None:
        self.ready.append(worker_id)

    def worker_started(self, worker_id: int, facts: list[StreamFacts]) -> None:
        self.said.append(messages.Started(facts))
        if self.refused is not None:
            raise self.refused

    def start_failed(self, worker_id: int, error: dict[str, Any]) -> None:
        self.said.append(messages.StartFailed(error))

    def workers_gone(self, how: str) -> None:
        self.gone.append(how)

    @property
    def first(self) -> WorkerProcess:
        return self.supervisor.workers[0]

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Turn the loop until `holds()`."""
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
            self.loop.after(0.05, lambda: None)
            self.loop.turn()

    def until_ready(self) -> None:
        self.until(lambda: all(worker.ready for worker in self.supervisor.workers), "all workers ready")

    def until_said(self, kind: type[FromWorker], times: int = 1) -> Any:
        self.until(lambda: len(self.all_said(kind)) >= times, f"{times} {kind.__name__}")
        return self.all_said(kind)[-1]

    def all_said(self, kind: type[FromWorker]) -> list[FromWorker]:
        return [message for message in self.said if isinstance(message, kind)]

    def assign(self, task: int, step: int = 0, nbytes: int = NBYTES) -> None:
        self.supervisor.assign(self.first.number, Build(task, 0, step, Placement(self.segment, task, nbytes)))

    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self.supervisor.workers if worker.process]

    def is_mapped(self) -> bool:
        """Return whether the first worker has the segment mapped."""
        return self.segment in Path(f"/proc/{self.pids()[0]}/maps").read_text()

    def check(self, built: Built, segment: str, step: int, generation: int) -> None:
        """Check that what a worker has built into `segment` is what the contract says."""
        reader = Segment.open(segment, os.geteuid())
        reader.check(step, generation, built.nbytes)
        arrays = unpack_layout(built.layout).views(reader.payload)
        expected = Loader(streams.small()).get(step)
        assert all((arrays[name] == expected[name]).all() for name in expected)

    def end(self) -> None:
        self.supervisor.stop(0.1)
        self.memory.close()
        assert [pid for pid in self.pids() if start_time(pid) is not None] == []


Begin = Callable[..., WorkerHarness]
"""Starts workers: `start_workers(factory, count, **args)`."""
