"""One stream of this daemon, what it has done since the daemon started, and what `status` tells of it.

Owns `StreamState` and `StreamMetrics`. Invariant: the report is plain values, a picture of the moment; memory for
counts is bounded.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from loader_service.sharing.lane import Lane
from loader_service.sharing.scheduler import RingScheduler

__all__ = ["StreamMetrics", "StreamState"]

_LATEST = 1 << 16


@dataclass(slots=True)
class StreamMetrics:
    """Counts of one stream.

    Args:
        built: builds that succeeded.
        failed: steps that did not.
        lost: tasks that died with their worker.
        delivered: grants.
        verified: steps built a second time.
        impure: verified steps that differed or raised.
        unverified: steps that were to be verified and were not.
        latest: the steps of the latest 65,536 builds.
    """

    built: int = 0
    failed: int = 0
    lost: int = 0
    delivered: int = 0
    verified: int = 0
    impure: int = 0
    unverified: int = 0
    latest: deque[int] = field(default_factory=lambda: deque(maxlen=_LATEST))

    def builds(self) -> list[list[int]]:
        """Return [step, how often it was built] over the latest builds, by step."""
        return [list(item) for item in sorted(Counter(self.latest).items())]


@dataclass(slots=True)
class StreamState:
    """The facts of a stream as the workers told them, its consumers and lanes, and its counts.

    Args:
        name: as configured.
        stream_id: its place among the daemon's streams.
        steps_per_epoch: of its sampler.
        fingerprint: digest of all that its bytes depend on.
        description: what the fingerprint is a digest of.
        lanes: its consumers and rings.
        verify: N, every Nth step is built twice; 0 for none.
        metrics: what it has done.
    """

    name: str
    stream_id: int
    steps_per_epoch: int
    fingerprint: str
    description: dict[str, Any]
    lanes: RingScheduler
    verify: int = 0
    metrics: StreamMetrics = field(default_factory=StreamMetrics)

    def report(self, builds: bool) -> dict[str, Any]:
        """Return it as plain values; with `builds`, [step, how often it was built] of the latest builds too."""
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

    def consumer(self, consumer_id: int) -> dict[str, Any]:
        """Return one consumer of this stream: its position, its lane, the steps that it holds."""
        consumer = self.lanes.consumers[consumer_id]
        return {
            "consumer": consumer_id,
            "stream": self.name,
            "position": consumer.position,
            "lane": consumer.lane_id,
            "pace": consumer.options.policy.name,
            "hold": consumer.max_leases,
            "waits_for": consumer.wanted if consumer.demanded else None,
            "holds": sorted(consumer.held_steps.values()),
            "leases": len(consumer.leases),
            "held_others_up_s": round(consumer.blocked_others_s, 3),
            "evicted": consumer.evicted,
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
                "leased": self.lanes.pool.is_kept(slot.segment),
            }
            for slot in lane.ring.slots
        ]
        slowest = [consumer_id for consumer_id, member in lane.members.items() if member.cursor == lane.base]
        return {"lane": lane.lane_id, "base": lane.base, "waits_for_consumers": slowest, "slots": slots}
