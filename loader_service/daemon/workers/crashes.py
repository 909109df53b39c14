"""Crashes of workers, and the steps that they were at.

Owns `Crash` and `Crashes`. Invariant: a step that has cost three workers, by whatever, fails with the story of all
three; what is known of a step is forgotten once it is built or has failed. Bounded memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from loader_service.errors import BuildError

__all__ = ["MAX_DEATHS", "Crash", "Crashes"]

MAX_DEATHS = 3
"""So many workers may die of one step; then the step has failed."""
_MAX_STEPS = 1000
"""Steps that are remembered; the oldest, which nobody wanted since, are forgotten first."""
_MAX_INDICES = 32


@dataclass(frozen=True, slots=True)
class Crash:
    """how: which worker (number, pid) ended by what, in words; stack: its Python stack, where there is one.

    hung: it was killed because it hung.
    """

    how: str
    stack: str = ""
    hung: bool = False


@dataclass(slots=True)
class _Step:
    deaths: list[Crash] = field(default_factory=list)
    samples: str = ""


class Crashes:
    """The steps that workers died of, by (stream, step)."""

    def __init__(self) -> None:
        self._steps: dict[tuple[str, int], _Step] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def count(self, stream: str, step: int) -> int:
        known = self._steps.get((stream, step))
        return len(known.deaths) if known else 0

    def add(self, stream: str, step: int, death: Crash) -> BuildError | None:
        """One more worker died of this step: the step's error once that is enough."""
        known = self._steps.setdefault((stream, step), _Step())
        known.deaths.append(death)
        if len(known.deaths) >= MAX_DEATHS:
            self.forget(stream, step)
            return _error(step, known)
        while len(self._steps) > _MAX_STEPS:
            del self._steps[next(iter(self._steps))]
        return None

    def told(self, stream: str, step: int, indices: list[int], rows: int) -> str:
        """A worker told which samples stand in the step: the words for the log, empty where no worker died of it.

        indices: the first ones of `rows`.
        """
        known = self._steps.get((stream, step))
        if known is None:
            return ""
        more = f", … ({rows} in all)" if rows > len(indices[:_MAX_INDICES]) else ""
        known.samples = f"dataset indices {', '.join(map(str, indices[:_MAX_INDICES]))}{more}"
        return f"{known.samples}: of them {known.deaths[-1].how}"

    def forget(self, stream: str, step: int) -> None:
        """The step is built, or has failed. Idempotent."""
        self._steps.pop((stream, step), None)


def _error(step: int, known: _Step) -> BuildError:
    kind = "WorkerHung" if known.deaths[-1].hung else "WorkerDied"
    story = "; ".join(death.how for death in known.deaths)
    samples = f" ({known.samples})" if known.samples else ""
    stack = next((death.stack for death in reversed(known.deaths) if death.stack), "")
    text = f"{story}; {MAX_DEATHS} workers died while they built this step{samples}"
    return BuildError(step=step, cause_type=kind, cause_message=text, remote_traceback=stack)
