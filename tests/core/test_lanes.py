"""StreamLanes as a whole: every interleaving of its events, and the main facts one by one."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from loader_service.core.lanes import Failure, Grant
from loader_service.errors import ConsumerClosedError, IntegrityError
from tests.core.lanes_model import PAGE, World

Event = Callable[[World, int, int], object]
EVENTS: dict[str, tuple[int, Event]] = {
    "opens": (2, lambda world, step, _: len(world.position) < 5 and world.open(step)),
    "asks": (16, lambda world, which, _: world.position and world.ask(pick(world.position, which))),
    "asks within the window": (2, lambda world, which, offset: ask_within(world, which, offset)),
    "seeks": (2, lambda world, which, step: world.position and world.ask(pick(world.position, which), step)),
    "releases": (16, lambda world, which, _: world.views and release(world, pick(world.views, which))),
    "releases anything": (1, lambda world, consumer, lease: world.release(consumer, lease)),
    "closes": (1, lambda world, which, _: world.position and world.close(pick(world.position, which))),
    "loses a client": (1, lambda world, which, _: world.drop(which % (1 + len(world.delivered)))),
    "claims": (20, lambda world, _, __: world.claim()),
    "builds": (20, lambda world, which, _: world.builds and world.built(world.builds[pick(world.builds, which)])),
    "fails": (1, lambda world, which, _: world.builds and world.failed(world.builds[pick(world.builds, which)])),
    "loses a worker": (1, lambda world, which, _: world.builds and world.aborted(world.builds[pick(world.builds, which)])),
    "needs more": (1, lambda world, which, pages: world.builds and world.larger(world.builds[pick(world.builds, which)], 500 * pages)),
    "settles": (1, lambda world, _, __: world.settle()),
}


def pick(among, which):
    return sorted(among)[which % len(among)]

def release(world, lease):
    world.release(world.views[lease][0], lease)

def ask_within(world: World, which: int, offset: int) -> None:
    if not world.position: return
    consumer = pick(world.position, which)
    lane = world.lane_of(consumer)
    world.ask(consumer, None if lane is None else lane.window[offset % world.prefetch])


class AnyInterleaving(RuleBasedStateMachine):
    """All events in any order; `World` checks after each. `which` picks among those that are there."""

    @initialize(prefetch=st.sampled_from([1, 2, 3, 4, 5, 8]), rings=st.integers(1, 3), spare=st.integers(0, 2))
    def begin(self, prefetch: int, rings: int, spare: int) -> None:
        self.world = World(prefetch, rings * prefetch + spare)

    @rule(name=st.sampled_from(list(EVENTS)), which=st.integers(0,7), n=st.integers(0,24))
    def event(self, name, which, n) -> None:
        EVENTS[name][1](self.world, which, n)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.end()


TestAnyInterleaving = AnyInterleaving.TestCase
TestAnyInterleaving.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)

@pytest.mark.parametrize("prefetch", [1,2,3,4,8])
def test_random(prefetch):
    rng = random.Random(7)
    world = World(prefetch, 2 * prefetch + 1)
    for kind in rng.choices(list(EVENTS), [w for w, _ in EVENTS.values()], k=20_000):
        EVENTS[kind][1](world, rng.randrange(25), rng.randrange(8) if kind != "seeks" else rng.randrange(1000))
    world.end()
    print(world.tally, len(world.claimed), world.memory.created, world.memory.refused, len(world.lanes.lanes))
