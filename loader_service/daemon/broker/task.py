"""A step on its way through the workers.

Owns `Task`. Invariant: it holds one claim, from when it is claimed until the lanes hear what became of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loader_service.daemon.broker.stream_state import StreamState
from loader_service.daemon.workers.messages import Build, Built, Verify
from loader_service.sharing.lane_set import Claim

__all__ = ["Task"]


@dataclass(slots=True, eq=False)
class Task:
    """built, builder: what its first build gave, and who built it, while it waits for its verification."""

    stream: StreamState
    claim: Claim
    built: Built | None = None
    builder: Any = None

    @property
    def where(self) -> str:
        """For logs."""
        return f"stream {self.stream.name} step {self.claim.step}"

    @property
    def fields(self) -> dict[str, Any]:
        """For structured logs."""
        return {"stream": self.stream.name, "step": self.claim.step}

    def fields_of(self, worker: int) -> dict[str, Any]:
        """The same, with who did it."""
        return {**self.fields, "worker": worker}

    def build(self, number: int, explain: bool) -> Build:
        """The order to build it."""
        return Build(number, self.stream.number, self.claim.step, self.claim.placement, explain)

    def verify(self, number: int) -> Verify:
        """The order to build it once more and to compare."""
        assert self.built is not None  # else there is nothing to compare with
        claim, built = self.claim, self.built
        return Verify(number, self.stream.number, claim.step, claim.placement, built.nbytes, built.layout)
