"""Fairness: who blocks others, how that is counted, and at which share of the time it leads to a split."""

from __future__ import annotations

import pytest

from loader_service.sharing.consumer import Consumer, ConsumerOptions, SlowConsumerPolicy
from loader_service.sharing.fairness import Limits, blockers, waiting_for_others
from loader_service.sharing.lane import Lane
from tests.sharing.model_events import take
from tests.sharing.model_world import World
from tests.sharing.test_lane import build, joined, lane_of

PATIENT = ConsumerOptions(SlowConsumerPolicy("split", 10.0))


def waits(lane: Lane, name: int, step: int, *, demanded: bool = True) -> Consumer:
    """A member that has had all before `step` asks for it."""
    member = joined(lane, name, lane.base)
    member.position = step
    lane.want(member, step, demanded)
    return member


def test_one_waits_if_the_window_ends_before_the_step_that_it_demands() -> None:
    lane = lane_of(3)
    slow = joined(lane, 1, 0)
    waiting = waits(lane, 2, 3)
    waits(lane, 3, 2)
    waits(lane, 4, 3, demanded=False)
    assert (waiting_for_others(lane), blockers(lane)) == ([waiting], [slow])


def test_nobody_blocks_for_what_keeps_only_itself_from_going_on() -> None:
    lane = lane_of(2)
    member = joined(lane, 1, 0)
    build(lane, 0, 1)
    for step in (0, 1):
        lane.take(member, lease_id=step)
    lane.want(member, 2, demanded=True)
    assert (waiting_for_others(lane), blockers(lane)) == ([member], [])
    assert not member.blocked


@pytest.mark.parametrize(
    ("leases", "demanded", "blocks"), [(0, False, False), (0, True, False), (1, True, False), (1, False, True)]
)
def test_one_whose_own_step_is_on_its_way_blocks_only_if_it_may_be_at_work(
    leases: int, demanded: bool, blocks: bool
) -> None:
    """That is: it holds a batch, and has asked ahead for the next one."""
    lane = lane_of(2)
    member = joined(lane, 1, 0)
    build(lane, 0)
    for lease in range(leases):
        lane.take(member, lease)
    lane.want(member, leases, demanded)
    waits(lane, 2, 2)
    assert blockers(lane) == ([member] if blocks else [])


def test_time_is_counted_while_others_wait_stays_while_others_block_and_is_forgiven_slowly() -> None:
    world = World(2, 20)
    slow, other, quick = world.open(0, PATIENT), world.open(0, PATIENT), world.open(0, PATIENT)
    for _ in range(2):
        for name in (other, quick):
            world.release(name, take(world, name).lease_id)
    world.lanes.consumers[other].blocked_others_s = world.reference.blocked_s[other] = 4.0
    world.ask(quick)
    world.pass_time(2.0)
    assert [world.lanes.consumers[name].blocked_others_s for name in (slow, other, quick)] == [2.0, 4.0, 0.0]
    world.close(quick)
    world.pass_time(4.0)
    assert [world.lanes.consumers[name].blocked_others_s for name in (slow, other)] == [1.0, 3.0]


@pytest.mark.parametrize("cycle_s", [0.001, 0.01, 10.0])
@pytest.mark.parametrize(("waited", "leaves"), [(0.1, False), (0.2, False), (0.25, True), (0.5, True), (0.9, True)])
def test_one_for_whom_others_wait_more_than_a_fifth_of_the_time_leaves_however_short_each_wait(
    cycle_s: float, waited: float, leaves: bool
) -> None:
    world = World(2, 20)
    slow, quick = world.open(0, PATIENT), world.open(0)
    for _ in range(200 if cycle_s > 1 else 2):
        hurry(world, quick)
        world.pass_time(waited * cycle_s)
        if slow in world.detached():
            break
        world.settle()
        world.release(slow, take(world, slow).lease_id)
        world.settle()
        world.release_all(quick)
        world.pass_time((1 - waited) * cycle_s)
    per_cycle_s = (waited - (1 - waited) / 4) * cycle_s
    if cycle_s > 1:
        assert (slow in world.detached()) is leaves
    else:
        counted_s = world.lanes.consumers[slow].blocked_others_s
        assert counted_s == pytest.approx(max(0.0, 2 * per_cycle_s), abs=1e-9)


def hurry(world: World, quick: int) -> None:
    """Take all that can be had, and ask for more."""
    while quick not in world.waiting:
        world.ask(quick)
        world.settle()
        world.release_all(quick)


def test_the_time_until_somebody_leaves_is_never_negative() -> None:
    world = World(2, 20, Limits(evict_after_s=30.0))
    slow, quick = world.open(0, PATIENT), world.open(0)
    hurry(world, quick)
    assert world.lanes.due_s() == 10.0
    world.lanes.consumers[slow].blocked_others_s = world.reference.blocked_s[slow] = 12.0
    assert world.lanes.due_s() == 0.0
