"""The lane: its window follows the oldest cursor and never falls."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_service.errors import IntegrityError
from loader_service.sharing.consumer import Consumer, ConsumerOptions
from loader_service.sharing.lane import Lane
from loader_service.sharing.placement import Placement
from loader_service.sharing.ring import SlotState
from tests.sharing.model_world import World

SIZES = [1, 2, 3, 4, 5, 7, 8, 9]


def lane_of(prefetch: int, base: int = 0) -> Lane:
    return Lane(0, [f"segment-{place}" for place in range(prefetch)], base)


def build(lane: Lane, *steps: int) -> None:
    for step in steps:
        lane.ring.claim(step, Placement("segment", 1, 1))
        lane.ring.commit(step, f"bytes of {step}")


def joined(lane: Lane, consumer_id: int, position: int) -> Consumer:
    """A new member, which has asked for all steps."""
    consumer = Consumer(consumer_id, position, ConsumerOptions(), asked_until=2**63)
    lane.join(consumer)
    return consumer


@pytest.mark.parametrize("prefetch", SIZES)
def test_the_window_holds_as_many_steps_as_the_ring_has_slots(prefetch: int) -> None:
    lane = lane_of(prefetch, base=10)
    joined(lane, 1, 10)
    assert list(lane.window) == list(lane.claimable()) == list(range(10, 10 + prefetch))


@pytest.mark.parametrize("prefetch", SIZES)
def test_a_consumer_joins_within_the_window_only(prefetch: int) -> None:
    lane = lane_of(prefetch, base=10)
    joined(lane, 1, 10)
    joined(lane, 2, 10 + prefetch - 1)
    for step in (9, 10 + prefetch):
        with pytest.raises(IntegrityError, match=f"step {step} joined"):
            joined(lane, 3, step)
    assert list(lane.members) == [1, 2]
    assert lane.base == 10


def test_nothing_is_claimable_without_members() -> None:
    lane = lane_of(3)
    assert list(lane.claimable()) == []
    joined(lane, 1, 0)
    lane.leave(lane.members[1])
    assert list(lane.claimable()) == []
    assert lane.base == 0


def test_a_slot_that_is_still_building_a_step_gone_by_is_not_claimable() -> None:
    lane = lane_of(3)
    joined(lane, 1, 0)
    lane.ring.claim(0, Placement("segment", 1, 1))
    lane.want(lane.members[1], 2, demanded=True)
    assert list(lane.claimable()) == [2, 4]
    lane.ring.abort(0)
    assert list(lane.claimable()) == [2, 3, 4]


def test_a_step_beyond_the_window_is_not_claimed_though_it_is_waited_for_and_its_place_is_free() -> None:
    world = World(prefetch=2, segments=2)
    _, ahead = world.open(0), world.open(1)
    world.ask(ahead)
    claim = world.claim()
    assert claim is not None
    world.built(claim)
    assert world.ask(ahead, 2) is None
    assert [claim.step for claim in iter(world.claim, None)] == [0]


def test_the_window_waits_for_the_oldest_lease_in_whatever_order_they_end() -> None:
    lane = lane_of(3)
    joined(lane, 1, 0)
    build(lane, 0, 1, 2)
    for step in range(3):
        lane.take(lane.members[1], 10 + step)
    for lease, base in ((11, 0), (10, 2), (12, 3)):
        lane.release(lane.members[1], lease)
        assert lane.base == base
    assert [slot.state for slot in lane.ring.slots] == [SlotState.FREE] * 3


def test_a_step_stays_ready_until_the_last_member_has_released_it() -> None:
    lane = lane_of(2)
    joined(lane, 1, 0)
    joined(lane, 2, 0)
    build(lane, 0)
    lane.take(lane.members[1], 10)
    lane.release(lane.members[1], 10)
    assert lane.ring.state(0) is SlotState.READY
    lane.take(lane.members[2], 11)
    lane.release(lane.members[2], 11)
    assert lane.ring.state(0) is SlotState.FREE
    assert lane.base == 1


def test_the_window_goes_on_without_a_member_that_leaves_with_its_leases() -> None:
    lane = lane_of(2)
    joined(lane, 1, 0)
    joined(lane, 2, 1)
    build(lane, 0)
    lane.take(lane.members[1], 10)
    lane.leave(lane.members[1])
    assert lane.base == 1
    assert lane.ring.state(0) is SlotState.FREE


def test_steps_that_a_member_skips_are_as_if_released() -> None:
    lane = lane_of(4)
    joined(lane, 1, 0)
    build(lane, 0, 1, 3)
    lane.want(lane.members[1], 3, demanded=True)
    assert lane.base == 3
    assert [lane.ring.state(step) for step in (0, 1, 3)] == [SlotState.FREE, SlotState.FREE, SlotState.READY]


def test_a_lane_never_falls_below_its_base() -> None:
    lane = lane_of(4, base=5)
    joined(lane, 1, 5)
    with pytest.raises(IntegrityError, match="from base 5 to 4"):
        lane.want(lane.members[1], 4, demanded=True)


@pytest.mark.parametrize(("base", "kept"), [(0, []), (7, [10]), (9, [10]), (10, [10]), (11, []), (100, [])])
def test_a_lane_without_members_begins_anew_anywhere_and_keeps_what_lies_in_its_window(
    base: int, kept: list[int]
) -> None:
    lane = lane_of(4, base=9)
    build(lane, 10)
    lane.begin_again(base)
    assert lane.window == range(base, base + 4)
    assert [slot.step for slot in lane.ring.slots if slot.state is SlotState.READY] == kept


def test_a_lane_with_members_is_not_begun_anew() -> None:
    lane = lane_of(2)
    joined(lane, 1, 0)
    with pytest.raises(IntegrityError, match=r"members \[1\]"):
        lane.begin_again(8)
    assert lane.base == 0


def test_nothing_is_built_past_the_last_step_that_a_member_has_asked_for() -> None:
    lane = lane_of(5)
    for consumer_id, asked_until in ((1, 2), (2, 4), (3, 0)):
        joined(lane, consumer_id, 0).asked_until = asked_until
    assert list(lane.claimable()) == [0, 1, 2, 3]
    lane.leave(lane.members[2])
    assert list(lane.claimable()) == [0, 1]


def test_a_member_is_blocked_where_another_keeps_its_step_out_of_the_window_and_not_by_itself() -> None:
    lane = lane_of(2)
    slow, quick = joined(lane, 1, 0), joined(lane, 2, 0)
    build(lane, 0, 1)
    for step in (0, 1):
        lane.want(quick, step, demanded=True)
        assert not quick.blocked
        lane.take(quick, lease_id=step)
        lane.release(quick, lease_id=step)
    lane.want(quick, 2, demanded=False)
    assert quick.blocked
    lane.want(slow, 2, demanded=True)
    lane.want(quick, 2, demanded=False)
    assert not quick.blocked


@pytest.mark.parametrize("after", SIZES)
@pytest.mark.parametrize("before", SIZES)
def test_a_ring_has_another_size_at_once(before: int, after: int) -> None:
    lane = lane_of(before, base=10)
    joined(lane, 1, 10)
    left_over = lane.resize(after, [f"new-{number}" for number in range(max(0, after - before))])
    assert len(left_over) == max(0, before - after)
    assert list(lane.window) == list(lane.claimable()) == list(range(10, 10 + after))


def test_a_held_step_beyond_the_new_window_leaves_the_ring_and_its_holder_keeps_its_place() -> None:
    lane = lane_of(4)
    joined(lane, 1, 0)
    holder = joined(lane, 2, 3)
    build(lane, 0, 3)
    lane.take(holder, lease_id=7)
    assert sorted(lane.resize(2, [])) == ["segment-2", "segment-3"]
    assert [slot.step for slot in lane.ring.slots] == [0, None]
    assert (holder.cursor, lane.base) == (3, 0)
    lane.release(holder, lease_id=7)
    assert lane.base == 0


@settings(max_examples=150)
@given(st.sampled_from(SIZES), st.data())
def test_base_is_the_oldest_cursor_and_rises_whatever_the_members_do(prefetch: int, data: st.DataObject) -> None:
    lane, leases = lane_of(prefetch), dict[int, tuple[Consumer, int]]()
    for number in range(data.draw(st.integers(0, 40), "events")):
        base, members = lane.base, sorted(lane.members)
        event = data.draw(st.sampled_from(["join", "move", "lease", "release", "leave"]), "event")
        step = lane.window[data.draw(st.integers(0, prefetch - 1), "offset")]
        if event == "join":
            joined(lane, number, step)
        elif event == "release" and leases:
            lease_id = data.draw(st.sampled_from(sorted(leases)), "lease")
            lane.release(leases.pop(lease_id)[0], lease_id)
        elif members and event in ("move", "lease", "leave"):
            member = lane.members[data.draw(st.sampled_from(members), "member")]
            if event == "move":
                lane.want(member, step, demanded=True)
            elif event == "lease":
                lane.want(member, step, demanded=True)
                lane.take(member, number)
                leases[number] = member, step
                assert (member.position, member.wanted) == (step + 1, None)
            else:
                lane.leave(member)
                leases = {lease_id: held for lease_id, held in leases.items() if held[0] is not member}
        assert lane.base >= base
        assert not lane.members or lane.base == min(member.cursor for member in lane.members.values())
        assert all(step in lane.window for _, step in leases.values())
        assert all(step in lane.window for step in lane.claimable())
