"""The workers of a world for RingScheduler: they claim, write, commit, fail and die.

Owns `Workers`: a world's account and its events of builds, with the answers that they bring. A demanded step is built
before one ahead, and the lanes that demand take turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from loader_service.errors import EvictedError, LoaderServiceError
from loader_service.sharing.consumer import Answer, Failure
from loader_service.sharing.fairness import Limits
from loader_service.sharing.lane_table import Claim
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
        self._built: list[tuple[int, int]] = []

    def built_steps(self, lane_id: int) -> list[int]:
        """The steps that were built for a lane, with repetitions."""
        return [step for one, step in self._built if one == lane_id]

    def claim(self, demanded: bool = False) -> Claim | None:
        stood, first = self.standing(), self._first_lanes()
        possible = {lane_id: self.reference.claimable(lane_id) for lane_id in self.reference.occupied()}
        claim = self.lanes.rings.claim(demanded)
        assert claim is not None or not first
        if claim is None:
            self.tally["waits for a spare"] += any(lane.demands() for lane in self.occupied())
            return None
        members = self.reference.members(claim.lane_id)
        demands = {one.wanted for one in members.values() if one.demanded}
        assert claim.step in possible[claim.lane_id]
        assert self.memory.exists(claim.placement.segment), f"{claim} cannot be mapped"
        assert claim.step in demands or not (demanded or first)
        assert not first or self._turns[claim.lane_id] <= min(self._turns[one] for one in first), "not its turn"
        self._claims += 1
        self._turns[claim.lane_id] = self._claims
        self.tally.update(["replaced"] * (claim.placement.segment not in stood) + ["shared"] * (len(members) > 1))
        self.reference.begin(claim.lane_id, claim.step, claim.placement.segment)
        self._begin(claim)
        self.check()
        return claim

    def build_of(self, step: int, lane_id: int = 0) -> Claim:
        """The build of a step that is under way."""
        [claim] = [one for one in self.builds.values() if (one.lane_id, one.step) == (lane_id, step)]
        return claim

    def larger(self, claim: Claim, nbytes: int) -> None:
        """The claim's segment is too small for `nbytes`. Raises MemoryLimitError; then the claim stands as it was."""
        larger = self.lanes.rings.larger(claim, nbytes)
        assert larger.placement.nbytes >= nbytes
        assert (larger.lane_id, larger.step) == (claim.lane_id, claim.step)
        del self.builds[claim.placement.segment]
        self.reference.enlarge(claim.lane_id, claim.step, claim.placement.segment, larger.placement.segment)
        self._begin(larger)
        self.check()

    def built(self, claim: Claim) -> None:
        segment = claim.placement.segment
        text = ("bytes of", claim.step, segment, claim.placement.generation)
        self.memory.write(segment, text)
        self._end(claim, "ready" if self.memory.exists(segment) else "lost")
        self._built.append((claim.lane_id, claim.step))
        self._receive(self.lanes.built(claim, text, claim.placement.nbytes))
        self.check()

    def failed(self, claim: Claim) -> None:
        lost = not self.memory.exists(claim.placement.segment)
        self.errors |= set() if lost else {claim.step}
        self._end(claim, "free" if lost else "failed")
        self._receive(self.lanes.failed(claim, ("no bytes of", claim.step)))
        self.check()

    def aborted(self, claim: Claim) -> None:
        self._end(claim, "free")
        self.lanes.aborted(claim)
        self.check()

    def settle(self) -> None:
        """Build all that can be built; then only a lease, or a leased segment without a spare, makes one wait."""
        while self.claim() or self.builds:
            for claim in list(self.builds.values()):
                self.built(claim)
        for consumer, step in self.waiting.items():
            lane = self.reference.lane_of(consumer)
            assert lane is not None
            if step in lane.window:
                segment = self.segment_at(self.reference.readers[consumer].lane_id or 0, step)
                assert self.memory.readers[segment] or segment in self.memory.given_up | self.memory.unlinked
                assert not self.takes(1)

    def _first_lanes(self) -> set[int]:
        """The lanes where a demanded step can be built for certain."""
        places = {(self.reference.readers[name].lane_id or 0, self.waiting[name]) for name in self.demanding}
        spare = self.takes(1)
        return {
            lane_id
            for lane_id, step in places
            if self.reference.can_build(lane_id, step)
            and (spare or not self.pool.is_kept(self.segment_at(lane_id, step)))
        }

    def _receive(self, answers: Sequence[tuple[int, Answer]]) -> None:
        for place, (consumer, answer) in enumerate(answers):
            if isinstance(answer, Failure) and isinstance(answer.error, LoaderServiceError):
                self._is_refused(consumer, answer.step, answer.error)
                continue
            step = self.waiting[consumer]
            assert answer.step == step
            self.tally[type(answer).__name__] += 1
            if isinstance(answer, Failure):
                self.reference.stop_waiting(consumer)
                self.reference.readers[consumer].asked_until, self.reference.readers[consumer].run_left = step, 0
                assert step in self.errors
                assert answer.error == ("no bytes of", step)
                continue
            assert answer.content == ("bytes of", step, answer.placement.segment, answer.placement.generation)
            assert answer.lease_id not in self.views
            assert self.memory.exists(answer.placement.segment), f"{answer} cannot be mapped"
            self.memory.readers[answer.placement.segment] += 1
            self.views[answer.lease_id] = consumer, answer
            self.reference.take(consumer, answer.lease_id, step)
            self.delivered[consumer].append(step)
            self._run_on(consumer, answers[place + 1 :])

    def _run_on(self, consumer: int, answers: Sequence[tuple[int, Answer]]) -> None:
        """It asks for the next step of its run, unless it has one batch more than it may keep, or is refused it."""
        reader = self.reference.readers.get(consumer)
        held = sum(holder == consumer for holder, _ in self.views.values())
        if reader is None or not reader.run_left or reader.wanted is not None:
            return
        if held > self.lanes.consumers[consumer].max_leases:
            return
        self.tally["ran on"] += 1
        reader.run_left -= 1
        answer = next((answer for name, answer in answers if name == consumer), None)
        if not (isinstance(answer, Failure) and isinstance(answer.error, LoaderServiceError)):
            demanded = reader.position == reader.demanded_step
            self.reference.wait(consumer, reader.position, demanded, jumps=False)

    def _is_refused(self, consumer: int, step: int, error: LoaderServiceError) -> None:
        """There was no memory for the next step of its run; one that was split off is put out then."""
        reader = self.reference.readers[consumer]
        assert (reader.position, reader.wanted) == (step, None)
        reader.run_left, reader.asked_until = 0, step
        if isinstance(error, EvictedError):
            assert reader.split
            self.reference.leave(consumer)
            self._is_put_out(consumer)
        else:
            self.reference.refuse(consumer, step, had_lane="has no memory" in error.message)

    def _is_put_out(self, consumer: int) -> None:
        """Note that it was put out: what it reads stays with it for ever, and no lease is on it any more."""
        open_still = consumer in self.position
        self._forget(consumer)
        self.put_out |= {consumer} if open_still else set()
        for lease in [lease for lease, (holder, _) in self.views.items() if holder == consumer]:
            self.given_up.append(self.views[lease][1])
            self.memory.given_up.add(self.views[lease][1].placement.segment)
            self._end_view(lease)

    def _end_view(self, lease: int) -> None:
        _, grant = self.views.pop(lease)
        self.memory.readers[grant.placement.segment] -= 1

    def _forget(self, consumer: int) -> None:
        self.reference.remove(consumer)
        self.put_out.discard(consumer)

    def _begin(self, claim: Claim) -> None:
        """A worker writes: half of the bytes are there."""
        segment, generation = claim.placement.segment, claim.placement.generation
        assert claim.placement.nbytes == self.memory.sizes[segment]
        assert generation > self._generations[segment]
        self._generations[segment] = generation
        self.builds[segment] = claim
        self.memory.write(segment, ("half of", claim.step))

    def _end(self, claim: Claim, state: str) -> None:
        del self.builds[claim.placement.segment]
        self.reference.end(claim.lane_id, claim.step, claim.placement.segment, state)
