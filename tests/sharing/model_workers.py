"""The workers of a world for RingScheduler: they claim, write, commit, fail and die.

Owns `Workers`: a world's account and its events of builds, with the answers that they bring. A demanded step is built
before one ahead, and the lanes that demand take turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from loader_service.sharing.consumer import Answer, Failure
from loader_service.sharing.fairness import Limits
from loader_service.sharing.lane_set import Claim
from tests.sharing.model_account import Account

__all__ = ["Workers"]


class Workers(Account):
    """One RingScheduler and its builds."""

    def __init__(self, prefetch: int, segments: int, limits: Limits | None = None) -> None:
        super().__init__(prefetch, segments, limits)
        self.errors: set[int] = set()
        self._generations: Counter[str] = Counter()
        self._turns: Counter[int] = Counter()  # lane -> when it was last given a build
        self._claims = 0

    def claim(self, demanded: bool = False) -> Claim | None:
        stood, first = self.standing(), self._first_lanes()
        claim = self.lanes.rings.claim(demanded)
        assert claim is not None or not first
        if claim is None:
            self.tally["waits for a spare"] += any(lane.demands() for lane in self.occupied())
            return None
        lane = self.lanes.lanes[claim.lane_id]
        assert lane.members
        assert claim.step in lane.window
        assert claim.slot == claim.step % len(lane.ring.slots)
        assert claim.step not in self.kept[claim.lane_id], f"{claim} was built already"
        assert self.memory.exists(claim.placement.segment), f"{claim} cannot be mapped"
        is_demanded = claim.step in {self.waiting[name] for name in lane.members.keys() & self.demanding}
        assert is_demanded or not (demanded or first)
        assert not first or self._turns[lane.name] <= min(self._turns[name] for name in first), "not its turn"
        self._claims += 1
        self._turns[lane.name] = self._claims
        self.tally.update(["replaced"] * (claim.placement.segment not in stood) + ["shared"] * (len(lane.members) > 1))
        self._begin(claim)
        self.check()
        return claim

    def larger(self, claim: Claim, nbytes: int) -> None:
        """The claim's segment is too small for `nbytes`. Raises MemoryLimitError; then the claim stands as it was."""
        claim = self.lanes.rings.larger(claim, nbytes)
        assert claim.placement.nbytes >= nbytes
        assert (claim.lane_id, claim.step) in self.builds
        self._begin(claim)
        self.check()

    def built(self, claim: Claim) -> None:
        text = ("bytes of", claim.step, claim.placement.segment, claim.placement.generation)
        self.memory.write(claim.placement.segment, text)
        self._end(claim)
        self._receive(self.lanes.built(claim, text))
        self.check()

    def failed(self, claim: Claim) -> None:
        self.errors |= {claim.step} if self.memory.exists(claim.placement.segment) else set()
        self._end(claim)
        self._receive(self.lanes.failed(claim, ("no bytes of", claim.step)))
        self.check()

    def aborted(self, claim: Claim) -> None:
        del self.builds[claim.lane_id, claim.step]
        self.lanes.aborted(claim)
        self.check()

    def settle(self) -> None:
        """Build all that can be built; then only a lease, or a leased segment without a spare, makes one wait."""
        while self.claim() or self.builds:
            for claim in list(self.builds.values()):
                self.built(claim)
        for consumer, step in self.waiting.items():
            lane = self.lane_of(consumer)
            assert lane is not None
            if step in lane.window:
                segment = lane.ring.of(step).segment
                assert self.memory.readers[segment] or segment in self.memory.given_up | self.memory.unlinked
                assert not self.takes(1)

    def _first_lanes(self) -> set[int]:
        """The lanes where a demanded step can be built for certain."""
        places = {
            (lane.name, self.waiting[name]) for lane in self.occupied() for name in lane.members.keys() & self.demanding
        }
        spare, lanes = self.takes(1), self.lanes.lanes
        return {
            name
            for name, step in places
            if lanes[name].can_claim(step) and (spare or not self.pool.leased(lanes[name].ring.of(step).segment))
        }

    def _receive(self, answers: Iterable[tuple[int, Answer]]) -> None:
        for consumer, answer in answers:
            step = self.waiting[consumer]
            self._stop_waiting(consumer)
            assert answer.step == step
            self.tally[type(answer).__name__] += 1
            if isinstance(answer, Failure):
                assert step in self.errors
                assert answer.error == ("no bytes of", step)
                continue
            assert answer.content == ("bytes of", step, answer.placement.segment, answer.placement.generation)
            assert answer.lease_id not in self.views
            assert self.memory.exists(answer.placement.segment), f"{answer} cannot be mapped"
            self.memory.readers[answer.placement.segment] += 1
            self.views[answer.lease_id] = consumer, answer
            self.position[consumer] = step + 1
            self.delivered[consumer].append(step)

    def _stop_waiting(self, consumer: int) -> None:
        self.waiting.pop(consumer, None)
        self.demanding.discard(consumer)

    def _begin(self, claim: Claim) -> None:
        """A worker writes: half of the bytes are there."""
        assert claim.placement.nbytes == self.memory.sizes[claim.placement.segment]
        assert claim.placement.generation > self._generations[claim.placement.segment]
        self._generations[claim.placement.segment] = claim.placement.generation
        self.builds[claim.lane_id, claim.step] = claim
        self.memory.write(claim.placement.segment, ("half of", claim.step))

    def _end(self, claim: Claim) -> None:
        del self.builds[claim.lane_id, claim.step]
        if claim.step in self.lanes.lanes[claim.lane_id].window and self.memory.exists(claim.placement.segment):
            self.kept[claim.lane_id].add(claim.step)
