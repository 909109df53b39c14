"""RingScheduler that meet: who goes over to whom, and that nobody goes to and fro."""

from __future__ import annotations

import pytest

from loader_service.sharing.consumer import ConsumerOptions, SlowConsumerPolicy
from tests.sharing.model_events import PREFETCH, WAIT, claim_all, take
from tests.sharing.model_world import World

SPLIT = ConsumerOptions(SlowConsumerPolicy("split", 1.0))


def go_to(world: World, consumer: int, position: int) -> None:
    """Take and release steps, one after the other, until the next is `position`."""
    while world.position[consumer] < position:
        world.release(consumer, take(world, consumer).lease_id)


@pytest.mark.parametrize("prefetch", PREFETCH)
def test_one_who_catches_up_goes_over_to_the_older_lane_and_shares_its_builds(prefetch: int) -> None:
    world = World(prefetch, 3 * prefetch)
    ahead, behind = world.open(100), world.open(90)
    go_to(world, behind, 100)
    steps = world.built_steps(0)
    assert take(world, behind).step == 100
    assert world.lane_of(behind) is world.lane_of(ahead) is world.lanes.lanes[0]
    assert len(world.lanes.lanes) == 1
    assert world.built_steps(0)[: len(steps)] == steps
    assert len(set(world.built_steps(0))) == len(world.built_steps(0)), "nothing was built again"
    assert world.delivered[behind] == list(range(90, 101))


def test_a_step_that_stands_ready_in_the_lane_that_is_met_is_granted_at_once() -> None:
    world = World(2, 6)
    world.open(10)
    behind = world.open(9)
    world.settle()
    go_to(world, behind, 10)
    answer = world.ask(behind)
    assert answer is not None
    assert answer.step == 10


def test_all_members_of_a_lane_come_by_one_after_the_other_and_it_ends() -> None:
    world = World(4, 16)
    world.open(20)
    behind = [world.open(10) for _ in range(3)]
    assert len(world.lanes.lanes) == 2
    for position in range(11, 22):
        for consumer in behind:
            go_to(world, consumer, position)
    assert world.lanes.lanes.keys() == {0}
    assert world.tally["merged"] == 3
    assert all(world.delivered[consumer] == list(range(10, 21)) for consumer in behind)


def test_a_lane_that_comes_up_from_behind_catches_those_of_the_younger_one_ahead() -> None:
    world = World(4, 16)
    older, younger = world.open(0), world.open(10)
    go_to(world, older, 8)
    assert len(world.lanes.lanes) == 2
    take(world, younger)
    assert world.tally["merged"] == 1
    assert world.lane_of(younger) is world.lane_of(older)


@pytest.mark.parametrize("overlap", [1, 2, 3, 4])
def test_between_lanes_that_overlap_each_consumer_moves_once_at_most(overlap: int) -> None:
    world = World(5, 20)
    one, two, three = world.open(0), world.open(5), world.open(2)
    assert [lane.window.start for lane in world.lanes.lanes.values()] == [0, 5]
    world.close(three)
    go_to(world, one, overlap)
    for _ in range(6):
        for consumer in (two, one, two):
            world.ask(consumer)
        world.settle()
        world.release_all()
    assert world.tally["merged"] == 1
    assert world.lanes.lanes.keys() == {0}


def test_the_leases_of_one_who_goes_over_stay_as_they_are() -> None:
    world = World(2, 8)
    ahead, behind, stays = world.open(10), world.open(9), world.open(9)
    kept = take(world, behind)
    take(world, behind)
    assert world.lane_of(behind) is world.lane_of(ahead) is not world.lane_of(stays)
    go_to(world, stays, 10)
    world.settle()
    assert world.memory.texts[kept.placement.segment] == kept.content
    world.release(behind, kept.lease_id)
    world.end()


def test_one_who_passes_those_who_wait_for_each_other_is_not_caught_by_them() -> None:
    world = World(4, 16)
    slow, other, quick = world.open(10, WAIT), world.open(6, SPLIT), world.open(8, SPLIT)
    assert world.lane_of(quick) is world.lane_of(other)
    for position in range(7, 21):
        go_to(world, other, position)
        go_to(world, quick, position)
    assert world.tally["merged"] == 0
    assert world.lane_of(quick) is not world.lane_of(slow)
    assert world.delivered[quick] == list(range(8, 20))


def test_one_who_waits_for_others_goes_over_to_those_who_wait_too() -> None:
    world = World(4, 16)
    slow, behind = world.open(10, WAIT), world.open(6, WAIT)
    go_to(world, behind, 11)
    assert world.tally["merged"] == 1
    assert world.lane_of(behind) is world.lane_of(slow)


def test_a_seek_joins_any_lane_whose_window_holds_the_step() -> None:
    world = World(4, 16)
    slow, seeks = world.open(10, WAIT), world.open(50, SPLIT)
    assert take(world, seeks, 12).step == 12
    assert world.lane_of(seeks) is world.lane_of(slow)


def test_a_live_consumer_begins_where_the_slowest_of_the_fullest_lane_is() -> None:
    world = World(4, 16)
    world.open(100)
    slow, quick = world.open(10), world.open(10)
    go_to(world, quick, 12)
    go_to(world, slow, 11)
    live = world.open(None)
    assert world.position[live] == 11
    assert world.lane_of(live) is world.lane_of(slow)
    assert take(world, live).step == 11


def test_a_live_consumer_begins_at_0_where_there_is_nobody() -> None:
    world = World(4, 4)
    consumer = world.open(None)
    assert world.position[consumer] == 0
    assert claim_all(world) == [0, 1, 2, 3]


def test_a_live_consumer_takes_the_last_step_of_a_window_that_is_held_back() -> None:
    world = World(2, 4)
    holder = world.open(0)
    for _ in range(2):
        kept = take(world, holder)
    live = world.open(None)
    assert world.position[live] == 1
    answer = world.ask(live)
    assert answer is not None
    assert answer.step == kept.step


def test_the_next_step_after_one_that_failed_is_waited_for_like_any_other() -> None:
    """It is no seek: memory for one lane is enough, also where the window ends there."""
    world = World(1, 1)
    pair = world.open(0), world.open(0)
    for consumer in pair:
        world.ask(consumer)
    claim = world.claim()
    assert claim is not None
    world.failed(claim)
    for consumer in pair:
        assert world.ask(consumer, 1) is None
    world.settle()
    assert [world.delivered[consumer] for consumer in pair] == [[1], [1]]


def test_a_run_that_goes_on_in_an_older_lane_ends_its_own_once() -> None:
    """Its last build was the one whose answer let it leave."""
    world = World(4, 8)
    world.open(100)
    runs = world.open(99)
    scheduler = world.lanes
    scheduler.ask(runs, 99, steps=2)
    claim = scheduler.rings.claim(demanded=True)
    assert claim is not None
    assert claim.step == 99
    scheduler.built(claim, 10)
    assert list(scheduler.lanes) == [0]
