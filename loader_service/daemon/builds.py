"""Builds: which worker builds what, and what became of it.

Owns `Builds`. Invariant: a task is one claim, given to one worker; it ends once, as built, failed or lost. A step that
some consumer cannot go on without is built before all that is built ahead, whichever stream it is of.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from loader_service.core.consumers import Answer
from loader_service.core.lane_set import Claim
from loader_service.daemon.messages import Build, Built, Denied, Failed, FromWorker, Larger, Need, Retire, ToWorker
from loader_service.daemon.served import ServedStream
from loader_service.errors import BuildError, MemoryLimitError, SharedMemoryError

__all__ = ["Builds", "WorkerPort", "Workers"]

_log = logging.getLogger("loader_service.builds")
_MAX_DEATHS = 3
"""So many workers may die of one step; then the step has failed."""


class WorkerPort(Protocol):
    """One worker, as far as builds care."""

    @property
    def number(self) -> int: ...


class Workers(Protocol):
    """The workers, as far as builds care: the supervisor's side of it."""

    def next_free(self) -> Any: ...
    def assign(self, worker: Any, build: Build) -> None: ...
    def send(self, worker: Any, message: ToWorker) -> None: ...
    def broadcast(self, message: ToWorker) -> None: ...


@dataclass(slots=True)
class _Task:
    stream: ServedStream
    claim: Claim


class Builds:
    """The tasks of all streams. answer(consumer, answer): whom a build brings what it waits for.

    retired: names of unlinked segments that the workers have not been told of yet; the allocator adds to it.
    """

    def __init__(
        self,
        streams: list[ServedStream],
        workers: Workers,
        retired: list[str],
        answer: Callable[[int, Answer], None],
    ) -> None:
        self._streams, self._workers, self._retired, self._answer = streams, workers, retired, answer
        self._tasks: dict[int, _Task] = {}
        self._numbers = count(1)
        self._turn = 0
        self._deaths: Counter[tuple[str, int]] = Counter()

    def pump(self) -> None:
        """Give every free worker the next step that can be built; tell all of the segments that went."""
        while (worker := self._workers.next_free()) is not None:
            task = self._next_task(demanded=True) or self._next_task(demanded=False)
            if task is None:
                break
            number = next(self._numbers)
            self._tasks[number] = task
            claim = task.claim
            self._workers.assign(
                worker,
                Build(number, task.stream.number, claim.step, claim.segment, claim.generation, claim.segment_bytes),
            )
        while self._retired:
            self._workers.broadcast(Retire(self._retired.pop()))

    def worker_said(self, worker: WorkerPort, message: FromWorker) -> None:
        """A build ended, or needs a larger segment."""
        if isinstance(message, Need):
            self._enlarge(worker, message)
        elif isinstance(message, Built):
            task = self._tasks.pop(message.task)
            task.stream.metrics.count_build(task.claim.step)
            self._deaths.pop((task.stream.name, task.claim.step), None)
            self._answer_all(task.stream.lanes.built(task.claim, message))
        elif isinstance(message, Failed):
            self._fail(self._tasks.pop(message.task), message.error)

    def lost(self, tasks: list[int], how: str) -> None:
        """Their worker died: the first was under build, the others only waited."""
        for place, number in enumerate(tasks):
            task = self._tasks.pop(number)
            task.stream.metrics.lost += 1
            key = (task.stream.name, task.claim.step)
            self._deaths[key] += place == 0
            if self._deaths[key] >= _MAX_DEATHS:
                story = f"{how}; {_MAX_DEATHS} workers died while they built this step"
                self._fail(task, BuildError(task.claim.step, "WorkerDied", story).to_record())
            else:
                task.stream.lanes.aborted(task.claim)

    def _next_task(self, *, demanded: bool) -> _Task | None:
        """The streams take turns."""
        for offset in range(len(self._streams)):
            stream = self._streams[(self._turn + offset) % len(self._streams)]
            claim = stream.lanes.rings.claim(demanded)
            if claim is not None:
                self._turn += offset + 1
                return _Task(stream, claim)
        return None

    def _enlarge(self, worker: WorkerPort, need: Need) -> None:
        task = self._tasks[need.task]
        try:
            task.claim = claim = task.stream.lanes.rings.larger(task.claim, need.nbytes)
        except (MemoryLimitError, SharedMemoryError) as error:
            self._workers.send(worker, Denied(need.task, error.to_record()))
        else:
            larger = Larger(need.task, claim.segment, claim.generation, claim.segment_bytes)
            self._workers.send(worker, larger)

    def _fail(self, task: _Task, error: dict[str, Any]) -> None:
        _log.error("stream %s step %d: %s", task.stream.name, task.claim.step, error.get("message"))
        task.stream.metrics.failed += 1
        self._answer_all(task.stream.lanes.failed(task.claim, error))

    def _answer_all(self, answers: list[tuple[int, Answer]]) -> None:
        for number, answer in answers:
            self._answer(number, answer)
