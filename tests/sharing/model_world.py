"""A world for RingScheduler: memory with a limit, workers that write into it, consumers that look at it, and time.

Owns `World`, which sends events to one RingScheduler and compares what it does with the model's own account
(`model_account`, `model_lanes`, `model_memory_use`). Each event checks all that must hold at all times; `finish` and
`end` what must come to be in the end.
"""

from __future__ import annotations

from loader_service.errors import EvictedError, MemoryLimitError
from loader_service.sharing.consumer import Answer, ConsumerOptions
from tests.sharing import model_memory_use
from tests.sharing.model_lanes import END
from tests.sharing.model_memory import PAGE, Memory
from tests.sharing.model_workers import Workers

__all__ = ["PAGE", "Memory", "World"]


class World(Workers):
    """One RingScheduler and its events. Its consumers read on: what they ask for one by one they want in a row."""

    # --- consumers ---------------------------------------------------------------------------------------

    def open(self, step: int | None, terms: ConsumerOptions | None = None, *, asks: bool = False) -> int:
        """A new consumer at `step`, with None live: its number. Raises MemoryLimitError; then it is not open.

        asks: nothing is built for it before it asks, and then no more than it asks for.
        """
        consumer, live_step = len(self.delivered), self._live_step()
        self.delivered[consumer] = []
        opened_at = self.lanes.open(consumer, step, terms).position
        assert opened_at == (live_step if step is None else step)
        self.tally["live"] += step is None and bool(self.position)
        self.reference.add(consumer, opened_at, terms or ConsumerOptions())
        self._asks_until(consumer, opened_at if asks else END)
        self.check()
        return consumer

    def _live_step(self) -> int:
        """The position of the slowest in the fullest lane, within its window."""
        lanes = [(len(self.reference.members(one)), -one) for one in self.reference.occupied()]
        if not lanes:
            return 0
        fullest = -max(lanes)[1]
        slowest = min(one.position for one in self.reference.members(fullest).values())
        return min(slowest, self.reference.lanes[fullest].window.stop - 1)

    def _asks_until(self, consumer: int, step: int) -> None:
        self.lanes.consumers[consumer].asked_until = self.reference.readers[consumer].asked_until = step

    def ask(
        self,
        consumer: int,
        step: int | None = None,
        *,
        demanded: bool = True,
        jumps: bool = False,
        alone: bool = False,
        steps: int = 1,
    ) -> Answer | None:
        """Ask for `step`, by default the next one. Raises MemoryLimitError, then it may ask again, and EvictedError.

        alone: nothing is built for it beyond that step; steps: how many it asks for, one after the other.
        """
        step = self.position[consumer] if step is None else step
        reader = self.reference.readers[consumer]
        was_split, reader.run_left = reader.split, 0
        had_room = self.takes(self.prefetch) and not self.limits.max_lanes
        lane_id, goes_to = self.reference.readers[consumer].lane_id, self.reference.stays_in(consumer, step, jumps)
        try:
            answers = self.lanes.ask(consumer, step, steps=steps, demanded=demanded, jumps=jumps)
        except EvictedError:
            assert was_split
            assert not had_room
            self.reference.leave(consumer)
            self._is_put_out(consumer)
            self.check()
            raise
        except MemoryLimitError as error:
            self.reference.refuse(consumer, step, had_lane="has no memory" in error.message)
            self.reference.readers[consumer].asked_until = self.lanes.consumers[consumer].asked_until
            raise
        self.tally["merged"] += goes_to not in (None, lane_id)
        self.tally["jumped"] += jumps and goes_to is None and lane_id is not None
        self.reference.wait(consumer, step, demanded, jumps)
        reader.run_left, reader.asked_until = steps - 1, step + steps
        self._receive(answers)
        if steps == 1 and reader.asked_until > step:
            self._asks_until(consumer, step + 1 if alone else END)
        self.check()
        return answers[0][1] if answers else None

    def demand(self, consumer: int) -> None:
        """Let a consumer say that it cannot go on without the step that it waits for, if it does."""
        self.lanes.demand(consumer, self.waiting.get(consumer, -1))
        if consumer in self.reference.readers:
            self.reference.readers[consumer].demanded_step = self.waiting.get(consumer, -1)
            self.reference.readers[consumer].demanded = consumer in self.waiting
        self.check()

    def release(self, consumer: int, lease: int) -> None:
        if lease in self.views and self.views[lease][0] == consumer:
            self._end_view(lease)
            self.reference.release(consumer, lease)
        answers = self.lanes.release(consumer, lease)
        self._run_on(consumer, answers)
        self._receive(answers)
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
        """Let time pass, until nobody is to leave any more: each split or eviction may make room for the next."""
        self._pass_once(elapsed_s)
        for _ in range(2 * len(self.lanes.consumers) + 1):
            if self.lanes.due_s() != 0:
                break
            self._pass_once(0)
        assert self.lanes.due_s() != 0, "somebody is to leave for ever"
        for name in self.reference.blockers():
            policy = self.reference.readers[name].options.policy
            blocked_s = self.reference.blocked_s[name]
            assert policy.waits or blocked_s < policy.patience_s or not model_memory_use.could_leave(self, name)

    def _pass_once(self, elapsed_s: float) -> None:
        due_s, blockers = self.lanes.due_s(), self.reference.blockers()
        memory_blockers = model_memory_use.memory_blockers(self)
        self.reference.pass_time(elapsed_s, memory_blockers)
        passed = self.lanes.pass_time(elapsed_s)
        assert bool(passed.left) == (due_s is not None and due_s <= elapsed_s)
        for name, why in passed.left:
            blocked_s, reader = self.reference.blocked_s[name], self.reference.readers.get(name)
            policy = reader.options.policy if reader else None
            overdue = name in blockers and policy and not policy.waits and blocked_s >= policy.patience_s
            put_out = name in blockers | memory_blockers and 0 < self.limits.evict_after_s <= blocked_s
            assert overdue or (put_out and why), f"{name} left its lane without a reason"
            self.tally["evicted" if why else "split"] += 1
            if why:
                self._is_put_out(name)
            else:
                self._is_split(name)
        self._receive(passed.answers)
        self.check()

    def _is_split(self, name: int) -> None:
        """It has left its lane; one that waits for a step gets another at once."""
        reader = self.reference.readers[name]
        wanted, demanded = reader.wanted, reader.demanded
        self.reference.leave(name)
        reader.split = True
        if wanted is not None:
            self.reference.wait(name, wanted, demanded, jumps=False)

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
        self.reference.resize(prefetch)
        self.check()

    def unlink(self, segment: str) -> None:
        """Somebody removes the name of a segment; what stood in it is built again for whoever has not got it."""
        self.memory.unlinked.add(segment)
        self.tally["unlinked"] += 1
        for lane_id, lane in self.lanes.lanes.items():
            steps = self.reference.lanes[lane_id].steps
            lost = [slot.step for slot in lane.ring.slots if slot.segment == segment]
            steps |= {step: "lost" for step in lost if step is not None and steps[step] == "ready"}
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
            at_rest = not self.views and not self.detached() and self.demanding == self.waiting.keys()
            if at_rest and self.lanes.due_s() is None:
                break
        assert not self.views
        for consumer, step in self.waiting.items():
            lane_id = self.reference.readers[consumer].lane_id
            assert lane_id is not None
            assert step not in self.reference.lanes[lane_id].window
            idle = self.reference.idle_at_base(lane_id)
            assert idle, f"{consumer} waits for nobody"
            assert not self.limits.evict_after_s
            policies = {name: self.reference.readers[name].options.policy for name in idle}
            assert all(one.waits or not model_memory_use.could_leave(self, name) for name, one in policies.items())
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
