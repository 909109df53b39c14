"""Builds: which worker builds what, and what became of it.

Owns `Builds`. Invariant: a task is one claim, given to one worker at a time; it ends once, as built, failed or lost.
A step that some consumer cannot go on without is built before all that is built ahead, whichever stream it is of; one
that is to be verified comes before both, for it is all but ready.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import count
from typing import Any, Protocol

from loader_service.daemon.broker.stream_state import StreamState
from loader_service.daemon.broker.task import Task
from loader_service.daemon.broker.verification import Verifications
from loader_service.daemon.workers.crashes import Crash, Crashes
from loader_service.daemon.workers.messages import (
    Build,
    Built,
    Denied,
    Explained,
    Failed,
    FromWorker,
    Larger,
    Need,
    Retire,
    ToWorker,
    Verified,
    Verify,
)
from loader_service.errors import BuildError, MemoryLimitError, SharedMemoryError
from loader_service.sharing.consumer import Answer

__all__ = ["Builds", "WorkerPort", "Workers"]

_log = logging.getLogger("loader_service.builds")


class WorkerPort(Protocol):
    """One worker, as far as builds care."""

    @property
    def number(self) -> int: ...


class Workers(Protocol):
    """The workers, as far as builds care: the supervisor's side of it."""

    def next_free(self, but: Any = None) -> Any: ...
    def has_others(self, worker: Any) -> bool: ...
    def assign(self, worker: Any, task: Build | Verify) -> None: ...
    def send(self, worker: Any, message: ToWorker) -> None: ...
    def broadcast(self, message: ToWorker) -> None: ...


class Builds:
    """The tasks of all streams. answer(consumer, answer): whom a build brings what it waits for.

    retired: names of unlinked segments that the workers have not been told of yet; the allocator adds to it.
    """

    def __init__(
        self,
        streams: list[StreamState],
        workers: Workers,
        retired: list[str],
        answer: Callable[[int, Answer], None],
    ) -> None:
        self._streams, self._workers, self._retired, self._answer = streams, workers, retired, answer
        self._tasks: dict[int, Task] = {}
        self._verifications = Verifications(workers)
        self._deaths = Crashes()
        self._numbers = count(1)
        self._turn = 0

    def pump(self) -> None:
        """Give every free worker the next step that can be built; tell all of the segments that went."""
        for worker, task in self._verifications.next():
            self._workers.assign(worker, task.verify(self._number(task)))
        while (worker := self._workers.next_free()) is not None:
            found = self._next_task(demanded=True) or self._next_task(demanded=False)
            if found is None:
                break
            explain = self._deaths.count(found.stream.name, found.claim.step) > 0
            self._workers.assign(worker, found.build(self._number(found), explain))
        while self._retired:
            self._workers.broadcast(Retire(self._retired.pop()))

    def worker_said(self, worker: WorkerPort, message: FromWorker) -> None:
        """A task ended, or needs a larger segment, or tells what it is about."""
        if isinstance(message, Need):
            self._enlarge(worker, message)
        elif isinstance(message, Explained):
            self._explain(self._tasks[message.task], message)
        elif isinstance(message, Built):
            self._built(self._tasks.pop(message.task), worker, message)
        elif isinstance(message, Verified):
            self._verified(self._tasks.pop(message.task), worker, message)
        elif isinstance(message, Failed):
            task = self._tasks.pop(message.task)
            verifying = task.built is not None
            self._fail(task, Verifications.raised(task, message.error).to_record() if verifying else message.error)

    def lost(self, tasks: list[int], death: Crash) -> None:
        """Their worker died: the first was under way, the others only waited."""
        for place, number in enumerate(tasks):
            task = self._tasks.pop(number)
            task.stream.metrics.lost += 1
            error = self._blame(task, death) if place == 0 else None
            if error is not None:
                self._fail(task, error.to_record())
            elif task.built is not None:
                self._verifications.add(task)
            else:
                task.stream.lanes.aborted(task.claim)

    def _number(self, task: Task) -> int:
        number = next(self._numbers)
        self._tasks[number] = task
        return number

    def _built(self, task: Task, worker: WorkerPort, built: Built) -> None:
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s was built by worker %d", task.where, worker.number, extra=task.fields_of(worker.number))
        task.stream.metrics.count_build(task.claim.step)
        task.built, task.builder = built, worker
        if Verifications.is_due(task) and not Verifications.is_too_large(task):
            self._verifications.add(task)
        else:
            self._commit(task)

    def _verified(self, task: Task, worker: WorkerPort, answer: Verified) -> None:
        error = Verifications.verdict(task, worker, answer)
        if error is None:
            self._commit(task)
        else:
            self._fail(task, error.to_record())

    def _blame(self, task: Task, death: Crash) -> BuildError | None:
        """One more worker died of it: the error that it fails with, after too many."""
        what = "was built" if task.built is None else "was verified"
        _log.warning("%s %s when %s", task.where, what, death.how, extra=task.fields)
        return self._deaths.add(task.stream.name, task.claim.step, death)

    def _explain(self, task: Task, told: Explained) -> None:
        story = self._deaths.told(task.stream.name, task.claim.step, told.indices, told.rows)
        if story:
            _log.warning("%s has %s", task.where, story, extra=task.fields)

    def _next_task(self, *, demanded: bool) -> Task | None:
        """The streams take turns."""
        for offset in range(len(self._streams)):
            stream = self._streams[(self._turn + offset) % len(self._streams)]
            claim = stream.lanes.rings.claim(demanded)
            if claim is not None:
                self._turn += offset + 1
                return Task(stream, claim)
        return None

    def _enlarge(self, worker: WorkerPort, need: Need) -> None:
        task = self._tasks[need.task]
        try:
            task.claim = claim = task.stream.lanes.rings.larger(task.claim, need.nbytes)
        except (MemoryLimitError, SharedMemoryError) as error:
            self._workers.send(worker, Denied(need.task, error.to_record()))
        else:
            larger = Larger(need.task, claim.placement)
            self._workers.send(worker, larger)

    def _commit(self, task: Task) -> None:
        self._deaths.forget(task.stream.name, task.claim.step)
        self._answer_all(task.stream.lanes.built(task.claim, task.built))

    def _fail(self, task: Task, error: dict[str, Any]) -> None:
        if task.stream.lanes.pool.lost(task.claim.placement.segment):  # that may be why: it is built again, in another
            task.stream.lanes.aborted(task.claim)
            return
        _log.error("%s: %s", task.where, error.get("message"), extra=task.fields)
        self._deaths.forget(task.stream.name, task.claim.step)
        task.stream.metrics.failed += 1
        self._answer_all(task.stream.lanes.failed(task.claim, error))

    def _answer_all(self, answers: list[tuple[int, Answer]]) -> None:
        for number, answer in answers:
            self._answer(number, answer)
