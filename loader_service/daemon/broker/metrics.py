"""What a stream has done since the daemon started.

Owns `StreamMetrics`: plain counts, and how often each of the latest steps was built. Bounded memory.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

__all__ = ["StreamMetrics"]

_LATEST = 1 << 16


@dataclass(slots=True)
class StreamMetrics:
    """built: builds that succeeded; failed: steps that did not; lost: tasks that died with their worker; delivered:
    grants; verified: steps built a second time, of which impure: that differed or raised; unverified: skipped.
    """

    built: int = 0
    failed: int = 0
    lost: int = 0
    delivered: int = 0
    verified: int = 0
    impure: int = 0
    unverified: int = 0
    latest: deque[int] = field(default_factory=lambda: deque(maxlen=_LATEST))

    def count_build(self, step: int) -> None:
        self.built += 1
        self.latest.append(step)

    def builds(self) -> list[list[int]]:
        """[step, how often it was built] over the latest 65,536 builds, by step."""
        return [list(item) for item in sorted(Counter(self.latest).items())]
