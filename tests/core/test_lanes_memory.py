"""StreamLanes where memory is short: what is refused leaves all as it was, and nobody who reads is harmed."""

from __future__ import annotations

import pytest

from loader_service.errors import MemoryLimitError
from tests.core.lanes_memory import PAGE
from tests.core.lanes_model import World


def test_an_open_that_memory_refuses_leaves_nothing_behind() -> None:
    world = World(prefetch=4, segments=7)
    world.open(0)
    with pytest.raises(MemoryLimitError):
        world.open(50)
    assert (len(world.lanes.lanes), len(world.lanes.consumers), len(world.pool)) == (1, 1, 4)
    world.end()


def test_a_seek_that_memory_refuses_leaves_the_consumer_open() -> None:
    world = World(prefetch=2, segments=2)
    other, consumer = world.open(0), world.open(0)
    for _ in range(2):
        with pytest.raises(MemoryLimitError):
            world.ask(consumer, 50)
    world.close(other)
    world.ask(consumer, 50)
    world.end()
    assert world.delivered[consumer] == [50]


def test_a_larger_segment_takes_the_place_of_one_that_is_too_small() -> None:
    world = World(prefetch=2, segments=4)
    world.ask(world.open(0))
    small = world.claim()
    assert small is not None
    world.larger(small, PAGE + 1)
    (large,) = world.builds.values()
    assert (large.step, large.place, large.segment_bytes) == (0, 0, 2 * PAGE)
    assert small.segment not in world.memory.sizes
    world.end()


def test_a_segment_that_cannot_be_had_larger_leaves_the_claim_and_the_stream_as_they_were() -> None:
    world = World(prefetch=2, segments=4)
    world.open(0)
    claim = world.claim()
    assert claim is not None
    with pytest.raises(MemoryLimitError):
        world.larger(claim, 100 * PAGE)
    world.failed(claim)
    world.ask(consumer := world.open(90))
    world.end()
    assert world.delivered[consumer] == [90]
