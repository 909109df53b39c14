"""RingScheduler and time: who holds the others up leaves its lane, when, and what becomes of it."""

from __future__ import annotations

import pytest

from loader_service.errors import EvictedError
from loader_service.sharing.consumer import ConsumerOptions, SlowConsumerPolicy
from loader_service.sharing.fairness import Limits
from tests.sharing.model_events import PREFETCH, SPLIT_AT_ONCE, WAIT, claim_all, quick_one, take
from tests.sharing.model_world import World


def waiting_for(world: World, *slow: int) -> int:
    """Another consumer, who has had the whole window of the lane of `slow` and asks for the next step."""
    lane = world.lane_of(slow[0])
    assert lane is not None
    return quick_one(world, lane.base)


@pytest.mark.parametrize("prefetch", PREFETCH)
@pytest.mark.parametrize("holds", [False, True])
def test_one_who_stands_still_is_split_off_exactly_after_its_patience(prefetch: int, holds: bool) -> None:
    world = World(prefetch, 3 * prefetch)
    slow = world.open(0, ConsumerOptions(SlowConsumerPolicy("split", 1.0)))
    if holds:
        take(world, slow)
    quick = waiting_for(world, slow)
    assert world.lanes.due_s() == 1.0
    world.pass_time(0.75)
    assert (world.lanes.due_s(), world.tally["split"]) == (0.25, 0)
    world.pass_time(0.25)
    assert world.tally["split"] == 1
    assert world.lane_of(slow) is None
    world.settle()
    assert world.delivered[quick] == list(range(prefetch + 1))


def test_nobody_blocks_others_while_nobody_waits() -> None:
    world = World(2, 6)
    take(world, world.open(0, SPLIT_AT_ONCE))
    take(world, world.open(0))
    assert world.lanes.due_s() is None
    world.pass_time(1000)
    assert world.tally["split"] == 0


def test_one_who_only_asks_ahead_holds_nobody_up_until_it_demands() -> None:
    world = World(2, 6)
    slow, quick = world.open(0, ConsumerOptions(SlowConsumerPolicy("split", 1.0))), world.open(0)
    for _ in range(2):
        world.release(quick, take(world, quick).lease_id)
    world.ask(quick, demanded=False)
    assert world.lanes.due_s() is None
    world.demand(quick)
    assert world.lanes.due_s() == 1.0
    world.pass_time(1.0)
    assert world.detached() == [slow]


def test_what_was_asked_for_ahead_and_is_demanded_is_built_first() -> None:
    world = World(3, 6)
    world.open(0)
    consumer = world.open(2)
    world.ask(consumer, demanded=False)
    assert world.claim(demanded=True) is None
    world.lanes.demand(consumer, 1)
    assert world.claim(demanded=True) is None, "it asked for another step"
    world.demand(consumer)
    assert claim_all(world)[0] == 2


def test_one_who_is_late_only_now_and_then_is_not_split_off() -> None:
    world = World(2, 6)
    slow, quick = world.open(0, ConsumerOptions(SlowConsumerPolicy("split", 1.0))), world.open(0)
    for _ in range(40):
        first = take(world, slow)
        for _ in range(2):
            world.release(quick, take(world, quick).lease_id)
        world.ask(quick)
        world.pass_time(0.75)  # it is late
        world.release(slow, first.lease_id)
        world.settle()
        world.release_all()
        world.release(slow, take(world, slow).lease_id)
        take(world, slow)
        world.release_all()
        world.pass_time(3.0)
    assert world.tally["split"] == 0
    assert world.lane_of(slow) is world.lane_of(quick)


def test_two_who_are_slow_in_turns_are_both_split_off_in_the_end() -> None:
    world = World(4, 16)
    slow = [world.open(0, ConsumerOptions(SlowConsumerPolicy("split", 0.5))) for _ in range(2)]
    quick = waiting_for(world, *slow)
    for turn in range(3):
        late, early = slow[turn % 2], slow[1 - turn % 2]
        while world.position[early] <= world.position[late]:
            world.release(early, take(world, early).lease_id)
        hurry(world, quick)
        world.pass_time(0.25)
    assert world.detached() == slow[:1]
    hurry(world, quick)
    world.pass_time(0.25)
    assert world.detached() == slow
    world.end()


def hurry(world: World, quick: int) -> None:
    """Take all that can be had, and ask for more."""
    world.settle()
    world.release_all(quick)
    while quick not in world.waiting:
        world.ask(quick)
        world.settle()
        world.release_all(quick)


@pytest.mark.parametrize("prefetch", PREFETCH)
def test_wait_is_lockstep_however_long_it_takes(prefetch: int) -> None:
    world = World(prefetch, 3 * prefetch)
    slow = world.open(0, WAIT)
    quick = waiting_for(world, slow)
    assert world.lanes.due_s() is None
    world.pass_time(1e9)
    world.settle()
    assert quick in world.waiting
    world.release(slow, take(world, slow).lease_id)
    world.settle()
    assert world.delivered[quick] == list(range(prefetch + 1))


