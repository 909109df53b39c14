"""Crashes of workers, and the steps that they were at.

Owns `Crash` and `Crashes`. Invariant: a step at which three workers crashed, for whatever reason, fails with an error
that tells how each of them ended; a step that is built, or has failed, is forgotten. No more than 1,000 steps are
remembered.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from loader_service.errors import BuildError

__all__ = ["MAX_CRASHES", "Crash", "Crashes"]

MAX_CRASHES = 3
"""The number of crashes at which a step has failed."""
_MAX_STEPS = 1000
"""Steps that are remembered; the oldest are forgotten first, since nobody asked for them meanwhile."""
_MAX_INDICES = 32


@dataclass(frozen=True, slots=True)
class Crash:
    """One end of a worker that was not asked for.

    Attributes:
        how: which worker (number, pid) ended, and by what, in words.
        stack: its Python stack, empty where there is none.
        hung: it was killed because it hung.
    """

    how: str
    stack: str = ""
    hung: bool = False


@dataclass(slots=True)
class _Step:
    crashes: list[Crash] = field(default_factory=list)
    samples: str = ""


class Crashes:
    """The steps at which workers crashed, by (stream, step)."""

    def __init__(self) -> None:
        self._steps: dict[tuple[str, int], _Step] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def count(self, stream: str, step: int) -> int:
        """Return how many workers have crashed at this step."""
        known = self._steps.get((stream, step))
        return len(known.crashes) if known else 0

    def add(self, stream: str, step: int, crash: Crash) -> BuildError | None:
        """Take note of one more crash at this step; return the error with which the step fails, once it does."""
        known = self._steps.setdefault((stream, step), _Step())
        known.crashes.append(crash)
        if len(known.crashes) >= MAX_CRASHES:
            self.forget(stream, step)
            return _error(step, known)
        while len(self._steps) > _MAX_STEPS:
            del self._steps[next(iter(self._steps))]
        return None

    def add_samples(self, stream: str, step: int, indices: list[int], rows: int) -> str:
        """Take note of the samples of a step, and return the words for the log; empty where no worker crashed at it.

        Args:
            indices: the first dataset indices of the step.
            rows: how many there are in all.
        """
        known = self._steps.get((stream, step))
        if known is None:
            return ""
        more = f", … ({rows} in all)" if rows > len(indices[:_MAX_INDICES]) else ""
        known.samples = f"dataset indices {', '.join(map(str, indices[:_MAX_INDICES]))}{more}"
        return f"{known.samples}: of them {known.crashes[-1].how}"

    def forget(self, stream: str, step: int) -> None:
        """Forget a step that is built, or has failed. Idempotent."""
        self._steps.pop((stream, step), None)


def _error(step: int, known: _Step) -> BuildError:
    kind = "WorkerHung" if known.crashes[-1].hung else "WorkerDied"
    ends = "; ".join(crash.how for crash in known.crashes)
    samples = f" ({known.samples})" if known.samples else ""
    stack = next((crash.stack for crash in reversed(known.crashes) if crash.stack), "")
    text = f"{ends}; {MAX_CRASHES} workers died while they built this step{samples}"
    return BuildError(step=step, cause_type=kind, cause_message=text, remote_traceback=stack)
