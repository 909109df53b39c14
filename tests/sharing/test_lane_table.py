"""The lanes of a stream: who is built for next, and how many there may be."""

from __future__ import annotations

import pytest

from loader_service.errors import MemoryLimitError
from loader_service.sharing.consumer import Consumer, ConsumerOptions
from loader_service.sharing.fairness import Limits
from loader_service.sharing.lane_table import LaneTable
from loader_service.sharing.segment_pool import SegmentPool
from tests.sharing.model_events import PREFETCH, claim_all, take
from tests.sharing.model_memory import PAGE, Memory
from tests.sharing.model_world import World


@pytest.mark.parametrize("lanes", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("prefetch", PREFETCH)
def test_each_of_the_lanes_that_demand_is_served_within_as_many_claims(prefetch: int, lanes: int) -> None:
    world = World(prefetch, lanes * prefetch)
    consumers = [world.open(1000 * number) for number in range(lanes)]
    for _ in range(4):
        for consumer in consumers:
            world.ask(consumer)
        claims = [world.claim(demanded=True) for _ in range(lanes)]
        assert {claim.lane_id for claim in claims if claim} == set(range(lanes))
        assert world.claim(demanded=True) is None
        for claim in list(world.builds.values()):
            world.built(claim)
        world.release_all()
    assert all(len(world.delivered[consumer]) == 4 for consumer in consumers)


def test_a_lane_that_demands_much_leaves_every_second_claim_to_the_other() -> None:
    world = World(4, 8)
    for step in (0, 1, 2, 3):
        world.ask(world.open(step))
    other = world.open(100)
    served = []
    for step in range(100, 104):
        world.ask(other, step)
        served += [claim.lane_id for _ in range(2) if (claim := world.claim(demanded=True)) is not None]
    assert sorted(served[:4]) == [0, 0, 1, 1]
    assert served[0] != served[1] != served[2] != served[3]


def test_builds_ahead_go_to_the_step_nearest_to_its_base_and_lanes_take_turns() -> None:
    world = World(3, 6)
    world.open(0)
    world.open(100)
    assert claim_all(world) == [0, 100, 1, 101, 2, 102]


def test_nothing_is_claimed_where_nothing_is_demanded() -> None:
    world = World(3, 6)
    consumer = world.open(0)
    world.ask(consumer, demanded=False)
    assert world.claim(demanded=True) is None
    assert world.claim() is not None


def test_one_lane_without_memory_does_not_keep_the_others_from_being_built() -> None:
    world = World(1, 2)
    reader, waiting, other = world.open(0), world.open(0), world.open(50)
    take(world, reader)
    world.close(reader)
    world.release(waiting, take(world, waiting).lease_id)
    world.release(other, take(world, other).lease_id)
    world.ask(waiting)
    world.ask(other)
    claim = world.claim(demanded=True)
    assert claim is not None
    assert claim.step == 51


@pytest.mark.parametrize("max_lanes", [1, 2, 3])
def test_a_lane_too_many_is_refused_with_what_would_fit(max_lanes: int) -> None:
    world = World(4, 99, Limits(max_lanes=max_lanes))
    for number in range(max_lanes):
        world.open(100 * number)
    windows = ", ".join(rf"\[{100 * number}, {100 * number + 4}\)" for number in range(max_lanes))
    with pytest.raises(MemoryLimitError, match=rf"max_lanes is {max_lanes}; the steps {windows} can be had without"):
        world.open(7)
    assert world.lane_of(world.open(3)) is world.lanes.lanes[0]
    assert world.lane_of(world.open(None)) is world.lanes.lanes[0]


def test_a_lane_that_memory_refuses_is_refused_with_what_would_fit() -> None:
    world = World(4, 7)
    world.open(10)
    with pytest.raises(MemoryLimitError, match=r"step 50 needs 4 segments of 4096 bytes.*\[10, 14\).*close a consumer"):
        world.open(50)


def test_where_no_lane_is_there_to_join_the_refusal_says_so() -> None:
    world = World(4, 3)
    with pytest.raises(MemoryLimitError, match="no lane is there to join"):
        world.open(0)


def test_only_lanes_with_members_count() -> None:
    world = World(2, 99, Limits(max_lanes=1))
    consumer = world.open(0)
    assert claim_all(world) == [0, 1]
    world.close(consumer)
    assert len(world.lanes.lanes) == 1
    world.open(500)
    world.end()


def table_of(prefetch: int, segments: int, max_lanes: int = 0) -> LaneTable:
    return LaneTable(prefetch, SegmentPool(Memory(segments * PAGE), prefetch, PAGE), max_lanes)


def consumer_at(position: int, leases: int = 0) -> Consumer:
    return Consumer(9, position, ConsumerOptions(), held_steps={number: number for number in range(leases)})


@pytest.mark.parametrize(
    ("segments", "leases", "could"), [(4, 0, True), (4, 1, False), (5, 1, True), (3, 0, False), (99, 2, True)]
)
def test_one_could_leave_if_there_is_memory_for_a_ring_and_for_what_it_leases(
    segments: int, leases: int, could: bool
) -> None:
    table = table_of(2, segments)
    lane = table.for_step(0)
    lane.join(consumer_at(0))
    assert table.could_leave(lane, consumer_at(2, leases)) is could


def test_one_could_leave_for_the_window_of_another_lane_without_memory_for_a_ring() -> None:
    table = table_of(2, 4, max_lanes=2)
    lane = table.for_step(0)
    lane.join(consumer_at(0))
    table.for_step(50).join(consumer_at(50))
    assert table.could_leave(lane, consumer_at(51))
    assert not table.could_leave(lane, consumer_at(51, leases=1))
    assert not table.could_leave(lane, consumer_at(52))
