"""RingScheduler where memory is short: what is refused leaves all as it was, and nobody who reads is harmed."""

from __future__ import annotations

import pytest

from loader_service.errors import MemoryLimitError
from tests.sharing.model_events import claim_all, take
from tests.sharing.model_memory import PAGE
from tests.sharing.model_world import World


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
    assert (large.step, large.placement.nbytes) == (0, 2 * PAGE)
    assert small.placement.segment not in world.memory.sizes
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


# --- names that somebody removed ---------------------------------------------------------------------------


def segment_of(world: World, step: int) -> str:
    (lane,) = world.lanes.lanes.values()
    return lane.ring.of(step).segment


def test_what_stands_ready_in_a_lost_segment_is_built_again_in_another() -> None:
    world = World(prefetch=4, segments=4)
    consumer = world.open(0)
    world.settle()
    lost = [segment_of(world, step) for step in (0, 2)]
    for segment in lost:
        world.unlink(segment)
    for step in range(4):
        assert take(world, consumer).placement.segment not in lost
        assert world.delivered[consumer][-1] == step
    world.end()
    assert not set(lost) & world.memory.sizes.keys()


def test_who_reads_a_lost_segment_reads_on_while_the_others_get_another() -> None:
    world = World(prefetch=2, segments=3)
    reader, other = world.open(0), world.open(0)
    grant = take(world, reader)
    world.unlink(grant.placement.segment)
    for consumer in (other, world.open(0)):
        assert take(world, consumer).placement.segment != grant.placement.segment
    assert grant.placement.segment in world.memory.sizes, "its room is its reader's until it has done"
    world.end()
    assert world.delivered[reader] == world.delivered[other] == [0]


def test_a_step_whose_worker_finds_its_segment_lost_is_built_again_and_has_not_failed() -> None:
    world = World(prefetch=2, segments=2)
    world.ask(consumer := world.open(0))
    claim = world.claim()
    assert claim is not None
    world.unlink(claim.placement.segment)
    world.failed(claim)
    assert claim_all(world) == [0, 1]
    world.end()
    assert world.delivered[consumer] == [0]


def test_a_step_that_was_built_into_a_lost_segment_is_built_again() -> None:
    world = World(prefetch=2, segments=2)
    world.ask(consumer := world.open(0))
    claim = world.claim()
    assert claim is not None
    world.unlink(claim.placement.segment)
    world.built(claim)
    assert world.waiting == {consumer: 0}
    world.end()
    assert world.delivered[consumer] == [0]


def test_a_new_lane_stands_on_segments_that_can_be_mapped() -> None:
    world = World(prefetch=3, segments=3)
    world.pool.fill()
    for segment in list(world.memory.sizes):
        world.unlink(segment)
    world.ask(consumer := world.open(7))
    world.end()
    assert world.delivered[consumer] == [7]
    assert not world.memory.unlinked & world.memory.sizes.keys()


def test_a_lost_segment_that_memory_cannot_replace_yet_makes_the_step_wait() -> None:
    world = World(prefetch=2, segments=2)
    reader, other = world.open(0), world.open(0)
    grant = take(world, reader)
    world.unlink(grant.placement.segment)
    world.ask(other)
    world.settle()
    assert world.waiting == {other: 0}
    world.release_all()
    world.settle()
    assert world.delivered[other] == [0]
    world.end()
