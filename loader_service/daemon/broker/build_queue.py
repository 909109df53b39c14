"""The build queue: which worker builds what, and what became of it.

Owns `BuildQueue` and `Task`. Invariants: a task is one claim, given to one worker at a time; it ends once, as built,
failed or lost. A step that some consumer cannot go on without is built before all that is built ahead, whichever stream
it is of; one that is to be verified comes before both, for it is all but ready.

Every Nth step of a stream with `verify` = N is built twice, and its consumers get it only if both builds gave the same
bytes. The second build is given to another worker than the first wherever another is ready, and stands in that
worker's own memory; meanwhile the segment of the first is neither granted nor written.

    claimed -> built -> due? -> waits -> another worker compares -> the same: committed, else BuildError
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

from loader_service.daemon.broker.stream_state import StreamState
from loader_service.daemon.ports import TaskMessage, Workers
from loader_service.daemon.workers.crashes import Crash, Crashes
from loader_service.daemon.workers.messages import (
    Build,
    Built,
    Denied,
    Explained,
    Failed,
    Larger,
    Need,
    Retire,
    Verified,
    Verify,
    encode,
)
from loader_service.errors import BuildError, MemoryLimitError, SharedMemoryError
from loader_service.sharing.lane_table import Claim
from loader_service.sharing.scheduler import Answers
from loader_service.wire.segment import HEADER_BYTES

__all__ = ["BuildQueue", "Task"]

_log = logging.getLogger("loader_service.builds")
_IMPURE = "PurityViolation"
_MAX_VERIFY_BYTES = 1 << 16
"""A layout of very many tensors does not travel: who sends it could wait for a worker that waits for this side."""


@dataclass(slots=True, eq=False)
class Task:
    """A step on its way through the workers, from its claim until the lanes hear what became of it.

    Args:
        stream: the stream of the step.
        claim: the step and its segment.
        built: what the first build gave, while the step waits for its verification.
        builder_id: the worker that built it.
    """

    stream: StreamState
    claim: Claim
    built: Built | None = None
    builder_id: int = -1

    @property
    def where(self) -> str:
        """The stream and the step, for logs."""
        return f"stream {self.stream.name} step {self.claim.step}"

    @property
    def fields(self) -> dict[str, Any]:
        """The same, for structured logs."""
        return {"stream": self.stream.name, "step": self.claim.step}

    def verify(self, task_id: int) -> Verify:
        """Return the order to build the step once more and to compare."""
        assert self.built is not None  # else there is nothing to compare with
        claim, built = self.claim, self.built
        return Verify(task_id, self.stream.stream_id, claim.step, claim.placement, built.nbytes, built.layout)


class BuildQueue:
    """The tasks of all streams.

    Args:
        workers: who builds.
        retired: names of unlinked segments that the workers have not been told of yet; the allocator adds to it.
    """

    def __init__(self, workers: Workers, retired: list[str]) -> None:
        self._workers, self._retired = workers, retired
        self.streams: list[StreamState] = []
        self._tasks: dict[int, Task] = {}
        self._to_verify: list[Task] = []
        self._crashes = Crashes()
        self._task_ids = count(1)
        self._turn = 0
        self._handlers: dict[type[Any], Callable[[int, Any], Answers]] = {
            Built: self._built,
            Explained: self._explained,
            Failed: self._failed,
            Need: self._need,
            Verified: self._verified,
        }

    def pump(self) -> None:
        """Give every free worker the next step that can be built; tell all of the segments that went."""
        for waiting in list(self._to_verify):
            self._assign_verification(waiting)
        while (worker_id := self._workers.next_free()) is not None:
            task = self._next_task(demanded=True) or self._next_task(demanded=False)
            if task is None:
                break
            claim, task_id, name = task.claim, next(self._task_ids), task.stream.name
            self._tasks[task_id] = task
            explain = len(self._crashes) > 0 and self._crashes.count(name, claim.step) > 0
            self._workers.assign(worker_id, Build(task_id, task.stream.stream_id, claim.step, claim.placement, explain))
        while self._retired:
            self._workers.broadcast(Retire(self._retired.pop()))

    def worker_said(self, worker_id: int, message: TaskMessage) -> Answers:
        """Take a worker's word on one of its tasks: the answers that it brings."""
        return self._handlers[type(message)](worker_id, message)

    def worker_died(self, task_ids: list[int], crash: Crash) -> Answers:
        """Take note that the worker of these tasks died: the first was under way, the others only waited."""
        answers: Answers = []
        for place, task_id in enumerate(task_ids):
            task = self._tasks.pop(task_id)
            task.stream.metrics.lost += 1
            error = self._blame(task, crash) if place == 0 else None
            if error is not None:
                answers += self._fail(task, error.to_record())
            elif task.built is not None:
                self._to_verify.append(task)
            else:
                task.stream.lanes.aborted(task.claim)
        return answers

    # --- the words of workers --------------------------------------------------------------------------------

    def _built(self, worker_id: int, built: Built) -> Answers:
        task = self._tasks.pop(built.task)
        if _log.isEnabledFor(logging.DEBUG):
            fields = task.fields | {"worker": worker_id}
            _log.debug("%s was built by worker %d", task.where, worker_id, extra=fields)
        metrics, step, every = task.stream.metrics, task.claim.step, task.stream.verify
        metrics.built += 1
        metrics.latest.append(step)
        task.built, task.builder_id = built, worker_id
        if every and step % every == 0:
            if len(encode(task.verify(0))) <= _MAX_VERIFY_BYTES:
                self._to_verify.append(task)
                return []
            metrics.unverified += 1
        return self._commit(task, built)

    def _verified(self, worker_id: int, answer: Verified) -> Answers:
        task = self._tasks.pop(answer.task)
        assert task.built is not None  # it was built once before
        metrics = task.stream.metrics
        if answer.skipped:
            metrics.unverified += 1
            _log.warning("%s was not verified: %s", task.where, answer.skipped, extra=task.fields)
            return self._commit(task, task.built)
        metrics.verified += 1
        if not answer.differences:
            return self._commit(task, task.built)
        metrics.impure += 1
        who = f"worker {task.builder_id} built it, and worker {worker_id} other bytes"
        text = f"{who}: {'; '.join(answer.differences)}"
        error = BuildError(step=task.claim.step, cause_type=_IMPURE, cause_message=text)
        return self._fail(task, error.to_record())

    def _failed(self, _worker_id: int, message: Failed) -> Answers:
        task = self._tasks.pop(message.task)
        if task.built is None:
            return self._fail(task, message.error)
        task.stream.metrics.verified += 1
        task.stream.metrics.impure += 1
        return self._fail(task, _raised_again(task, message.error).to_record())

    def _need(self, worker_id: int, need: Need) -> Answers:
        task = self._tasks[need.task]
        try:
            task.claim = claim = task.stream.lanes.rings.larger(task.claim, need.nbytes)
        except (MemoryLimitError, SharedMemoryError) as error:
            self._workers.send(worker_id, Denied(need.task, error.to_record()))
        else:
            self._workers.send(worker_id, Larger(need.task, claim.placement))
        return []

    def _explained(self, _worker_id: int, told: Explained) -> Answers:
        task = self._tasks[told.task]
        story = self._crashes.add_samples(task.stream.name, task.claim.step, told.indices, told.rows)
        if story:
            _log.warning("%s has %s", task.where, story, extra=task.fields)
        return []

    # --- within ------------------------------------------------------------------------------------------

    def _next_task(self, *, demanded: bool) -> Task | None:
        """Claim the next step; the streams take turns."""
        for offset in range(len(self.streams)):
            stream = self.streams[(self._turn + offset) % len(self.streams)]
            claim = stream.lanes.rings.claim(demanded)
            if claim is not None:
                self._turn += offset + 1
                return Task(stream, claim)
        return None

    def _assign_verification(self, task: Task) -> None:
        """Give it to a free worker: to its builder only where no other worker is ready, however busy."""
        worker_id = self._workers.next_free(but=task.builder_id)
        if worker_id is None and not self._workers.has_others(task.builder_id):
            worker_id = self._workers.next_free()
        if worker_id is not None:
            self._to_verify.remove(task)
            task_id = next(self._task_ids)
            self._tasks[task_id] = task
            self._workers.assign(worker_id, task.verify(task_id))

    def _blame(self, task: Task, crash: Crash) -> BuildError | None:
        """Count one more worker that died of it: the error that it fails with, after too many."""
        what = "was built" if task.built is None else "was verified"
        _log.warning("%s %s when %s", task.where, what, crash.how, extra=task.fields)
        return self._crashes.add(task.stream.name, task.claim.step, crash)

    def _commit(self, task: Task, built: Built) -> Answers:
        if len(self._crashes):
            self._crashes.forget(task.stream.name, task.claim.step)
        return task.stream.lanes.built(task.claim, built, HEADER_BYTES + built.nbytes)

    def _fail(self, task: Task, error: dict[str, Any]) -> Answers:
        if task.stream.lanes.pool.is_lost(task.claim.placement.segment):  # that may be why: it is built in another
            task.stream.lanes.aborted(task.claim)
            return []
        _log.error("%s: %s", task.where, error.get("message"), extra=task.fields)
        self._crashes.forget(task.stream.name, task.claim.step)
        task.stream.metrics.failed += 1
        return task.stream.lanes.failed(task.claim, error)


def _raised_again(task: Task, record: dict[str, Any]) -> BuildError:
    """Return the error of a step of which the second build fails and the first did not."""
    details = record.get("details", {})
    cause = f"{details.get('cause_type')}: {details.get('cause_message')}"
    text = f"worker {task.builder_id} built it, and the second build raised {cause}"
    return BuildError(
        step=task.claim.step,
        slot=details.get("slot"),
        index=details.get("index"),
        cause_type=_IMPURE,
        cause_message=text,
        remote_traceback=str(details.get("remote_traceback", "")),
    )
