"""One stream of this daemon, and what `status` tells of it.

Owns `StreamState`. Invariant: the report is plain values, a picture of the moment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from loader_service.daemon.broker.metrics import StreamMetrics
from loader_service.sharing.lane import Lane
from loader_service.sharing.scheduler import RingScheduler

__all__ = ["StreamState"]


@dataclass(slots=True)
class StreamState:
    """What the workers said of the stream, its lanes, its counts.

    number: its place among the daemon's streams; verify: N, every Nth step is built twice, 0 for none.
    """

    name: str
    number: int
    steps_per_epoch: int
    fingerprint: str
    description: dict[str, Any]
    lanes: RingScheduler
    verify: int = 0
    metrics: StreamMetrics = field(default_factory=StreamMetrics)

    def report(self, builds: bool) -> dict[str, Any]:
        """As plain values; with `builds`, [step, how often it was built] of the latest builds too."""
        metrics = self.metrics
        told = {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "steps_per_epoch": self.steps_per_epoch,
            "prefetch": self.lanes.prefetch,
            "max_lanes": self.lanes.rings.max_lanes,
            "built": metrics.built,
            "failed": metrics.failed,
            "lost": metrics.lost,
            "delivered": metrics.delivered,
            "verify": self.verify,
            "verified": metrics.verified,
            "impure": metrics.impure,
            "unverified": metrics.unverified,
            "segments": len(self.lanes.pool),
            "segment_bytes": self.lanes.pool.segment_bytes,
            "total_bytes": self.lanes.pool.total_bytes,
            "lanes": [self._lane(lane) for lane in self.lanes.lanes.values()],
        }
        return told | ({"builds": metrics.builds()} if builds else {})

    def consumer(self, number: int) -> dict[str, Any]:
        """One consumer of this stream: its position, its lane, the steps that it holds."""
        known = self.lanes.consumers[number]
        member = None if known.lane is None else known.lane.members[number]
        return {
            "consumer": number,
            "stream": self.name,
            "position": known.position,
            "lane": None if known.lane is None else known.lane.name,
            "pace": known.terms.pace.policy,
            "hold": known.hold,
            "waits_for": None if member is None or not member.demanded else member.wanted,
            "holds": [] if member is None else sorted(member.leases.values()),
            "leases": len(known.leases),
            "held_others_up_s": round(known.debt_s if member is None else member.debt_s, 3),
            "evicted": known.evicted,
        }

    def _lane(self, lane: Lane) -> dict[str, Any]:
        slots = [
            {
                "slot": slot.place,
                "step": slot.step,
                "state": slot.state.value,
                "segment": slot.segment,
                "generation": slot.placement.generation if slot.placement else 0,
                "bytes": self.lanes.pool.nbytes(slot.segment),
                "leased": self.lanes.pool.leased(slot.segment),
            }
            for slot in lane.ring.slots
        ]
        slowest = [name for name, member in lane.members.items() if member.cursor == lane.base]
        return {"lane": lane.name, "base": lane.base, "waits_for_consumers": slowest, "slots": slots}
