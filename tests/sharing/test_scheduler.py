"""RingScheduler as a whole: its events in every order, and the main facts one by one."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from loader_service.errors import ConsumerClosedError, IntegrityError
from loader_service.sharing.consumer import Failure, Grant
from loader_service.sharing.fairness import Limits
from loader_service.sharing.placement import Placement
from tests.sharing.model_events import EVENTS, PREFETCH, claim_all, happen, sorted_builds, take
from tests.sharing.model_world import World

HAPPENS = {"Grant", "Failure", "refused", "replaced", "shared", "split", "merged", "evicted", "live"}
HAPPENS |= {"jumped", "retuned up", "retuned down", "waits for a spare"}


class AnyOrder(RuleBasedStateMachine):
    """`World` checks after each event, and at the end that nobody waits and nothing is left."""

    @initialize(
        prefetch=st.sampled_from(PREFETCH),
        rings=st.integers(1, 4),
        spare=st.integers(0, 2),
        limits=st.builds(Limits, st.sampled_from([0, 0, 1, 2]), st.sampled_from([0.0, 0.0, 0.5, 2.0])),
    )
    def begin(self, prefetch: int, rings: int, spare: int, limits: Limits) -> None:
        self.world = World(prefetch, rings * prefetch + spare, limits)

    @rule(name=st.sampled_from(list(EVENTS)), which=st.integers(0, 7), n=st.integers(0, 24))
    def event(self, name: str, which: int, n: int) -> None:
        happen(self.world, name, which, n)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.end()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=100, stateful_step_count=60)


@pytest.mark.parametrize("prefetch", PREFETCH)
def test_a_hundred_thousand_random_events_break_nothing(prefetch: int) -> None:
    rng, tally = random.Random(prefetch + 3), Counter[str]()
    for rings, evict_after_s in ((1, 0.0), (2, 0.0), (3, 2.0), (4, 2.0)):
        world = World(prefetch, rings * prefetch + 1, Limits(0, evict_after_s))
        for name in rng.choices(list(EVENTS), [weight for weight, _ in EVENTS.values()], k=5_000):
            happen(world, name, rng.randrange(8), rng.randrange(25))
        world.end()
        tally += world.tally
    assert tally.keys() >= HAPPENS


@pytest.mark.parametrize("prefetch", PREFETCH)
def test_consumers_in_lockstep_share_one_lane_and_each_step_is_claimed_once(prefetch: int) -> None:
    rng, world, claims = random.Random(prefetch), World(prefetch, prefetch), list[int]()
    consumers = [world.open(7) for _ in range(3)]
    for step in range(7, 47):
        for consumer in consumers:
            world.ask(consumer)
        claims += claim_all(world)
        assert len(claims) - (step - 7) <= prefetch  # built and not released
        for claim in rng.sample(sorted_builds(world), len(world.builds)):
            world.built(claim)
        world.release_all()
    assert claims == list(range(7, 7 + len(claims)))
    assert all(world.delivered[consumer] == list(range(7, 47)) for consumer in consumers)
    world.end()


def test_a_late_consumer_joins_the_lane_whose_window_holds_its_step_else_gets_its_own() -> None:
    world = World(4, 12)
    world.open(10)
    inside, behind, ahead = world.open(13), world.open(9), world.open(14)
    assert [len(lane.members) for lane in world.lanes.lanes.values()] == [2, 1, 1]
    assert world.lane_of(inside) is world.lanes.lanes[0]
    assert world.lane_of(behind) is not world.lane_of(ahead)


def test_a_consumer_joins_those_who_stay_not_a_lane_that_ends() -> None:
    world = World(4, 8)
    leaving, staying = world.open(10), world.open(9)
    claim_all(world)
    world.close(leaving)
    assert world.lane_of(world.open(11)) is world.lane_of(staying)


def test_a_step_that_stands_ready_is_granted_at_once_to_a_late_consumer() -> None:
    world = World(4, 4)
    grant = take(world, world.open(0))
    answer = world.ask(world.open(0))
    assert isinstance(answer, Grant)
    assert (answer.placement.segment, answer.placement.generation) == (
        grant.placement.segment,
        grant.placement.generation,
    )
    assert answer.lease_id != grant.lease_id


def test_the_next_step_beyond_the_window_waits_for_the_oldest_lease() -> None:
    world = World(2, 8)
    consumer = world.open(0)
    first, second = take(world, consumer), take(world, consumer)
    assert world.ask(consumer) is None
    world.release(consumer, second.lease_id)
    assert claim_all(world) == []
    world.release(consumer, first.lease_id)
    world.settle()
    assert world.delivered[consumer] == [0, 1, 2]
    assert len(world.pool) == 2


def test_a_jump_to_it_finds_another_lane_and_what_is_held_stays_as_it_is() -> None:
    world = World(2, 8)
    consumer = world.open(0)
    first, second = take(world, consumer), take(world, consumer)
    assert world.ask(consumer, jumps=True) is None
    world.settle()
    assert world.delivered[consumer] == [0, 1, 2]
    assert {grant.placement.segment for _, grant in world.views.values()} > {
        first.placement.segment,
        second.placement.segment,
    }
    assert len(world.occupied()) == 1
    for lease in (first.lease_id, second.lease_id):
        world.release(consumer, lease)
    world.end()


def test_a_jump_stays_where_nothing_that_is_held_is_in_its_way() -> None:
    world = World(3, 3)
    consumer = world.open(0)
    take(world, consumer)
    lane = world.lane_of(consumer)
    for _ in range(2):
        world.ask(consumer, jumps=True)
        world.settle()
    assert world.lane_of(consumer) is lane
    assert world.delivered[consumer] == [0, 1, 2]


def test_the_step_that_a_consumer_waits_for_is_claimed_first_then_those_nearest_to_a_base() -> None:
    world = World(3, 6)
    _, waiting, _ = [world.open(step) for step in (0, 1, 100)]
    world.ask(waiting)
    assert claim_all(world) == [1, 100, 0, 101, 2, 102]


def test_a_member_that_goes_back_within_the_window_keeps_the_lane_at_its_step() -> None:
    world = World(4, 4)
    other, consumer = world.open(0), world.open(0)
    take(world, consumer, 2)
    assert take(world, consumer, 0).step == 0
    world.release_all()
    world.ask(consumer, 1)
    take(world, consumer, 3)
    world.ask(consumer, 1)
    take(world, other, 3)
    world.end()
    assert world.delivered[consumer] == [2, 0, 1, 3, 1]


def test_the_leased_segment_of_a_closed_consumer_leaves_the_ring_and_a_spare_takes_its_place() -> None:
    world = World(1, 2)
    slow, quick = world.open(0), world.open(0)
    kept = take(world, slow)
    world.release(quick, take(world, quick).lease_id)
    world.close(slow)
    for _ in range(3):
        world.release_all(quick)
        assert take(world, quick).placement.segment != kept.placement.segment
    assert world.memory.texts[kept.placement.segment] == kept.content
    world.release(slow, kept.lease_id)
    assert kept.placement.segment not in world.memory.sizes


def test_without_a_spare_the_slot_waits_and_is_built_as_soon_as_the_lease_ends() -> None:
    world = World(2, 2)
    slow, quick = world.open(0), world.open(0)
    kept = take(world, slow)
    world.close(slow)
    for step in (0, 1):
        world.release(quick, take(world, quick, step).lease_id)
    world.ask(quick)
    world.settle()
    assert world.delivered[quick] == [0, 1]
    world.release(slow, kept.lease_id)
    world.settle()
    assert world.delivered[quick] == [0, 1, 2]


@pytest.mark.parametrize("in_flight", [0, 1, 4])
@pytest.mark.parametrize("step", [0, 9, 10, 1000])
def test_a_seek_works_with_memory_for_one_ring_only(step: int, in_flight: int) -> None:
    world = World(4, 4)
    consumer = world.open(10)
    for _ in range(in_flight):
        world.claim()
    world.ask(consumer, 12)
    assert take(world, consumer, step).step == step
    assert len(world.lanes.lanes) == 1
    assert world.memory.created == 4


def test_a_failure_comes_to_each_consumer_at_its_step_after_those_before_it() -> None:
    world = World(4, 4)
    consumers = [world.open(0), world.open(0)]
    assert claim_all(world) == [0, 1, 2, 3]
    world.failed(world.build_of(1))
    late = world.open(1)
    assert isinstance(world.ask(late), Failure)
    for consumer in consumers:
        assert take(world, consumer).step == 0
        assert world.ask(consumer) == Failure(1, ("no bytes of", 1))
    assert len(world.views) == 2
    world.end()


def test_the_step_of_a_dead_worker_is_claimed_again() -> None:
    world = World(2, 2)
    consumer = world.open(0)
    world.ask(consumer)
    first = world.claim()
    assert first is not None
    world.aborted(first)
    again = world.claim()
    assert again is not None
    expected = Placement(first.placement.segment, first.placement.generation + 1, 4096)
    assert (again.step, again.placement) == (0, expected)
    world.built(again)
    assert world.delivered[consumer] == [0]


def test_a_build_that_everyone_went_past_is_dropped_and_its_slot_used_again() -> None:
    world = World(2, 2)
    consumer = world.open(0)
    stale = world.claim()
    assert stale is not None
    world.ask(consumer, 1)
    assert claim_all(world) == [1]
    world.built(stale)
    assert claim_all(world) == [2]


def test_what_is_unknown_or_repeated_is_ignored_or_named() -> None:
    world = World(2, 2)
    consumer = world.open(0)
    grant = take(world, consumer)
    world.release(consumer, 99)
    world.release(99, grant.lease_id)
    world.drop(99)
    with pytest.raises(ConsumerClosedError, match="99"):
        world.lanes.ask(99, 0)
    with pytest.raises(IntegrityError, match="twice"):
        world.lanes.open(consumer, 0)
    for _ in range(2):
        world.close(consumer)
        world.release(consumer, grant.lease_id)
    assert not world.lanes.consumers
