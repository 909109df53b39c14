"""A world for RingScheduler: memory with a limit, workers that write into it, consumers that look at it, and time.

Owns `World`, which sends events to one RingScheduler and compares what it does with its own account (`model_account`,
`model_blame`). Each event checks all that must hold at all times; `finish` and `end` what must come to be in the end.
"""

from __future__ import annotations

from loader_service.errors import EvictedError
from loader_service.sharing.consumer import Answer
from loader_service.sharing.lane import Lane
from loader_service.sharing.pace import ConsumerOptions
from loader_service.sharing.ring import SlotState
from tests.sharing import model_blame
from tests.sharing.model_memory import PAGE, Memory
from tests.sharing.model_workers import Workers

__all__ = ["PAGE", "Memory", "World"]


class World(Workers):
    """One RingScheduler and its events."""

    # --- consumers ---------------------------------------------------------------------------------------

    def open(self, step: int | None, terms: ConsumerOptions | None = None) -> int:
        """A new consumer at `step`, with None live: its number. Raises MemoryLimitError; then it is not open."""
        consumer = len(self.delivered)
        self.delivered[consumer] = []
        fullest = max(self.occupied(), key=lambda lane: len(lane.members), default=None)
        opened_at = self.lanes.open(consumer, step, terms)
        if step is None and fullest is not None:
            slowest = min(self.position[name] for name in fullest.members if name != consumer)
            assert opened_at == min(slowest, fullest.window.stop - 1)
        assert step is not None or opened_at == 0 or fullest is not None
        self.tally["live"] += step is None and fullest is not None
        self.position[consumer], self.terms[consumer] = opened_at, terms or ConsumerOptions()
        self.check()
        return consumer

    def ask(
        self, consumer: int, step: int | None = None, *, demanded: bool = True, jumps: bool = False
    ) -> Answer | None:
        """Ask for `step`, by default the next one. Raises MemoryLimitError, then it may ask again, and EvictedError."""
        step = self.position[consumer] if step is None else step
        lane, was_split = self.lane_of(consumer), self.lanes.consumers[consumer].split
        had_room = self.takes(self.prefetch) and not self.limits.max_lanes
        goes_to = None if lane is None else self._goes_on_in(consumer, lane, step)
        if lane is not None and jumps and self._is_in_its_own_way(consumer, lane, step):
            goes_to, self.tally["jumped"] = None, self.tally["jumped"] + 1
        self.position[consumer] = step
        self._stop_waiting(consumer)
        try:
            answer = self.lanes.ask(consumer, step, demanded=demanded, jumps=jumps)
        except EvictedError:
            assert was_split
            assert not had_room
            self._is_put_out(consumer)
            self.check()
            raise
        if goes_to is not None:
            assert self.lane_of(consumer) is goes_to
            self.tally["merged"] += goes_to is not lane
        self.waiting[consumer] = step
        self.demanding |= {consumer} if demanded else set()
        self._receive([(consumer, answer)] if answer is not None else [])
        self.check()
        return answer

    def demand(self, consumer: int) -> None:
        """What the consumer waits for, if it does, it cannot go on without from now on."""
        self.lanes.demand(consumer, self.waiting.get(consumer, -1))
        self.demanding |= {consumer} & self.waiting.keys()
        self.check()

    def release(self, consumer: int, lease: int) -> None:
        if lease in self.views and self.views[lease][0] == consumer:
            self._end_view(lease)
        self.lanes.release(consumer, lease)
        self.check()

    def release_all(self, *consumers: int) -> None:
        """Release all views of these consumers, of everyone where none is named."""
        for lease, (consumer, _) in list(self.views.items()):
            if not consumers or consumer in consumers:
                self.release(consumer, lease)

    def close(self, consumer: int) -> None:
        self._forget(consumer)
        self.lanes.close(consumer)
        self.check()

    def drop(self, consumer: int) -> None:
        self._forget(consumer)
        for lease in [lease for lease, (holder, _) in self.views.items() if holder == consumer]:
            self._end_view(lease)
        self.lanes.drop(consumer)
        assert consumer not in self.lanes.consumers
        self.check()

    def evict(self, consumer: int) -> None:
        self.lanes.evict(consumer, "it was told to")
        self._is_put_out(consumer)
        self.check()

    # --- time and size -------------------------------------------------------------------------------------

    def pass_time(self, elapsed_s: float) -> None:
        """Let time pass, until nobody is overdue any more: each split or eviction may make room for the next."""
        self._pass_once(elapsed_s)
        for _ in range(2 * len(self.lanes.consumers) + 1):
            if self.lanes.due_s() != 0:
                break
            self._pass_once(0)
        assert self.lanes.due_s() != 0, "somebody is overdue for ever"
        for name in model_blame.at_base(self):
            pace = self.terms[name].pace
            assert pace.waits or self.debt[name] < pace.patience_s or not model_blame.could_leave(self, name)

    def _pass_once(self, elapsed_s: float) -> None:
        due_s, before = self.lanes.due_s(), self.members()
        at_base, hoarders = model_blame.at_base(self), model_blame.hoarders(self)
        self.debt |= model_blame.debts_after(self, elapsed_s)
        passed = self.lanes.pass_time(elapsed_s)
        known, after = self.lanes.consumers, self.members()
        evicted = {name for name in known if known[name].evicted} - self.put_out
        evicted |= {name for name, _ in self.views.values()} - known.keys()
        assert set(passed.evicted) == evicted & known.keys()
        moved = {name for name, member in before.items() if after.get(name) is not member} - evicted
        for name in moved | evicted:
            pace, debt_s = self.terms[name].pace, self.debt[name]
            overdue = name in at_base and not pace.waits and debt_s >= pace.patience_s
            put_out = name in at_base | hoarders and 0 < self.limits.evict_after_s <= debt_s
            assert overdue or (put_out and name in evicted), f"{name} left its lane without a reason"
            self.tally["evicted" if name in evicted else "split"] += 1
        assert bool(moved | evicted) == (due_s is not None and due_s <= elapsed_s)
        for name in evicted:
            self._is_put_out(name)
        self._receive(passed.answers)
        self.check()

    def retune(self, prefetch: int) -> None:
        """Raises ArgumentError, MemoryLimitError; nothing has changed then."""
        rings = [(lane.window, len(lane.ring.slots)) for lane in self.lanes.lanes.values()]
        try:
            self.lanes.retune(prefetch)
        except Exception:  # whatever it is, it must have changed nothing; it goes on to the caller
            assert rings == [(lane.window, len(lane.ring.slots)) for lane in self.lanes.lanes.values()]
            assert self.lanes.prefetch == self.prefetch
            raise
        self.tally["retuned up" if prefetch > self.prefetch else "retuned down"] += prefetch != self.prefetch
        self.prefetch = prefetch
        self.check()

    def unlink(self, segment: str) -> None:
        """Somebody removes the name of a segment; what stood in it is built again for whoever has not got it."""
        self.memory.unlinked.add(segment)
        self.tally["unlinked"] += 1
        for lane in self.lanes.lanes.values():
            self.kept[lane.name] -= {slot.step for slot in lane.ring.slots if slot.segment == segment}
        self.check()

    # --- what comes to be ----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Release all, build all, let much time pass: in the end one waits only where that is what was agreed."""
        for _ in range(20 + 10 * len(self.position)):
            for consumer in list(self.waiting):
                self.demand(consumer)
            self.release_all()
            self.pass_time(1000)
            for consumer in self.detached():
                self.ask_or_be_put_out(consumer)
            self.settle()
            if not self.views and not self.detached() and self.lanes.due_s() is None:
                break
        assert not self.views
        for consumer, step in self.waiting.items():
            lane = self.lane_of(consumer)
            assert lane is not None
            assert step not in lane.window
            idle = model_blame.idle_at_base(self, lane)
            assert idle, f"{consumer} waits for nobody"
            assert not self.limits.evict_after_s
            assert all(self.terms[name].pace.waits or not model_blame.could_leave(self, name) for name in idle)
        assert all(len(lane.ring.slots) <= self.prefetch for lane in self.lanes.lanes.values())

    def ask_or_be_put_out(self, consumer: int) -> None:
        """The next step, or the one after it where that has failed."""
        try:
            self.ask(consumer, self.position[consumer] + (self.position[consumer] in self.errors))
        except EvictedError:
            self.tally["evicted"] += 1

    def end(self) -> None:
        """Finish and close everyone: nothing is left but the reserve."""
        self.finish()
        for consumer in [*self.position, *self.put_out]:
            self.close(consumer)
        self.settle()
        assert not self.lanes.lanes
        assert not self.lanes.consumers
        assert len(self.pool) <= self.prefetch
        assert all(nbytes >= self.pool.segment_bytes for nbytes in self.memory.sizes.values())
        assert not self.memory.given_up & self.memory.sizes.keys()

    # --- within ----------------------------------------------------------------------------------------------

    def _goes_on_in(self, consumer: int, lane: Lane, step: int) -> Lane | None:
        """Where a member that asks for its next step, or one of the window, is then; None for one that seeks."""
        after_failure = lane.ring.state(self.position[consumer]) is SlotState.FAILED
        if step not in (self.position[consumer], self.position[consumer] + after_failure) and step not in lane.window:
            return None
        met = next((other for other in self.occupied() if step in other.window), lane)
        waits = any(self.terms[name].pace.waits for name in met.members)
        return met if met.name < lane.name and (self.terms[consumer].pace.waits or not waits) else lane

    @staticmethod
    def _is_in_its_own_way(consumer: int, lane: Lane, step: int) -> bool:
        """Whether the window cannot come to `step` before the member releases something."""
        leased = lane.members[consumer].leases.values()
        return bool(leased) and min(leased) + lane.prefetch <= step

    def _is_put_out(self, consumer: int) -> None:
        """What it reads stays with it for ever, and no lease is on it any more."""
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
        self.position.pop(consumer, None)
        self.put_out.discard(consumer)
        self._stop_waiting(consumer)
