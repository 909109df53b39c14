"""RingScheduler whose rings change their size while builds are in flight and steps are read."""

from __future__ import annotations

import pytest

from loader_service.errors import ArgumentError, MemoryLimitError
from loader_service.sharing.consumer import ConsumerOptions, SlowConsumerPolicy
from tests.sharing.model_events import PREFETCH, WAIT, claim_all, happen, take
from tests.sharing.model_world import PAGE, World

HOLDS_1 = ConsumerOptions(max_leases=1)


def size(world: World, lane: int = 0) -> int:
    return len(world.lanes.lanes[lane].ring.slots)


@pytest.mark.parametrize("after", PREFETCH)
@pytest.mark.parametrize("before", PREFETCH)
def test_rings_have_another_size_at_once_where_nothing_is_read_or_built(before: int, after: int) -> None:
    world = World(before, 20)
    world.open(3)
    world.settle()
    world.lanes.consumers[0].max_leases = 1  # as if it had been promised no more, which is not what is tested here
    world.retune(after)
    assert size(world) == after == len(world.pool)
    world.settle()
    assert {slot.step for slot in world.lanes.lanes[0].ring.slots} == set(range(3, 3 + after))
    assert take(world, 0).step == 3
    world.end()


def test_what_stands_ready_in_the_new_window_is_not_built_again() -> None:
    world = World(4, 20)
    world.open(6)
    assert claim_all(world) == [6, 7, 8, 9]
    world.settle()
    world.retune(7)
    assert claim_all(world) == [10, 11, 12]
    world.settle()
    world.retune(3)
    assert claim_all(world) == []
    world.retune(4)
    assert claim_all(world) == [9], "it was dropped as the ring became smaller"


def test_a_larger_ring_keeps_what_is_read_and_what_is_being_built() -> None:
    world = World(2, 20)
    consumer = world.open(0)
    grant = take(world, consumer)
    world.release(consumer, take(world, consumer).lease_id)
    world.release(consumer, grant.lease_id)
    grant = take(world, consumer)
    assert claim_all(world) == []
    world.retune(5)
    assert size(world) == 5
    assert claim_all(world) == [4, 5, 6]
    world.retune(8)
    assert size(world) == 8
    world.settle()
    assert world.memory.texts[grant.placement.segment] == grant.content
    world.end()


def test_the_slot_of_a_step_is_step_mod_prefetch_as_soon_as_prefetch_is_told() -> None:
    """Also while a view beyond the new window is held."""
    world = World(16, 40)
    slow, quick = world.open(0, HOLDS_1), world.open(0, HOLDS_1)
    grants = [take(world, quick) for _ in range(9)]
    for grant in grants[:8]:
        world.release(quick, grant.lease_id)
    world.retune(5)
    for step in range(9):
        grant = take(world, slow)
        assert (grant.step, grant.slot) == (step, step % 5)
        world.release(slow, grant.lease_id)
    assert world.memory.texts[grants[8].placement.segment] == grants[8].content
    world.end()


def test_a_smaller_ring_goes_on_without_a_lease_beyond_it_and_builds_that_step_again_for_others() -> None:
    world = World(4, 20)
    slow, quick = world.open(0, HOLDS_1), world.open(0, HOLDS_1)
    grants = [take(world, quick) for _ in range(4)]
    for grant in grants[:3]:
        world.release(quick, grant.lease_id)
    world.retune(2)
    assert (size(world), claim_all(world)) == (2, [])
    for step in range(4):
        again = take(world, slow)
        assert again.step == step
        world.release(slow, again.lease_id)
    assert again.placement.segment != grants[3].placement.segment
    assert world.memory.texts[grants[3].placement.segment] == grants[3].content
    world.release(quick, grants[3].lease_id)
    assert len(world.pool) == 2
    world.end()


def test_a_smaller_ring_goes_on_without_a_build_beyond_it_and_drops_what_it_brings() -> None:
    world = World(4, 20)
    consumer = world.open(0, HOLDS_1)
    assert claim_all(world) == [0, 1, 2, 3]
    world.retune(2)
    assert size(world) == 2
    for step in (3, 0):
        world.built(world.build_of(step))
    world.aborted(world.build_of(2))
    assert [slot.step for slot in world.lanes.lanes[0].ring.slots] == [0, 1]
    world.settle()
    assert world.delivered[consumer] == []
    assert take(world, consumer).step == 0
    world.end()


