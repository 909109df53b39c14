"""Every Nth step is built twice, and its consumers get it only if both builds gave the same bytes.

Owns `Verifications`. Invariant: a step that waits here is built and not granted, and its segment is not written; it is
given to another worker than its builder wherever another is ready. No segment is needed: the second build stands in the
worker's own memory.

    built -> due? -> waits -> another worker compares -> the same: committed; a difference: BuildError "PurityViolation"
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Protocol

from loader_service.daemon.broker.task import Task
from loader_service.daemon.workers.messages import Verified, encode
from loader_service.errors import BuildError

__all__ = ["Verifications"]

_log = logging.getLogger("loader_service.verification")
_KIND = "PurityViolation"
_MAX_BYTES = 1 << 16


class _Workers(Protocol):
    """The workers, as far as verifications care."""

    def next_free(self, but: Any = None) -> Any: ...
    def has_others(self, worker: Any) -> bool: ...


class Verifications:
    """The steps that wait for their second build, the oldest first."""

    def __init__(self, workers: _Workers) -> None:
        self._workers = workers
        self._waiting: list[Task] = []

    @staticmethod
    def is_due(task: Task) -> bool:
        every = task.stream.verify
        return every > 0 and task.claim.step % every == 0

    @staticmethod
    def is_too_large(task: Task) -> bool:
        """A layout of very many tensors does not travel: who sends it could wait for one who waits for this side."""
        too_large = len(encode(task.verify(0))) > _MAX_BYTES
        task.stream.metrics.unverified += too_large
        return too_large

    def add(self, task: Task) -> None:
        """Its first build is done, or the worker of its second one was lost."""
        self._waiting.append(task)

    def next(self) -> Iterator[tuple[Any, Task]]:
        """Who verifies what now. Only the builder is left to verify a step where no other worker is ready."""
        for task in list(self._waiting):
            worker = self._workers.next_free(but=task.builder)
            if worker is None and not self._workers.has_others(task.builder):
                worker = self._workers.next_free()
            if worker is not None:
                self._waiting.remove(task)
                yield worker, task

    @staticmethod
    def verdict(task: Task, worker: Any, answer: Verified) -> BuildError | None:
        """The error that the step fails with, if the second build differs."""
        metrics = task.stream.metrics
        if answer.skipped:
            metrics.unverified += 1
            _log.warning("%s was not verified: %s", task.where, answer.skipped, extra=task.fields)
            return None
        metrics.verified += 1
        if not answer.differences:
            return None
        metrics.impure += 1
        who = f"worker {task.builder.number} built it, and worker {worker.number} other bytes"
        text = f"{who}: {'; '.join(answer.differences)}"
        return BuildError(step=task.claim.step, cause_type=_KIND, cause_message=text)

    @staticmethod
    def raised(task: Task, record: dict[str, Any]) -> BuildError:
        """The error that the step fails with, if the second build fails and the first did not."""
        task.stream.metrics.verified += 1
        task.stream.metrics.impure += 1
        details = record.get("details", {})
        cause = f"{details.get('cause_type')}: {details.get('cause_message')}"
        text = f"worker {task.builder.number} built it, and the second build raised {cause}"
        return BuildError(
            step=task.claim.step,
            slot=details.get("slot"),
            index=details.get("index"),
            cause_type=_KIND,
            cause_message=text,
            remote_traceback=str(details.get("remote_traceback", "")),
        )
