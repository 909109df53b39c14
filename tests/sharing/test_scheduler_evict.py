"""RingScheduler that put somebody out: what it reads stays as it is, and the others go on."""

from __future__ import annotations

import pytest

from loader_service.errors import ConsumerClosedError, EvictedError
from loader_service.sharing.consumer import ConsumerOptions, SlowConsumerPolicy
from loader_service.sharing.fairness import Limits
from tests.sharing.model_events import PREFETCH, SPLIT_AT_ONCE, WAIT, quick_one, take
from tests.sharing.model_world import World


@pytest.mark.parametrize("prefetch", PREFETCH)
@pytest.mark.parametrize("terms", [WAIT, SPLIT_AT_ONCE])
def test_one_who_cannot_be_split_off_is_put_out_after_evict_after_s(prefetch: int, terms: ConsumerOptions) -> None:
    world = World(prefetch, prefetch, Limits(evict_after_s=2.0))
    slow = world.open(0, terms)
    kept = take(world, slow)
    quick = quick_one(world)
    assert world.lanes.due_s() == 2.0
    world.pass_time(1.75)
    assert (world.lanes.due_s(), world.put_out) == (0.25, set())
    world.pass_time(0.25)
    assert world.put_out == {slow}
    world.settle()
    assert world.delivered[quick] == list(range(prefetch + 1)), "the room of what it read is had by the others"
    assert world.memory.texts[kept.placement.segment] == kept.content
    with pytest.raises(EvictedError, match=r"others waited 2.0 s for it.*`reopen\(\)` it"):
        world.lanes.ask(slow, 1)
    world.end()


def test_one_who_can_be_split_off_is_not_put_out() -> None:
    world = World(2, 8, Limits(evict_after_s=1.0))
    slow = world.open(0, ConsumerOptions(SlowConsumerPolicy("split", 0.5)))
    quick_one(world)
    world.pass_time(1.0)
    assert world.detached() == [slow]
    assert not world.put_out


def test_what_an_evicted_one_reads_is_never_written_and_is_retired_when_its_place_is_needed() -> None:
    world = World(2, 6)
    slow, quick = world.open(0), world.open(0)
    kept = take(world, slow)
    world.evict(slow)
    assert kept.placement.segment in world.memory.sizes, "the others may still take what stands there"
    assert take(world, quick, 0).placement.segment == kept.placement.segment
    world.release_all()
    for _ in range(4):
        assert take(world, quick).placement.segment != kept.placement.segment
        world.release_all()
    assert kept.placement.segment not in world.memory.sizes
    assert world.memory.texts[kept.placement.segment] == kept.content


def test_what_an_evicted_one_reads_out_of_any_ring_is_retired_at_once() -> None:
    world = World(1, 4)
    slow, quick = world.open(0, SPLIT_AT_ONCE), world.open(0)
    kept = take(world, slow)
    world.release(quick, take(world, quick).lease_id)
    world.ask(quick)
    world.pass_time(0)
    world.settle()
    assert world.delivered[quick] == [0, 1]
    world.evict(slow)
    assert kept.placement.segment not in world.memory.sizes


def test_an_evicted_one_can_do_nothing_but_close() -> None:
    world = World(2, 4)
    consumer = world.open(0)
    lease = take(world, consumer).lease_id
    world.evict(consumer)
    world.release(consumer, lease)
    world.demand(consumer)
    for _ in range(2):
        with pytest.raises(EvictedError, match="put out: it was told to; `reopen"):
            world.lanes.ask(consumer, 1)
    world.close(consumer)
    with pytest.raises(ConsumerClosedError):
        world.lanes.ask(consumer, 1)
    assert take(world, world.open(1)).step == 1


def test_of_two_who_wait_for_each_other_one_is_put_out() -> None:
    """Each keeps its first batch and wants the third; without the one the other does not hold anybody up."""
    world = World(2, 4, Limits(evict_after_s=2.0))
    pair = [world.open(0, WAIT) for _ in range(2)]
    for name in pair:
        take(world, name)
        world.release(name, take(world, name).lease_id)
    for name in pair:
        world.ask(name)
    world.pass_time(2.0)
    assert world.put_out == {pair[0]}
    world.end()


def keep_from(world: World, keeper: int, quick: int) -> None:
    """`quick` goes on until it demands a step whose place is taken by what `keeper` reads."""
    kept = {grant.placement.segment for holder, grant in world.views.values() if holder == keeper}
    lane = world.lane_of(quick)
    assert lane is not None
    while quick not in world.waiting:
        world.ask(quick)
        world.settle()
        world.release_all(quick)
    assert lane.ring.of(world.waiting[quick]).segment in kept


def test_one_who_was_split_off_and_keeps_what_the_others_need_is_put_out_after_evict_after_s() -> None:
    world = World(2, 5, Limits(evict_after_s=2.0))
    keeper, quick = world.open(0, SPLIT_AT_ONCE), world.open(0)
    kept = take(world, keeper)
    for _ in range(2):
        world.release(quick, take(world, quick).lease_id)
    world.ask(quick)
    world.pass_time(0)
    assert world.detached() == [keeper]
    world.memory.limit_bytes -= world.memory.room  # others have it
    keep_from(world, keeper, quick)
    world.pass_time(1.75)
    assert world.lanes.due_s() == 0.25
    world.pass_time(0.25)
    assert world.put_out == {keeper}
    world.settle()
    assert quick not in world.waiting
    assert world.memory.texts[kept.placement.segment] == kept.content
    world.end()


def test_one_who_has_gone_to_another_lane_with_what_the_others_need_is_put_out_too() -> None:
    world = World(2, 4, Limits(evict_after_s=2.0))
    keeper, quick = world.open(0), world.open(0)
    take(world, keeper)
    world.ask(keeper, 50)
    keep_from(world, keeper, quick)
    world.pass_time(2.0)
    assert world.put_out == {keeper}
    world.settle()
    assert quick not in world.waiting
    world.end()


def test_one_who_keeps_what_another_lane_needs_does_not_leave_its_own_for_it() -> None:
    """Though it could, for a third lane holds its step too: that would help nobody."""
    world = World(2, 6)
    keeper, quick = world.open(0, SPLIT_AT_ONCE), world.open(0)
    world.open(50)
    world.open(49)
    take(world, keeper)
    world.ask(keeper, 50)
    keep_from(world, keeper, quick)
    assert world.lanes.due_s() is None
    world.pass_time(1000)
    assert world.tally["split"] == 0
    world.end()


def test_one_who_is_closed_and_keeps_what_the_others_need_loses_it_and_is_not_told() -> None:
    world = World(2, 2, Limits(evict_after_s=2.0))
    keeper, quick = world.open(0), world.open(0)
    take(world, keeper)
    world.close(keeper)
    keep_from(world, keeper, quick)
    passed = world.lanes.pass_time(2.0)
    assert ([name for name, _ in passed.left], passed.answers) == ([keeper], [])
    assert keeper not in world.lanes.consumers
    assert world.lanes.rings.claim(demanded=True) is not None