def test_a_build_beyond_a_smaller_ring_may_still_need_a_larger_segment_and_may_fail() -> None:
    world = World(4, 20)
    world.open(0, HOLDS_1)
    claim_all(world)
    world.retune(2)
    world.larger(world.build_of(3), 2 * PAGE)
    world.failed(world.build_of(3))
    world.failed(world.build_of(2))
    world.errors.clear()
    world.end()


def test_a_ring_that_everyone_went_past_a_build_of_changes_at_once() -> None:
    world = World(2, 20)
    consumer = world.open(0, HOLDS_1)
    stale = world.claim()
    assert stale is not None
    world.ask(consumer, 1)
    world.retune(4)
    assert size(world) == 4
    world.built(stale)
    world.end()


def test_one_whose_step_lies_beyond_a_smaller_ring_waits_for_those_at_the_base() -> None:
    world = World(8, 30)
    slow, quick = world.open(0, ConsumerOptions(SlowConsumerPolicy("split", 1.0), 1)), world.open(0, WAIT)
    for _ in range(6):
        world.release_all(quick)
        kept = take(world, quick)
    world.retune(3)
    assert size(world) == 3
    assert world.ask(quick) is None
    world.settle()
    assert quick in world.waiting
    assert world.lanes.due_s() == 1.0
    world.pass_time(1.0)
    assert world.detached() == [slow]
    world.settle()
    assert world.delivered[quick][-1] == 6
    assert world.memory.texts[kept.placement.segment] == kept.content


def test_a_lane_that_nobody_is_in_ends_with_its_last_build_whatever_size_it_was_to_have() -> None:
    world = World(2, 20)
    consumer = world.open(0)
    stale = world.claim()
    assert stale is not None
    world.close(consumer)
    world.retune(5)
    world.built(stale)
    assert not world.lanes.lanes
    assert world.memory.created == 2, "nothing was made for a lane that ends"
    world.end()


def test_more_than_memory_allows_is_refused_and_changes_nothing() -> None:
    world = World(2, 7)
    world.open(0)
    world.open(50)
    with pytest.raises(MemoryLimitError, match="prefetch 4 needs 4 more segments"):
        world.retune(4)
    world.retune(3)
    assert size(world, 0) == size(world, 1) == 3


@pytest.mark.parametrize("hold", [1, 2, 3])
def test_a_ring_has_one_slot_more_than_an_open_consumer_was_promised_to_keep(hold: int) -> None:
    world = World(5, 20)
    consumer = world.open(0, ConsumerOptions(max_leases=hold))
    for prefetch in range(hold + 1):
        with pytest.raises(ArgumentError, match=f"prefetch is {prefetch}.*at least {hold + 1}"):
            world.retune(prefetch)
    world.retune(hold + 1)
    world.close(consumer)
    world.retune(1)
    world.end()


def test_a_hold_that_does_not_leave_a_slot_is_refused_and_the_consumer_is_not_open() -> None:
    world = World(3, 20)
    with pytest.raises(ArgumentError, match="hold is 3 and prefetch 3"):
        world.open(0, ConsumerOptions(max_leases=3))
    assert not world.lanes.consumers
    assert not world.lanes.lanes


@pytest.mark.parametrize("prefetch", [1, 2])
def test_a_change_that_was_possible_can_be_taken_back(prefetch: int) -> None:
    """A consumer that did not ask for a hold was promised what fitted when it came: a ring of that size is enough."""
    world = World(prefetch, 20)
    world.open(0)
    world.retune(8)
    world.retune(prefetch)
    assert size(world) == prefetch


def test_one_who_was_put_out_does_not_count() -> None:
    world = World(5, 20)
    world.evict(world.open(0, ConsumerOptions(max_leases=4)))
    world.retune(2)
    assert world.prefetch == 2


def test_no_ring_is_empty() -> None:
    with pytest.raises(ArgumentError, match="at least 1"):
        World(2, 4).retune(0)


def test_a_lane_that_is_to_begin_again_with_another_size_stays_as_it_is_where_memory_refuses_that() -> None:
    """The events that once moved its base although nobody could join it."""
    world = World(1, 3)
    events = [("opens", 0, 0), ("claims", 0, 0), ("opens", 0, 1), ("asks for one alone", 0, 2), ("closes", 0, 0)]
    for name, which, n in [*events, ("retunes", 1, 0), ("opens", 0, 0)]:
        happen(world, name, which, n)  # compares lanes and model after each
    assert world.tally["refused"] > 0
    world.end()
