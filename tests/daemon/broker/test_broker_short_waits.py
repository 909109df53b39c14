"""The broker and many short waits: a consumer that is a little slower than another is split off all the same.

Two trainers are simulated on a clock of their own. They read as clients do: one Get for all steps, a Release for each
batch when the next is here, and a Demand when they wait, at once where the last step had been blocked.
"""

from __future__ import annotations

from collections import deque

import pytest

from loader_service.wire.messages import Demand, Get, Ready, Release
from tests.daemon.broker.broker_harness import BrokerHarness, identity

TICK_S = 0.00025
DEMAND_AFTER_S = 0.01
FAST_S = 0.0005


class Trainer:
    """A loop over one consumer that takes `step_s` for each batch, and holds it until it has the next."""

    def __init__(self, harness: BrokerHarness, client: int, step_s: float) -> None:
        self.harness, self.client, self.step_s = harness, client, step_s
        self.consumer = harness.open(client)
        self.taken = 0
        self._here: deque[Ready] = deque()
        self._held: Ready | None = None
        self._busy_until_s = self._waits_since_s = 0.0
        self._demanded = True
        harness.say(client, Get(1, self.consumer, 0, 2**62, [], True))

    def hear(self, message: Ready) -> None:
        self._here.append(message)

    def go_on(self, now_s: float) -> None:
        if now_s < self._busy_until_s:
            return
        if not self._here:
            waited_s = now_s - max(self._busy_until_s, self._waits_since_s)
            at_once = self._held is not None and self._held.blocked
            if not self._demanded and (at_once or waited_s >= DEMAND_AFTER_S):
                self._demanded = True
                self.harness.say(self.client, Demand(self.consumer, self.taken))
            return
        before, self._held = self._held, self._here.popleft()
        assert self._held.step == self.taken
        self.taken, self._demanded = self.taken + 1, False
        self._busy_until_s = self._waits_since_s = now_s + self.step_s
        if before is not None:
            self.harness.say(self.client, Release(self.consumer, [before.lease]))


def lanes_after(slow_s: float, seconds: float, pace: str = "split") -> int:
    """The number of lanes after a time with a fast and a slow trainer in one."""
    harness = BrokerHarness(prefetch=8, streams="a", reads_on=False)
    slow, fast = Trainer(harness, 1, slow_s), Trainer(harness, 2, FAST_S)
    lanes = harness.broker.streams["a"].lanes.lanes
    for tick in range(round(seconds / TICK_S)):
        harness.timer.pass_time(TICK_S)
        while harness.steps():
            harness.build()
        for socket, message in harness.sent:
            if isinstance(message, Ready):
                (slow if socket == identity(1) else fast).hear(message)
        harness.sent.clear()
        slow.go_on(tick * TICK_S)
        fast.go_on(tick * TICK_S)
        if len(lanes) > 1:
            break
    return len(lanes)


@pytest.mark.parametrize("slow_s", [0.001, 0.002, 0.008, 0.015, 0.05])
def test_one_for_whom_another_waits_again_and_again_is_split_off_however_short_each_wait(slow_s: float) -> None:
    assert lanes_after(slow_s, seconds=8.0) == 2


def test_one_that_keeps_up_stays() -> None:
    assert lanes_after(FAST_S, seconds=2.0) == 1