def test_each_of_those_at_the_base_leaves_only_while_somebody_waits_for_it() -> None:
    """Two who keep their first batch and want the third wait for each other: one split is enough."""
    world = World(2, 12)
    pair = [world.open(0, ConsumerOptions(SlowConsumerPolicy("split", 1.0))) for _ in range(2)]
    for name in pair:
        take(world, name)
        world.release(name, take(world, name).lease_id)
    for name in pair:
        world.ask(name)
    world.pass_time(5.0)
    assert world.tally["split"] == 1


def test_one_who_waits_for_its_own_step_to_be_built_does_not_block_others_though_it_asked_ahead_only() -> None:
    world = World(2, 6)
    slow = world.open(0, SPLIT_AT_ONCE)
    other, quick = world.open(0, SPLIT_AT_ONCE), world.open(1)
    claim_all(world)
    world.built(world.build_of(1))
    world.release(quick, take_ready(world, quick))
    world.ask(quick)
    world.ask(slow, demanded=False)
    world.ask(other)
    assert world.lanes.due_s() is None
    world.pass_time(1000)
    assert world.tally["split"] == 0


def take_ready(world: World, consumer: int) -> int:
    """The lease on a step that stands ready."""
    world.ask(consumer)
    return max(world.views)


@pytest.mark.parametrize("demanded", [False, True])
def test_one_who_asked_before_it_is_split_off_gets_a_lane_at_once(demanded: bool) -> None:
    world = World(2, 6)
    slow = world.open(0, SPLIT_AT_ONCE)
    take(world, slow)
    quick = waiting_for(world, slow)
    world.ask(slow, 1, demanded=demanded)
    grants = len(world.delivered[slow])
    assert grants == 2, "the step stood ready"
    world.pass_time(0)
    assert world.lane_of(slow) is None
    assert take(world, slow).step == 2
    assert world.lane_of(slow) is world.lane_of(quick), "its step lies in the window of those who went on"


def test_who_is_split_off_with_an_open_request_waits_in_its_new_lane() -> None:
    world = World(4, 16)
    slow = world.open(0, SPLIT_AT_ONCE)
    kept = take(world, slow)
    quick = waiting_for(world, slow)
    for _ in range(3):
        world.release(slow, take(world, slow).lease_id)
    world.ask(slow)  # step 4, while it keeps step 0: both wait for that
    world.pass_time(0)
    assert world.tally["split"] == 1
    assert world.lane_of(slow) is world.lane_of(quick)
    world.settle()
    assert world.delivered[slow][-1] == world.delivered[quick][-1] == 4
    assert world.memory.texts[kept.placement.segment] == kept.content
    world.end()


def test_the_next_request_of_one_who_was_split_off_gets_it_a_lane_of_its_own() -> None:
    world = World(2, 6)
    slow = world.open(0, SPLIT_AT_ONCE)
    kept = take(world, slow)
    quick = waiting_for(world, slow)
    world.pass_time(0)
    world.settle()
    assert world.lanes.lanes.keys() == {0}
    assert take(world, slow).step == 1
    assert world.lane_of(slow) is not world.lane_of(quick)
    assert world.memory.texts[kept.placement.segment] == kept.content
    world.end()


@pytest.mark.parametrize(("segments", "limits"), [(3, Limits()), (99, Limits(max_lanes=1))])
def test_without_room_for_a_lane_the_slow_one_stays_and_the_lane_waits(segments: int, limits: Limits) -> None:
    world = World(2, segments, limits)
    slow = world.open(0, SPLIT_AT_ONCE)
    take(world, slow)
    quick = waiting_for(world, slow)
    assert world.lanes.due_s() is None
    world.pass_time(1000)
    assert world.lane_of(slow) is world.lane_of(quick)
    world.finish()


def test_room_that_comes_later_is_used_at_once() -> None:
    world = World(2, 5)
    elsewhere = world.open(50)
    slow = world.open(0, SPLIT_AT_ONCE)
    waiting_for(world, slow)
    world.pass_time(5.0)
    assert world.lanes.due_s() is None
    world.close(elsewhere)
    assert world.lanes.due_s() == 0
    world.pass_time(0)
    assert world.detached() == [slow]


def test_who_was_split_off_and_finds_no_memory_when_it_asks_is_put_out() -> None:
    world = World(2, 4)
    slow = world.open(0, SPLIT_AT_ONCE)
    waiting_for(world, slow)
    world.pass_time(0)
    world.open(100)  # takes the memory that there was
    with pytest.raises(EvictedError, match=r"fell behind.*no memory.*`reopen\(\)` it"):
        world.ask(slow)
    with pytest.raises(EvictedError, match="fell behind"):
        world.lanes.ask(slow, 0)
    world.end()


def test_the_count_is_kept_across_a_split_so_that_one_who_stays_slow_does_not_hold_others_up_again() -> None:
    world = World(1, 6)
    slow = world.open(0, ConsumerOptions(SlowConsumerPolicy("split", 2.0)))
    quick = waiting_for(world, slow)
    world.pass_time(2.0)
    world.settle()
    world.release_all()
    assert take(world, slow, 2).step == 2
    assert world.lane_of(slow) is world.lane_of(quick) is world.lanes.lanes[0]
    world.release(quick, take(world, quick).lease_id)
    world.ask(quick)
    assert world.lanes.due_s() == 0
