"""The lane: its window follows the oldest cursor and never falls."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_service.errors import IntegrityError
from loader_service.sharing.lane import Lane, Member
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


def test_a_cursor_is_the_oldest_lease_or_the_position_whichever_is_less() -> None:
    assert Member(5).cursor == 5
    assert Member(5, leases={1: 4, 2: 3}).cursor == 3
    assert Member(2, leases={1: 4}).cursor == 2


@pytest.mark.parametrize("prefetch", SIZES)
def test_the_window_holds_as_many_steps_as_the_ring_has_slots(prefetch: int) -> None:
    lane = lane_of(prefetch, base=10)
    lane.join(1, Member(10))
    assert list(lane.window) == list(lane.claimable()) == list(range(10, 10 + prefetch))


@pytest.mark.parametrize("prefetch", SIZES)
def test_a_consumer_joins_within_the_window_only(prefetch: int) -> None:
    lane = lane_of(prefetch, base=10)
    lane.join(1, Member(10))
    lane.join(2, Member(10 + prefetch - 1))
    for step in (9, 10 + prefetch):
        with pytest.raises(IntegrityError, match=f"step {step} joined"):
            lane.join(3, Member(step))
    assert list(lane.members) == [1, 2]
    assert lane.base == 10


def test_nothing_is_claimable_without_members() -> None:
    lane = lane_of(3)
    assert list(lane.claimable()) == []
    lane.join(1, Member(0))
    lane.leave(1)
    assert list(lane.claimable()) == []
    assert lane.base == 0


def test_a_slot_that_is_still_building_a_step_gone_by_is_not_claimable() -> None:
    lane = lane_of(3)
    lane.join(1, Member(0))
    lane.ring.claim(0, Placement("segment", 1, 1))
    lane.want(1, 2, demanded=True)
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
    lane.join(1, Member(0))
    build(lane, 0, 1, 2)
    for step in range(3):
        lane.lease(1, step, lease=10 + step)
    for lease, base in ((11, 0), (10, 2), (12, 3)):
        lane.release(1, lease)
        assert lane.base == base
    assert [slot.state for slot in lane.ring.slots] == [SlotState.FREE] * 3


def test_a_step_stays_ready_until_the_last_member_has_released_it() -> None:
    lane = lane_of(2)
    lane.join(1, Member(0))
    lane.join(2, Member(0))
    build(lane, 0)
    lane.lease(1, 0, lease=10)
    lane.release(1, lease=10)
    assert lane.ring.state(0) is SlotState.READY
    lane.lease(2, 0, lease=11)
    lane.release(2, lease=11)
    assert lane.ring.state(0) is SlotState.FREE
    assert lane.base == 1


def test_the_window_goes_on_without_a_member_that_leaves_with_its_leases() -> None:
    lane = lane_of(2)
    lane.join(1, Member(0))
    lane.join(2, Member(1))
    build(lane, 0)
    lane.lease(1, 0, lease=10)
    lane.leave(1)
    assert lane.base == 1
    assert lane.ring.state(0) is SlotState.FREE


def test_steps_that_a_member_skips_are_as_if_released() -> None:
    lane = lane_of(4)
    lane.join(1, Member(0))
    build(lane, 0, 1, 3)
    lane.want(1, 3, demanded=True)
    assert lane.base == 3
    assert [lane.ring.state(step) for step in (0, 1, 3)] == [SlotState.FREE, SlotState.FREE, SlotState.READY]


def test_a_lane_never_falls_below_its_base() -> None:
    lane = lane_of(4, base=5)
    lane.join(1, Member(5))
    with pytest.raises(IntegrityError, match="from base 5 to 4"):
        lane.want(1, 4, demanded=True)


@pytest.mark.parametrize(("base", "kept"), [(0, []), (7, [10]), (9, [10]), (10, [10]), (11, []), (100, [])])
def test_a_lane_without_members_begins_anew_anywhere_and_keeps_what_lies_in_its_window(
    base: int, kept: list[int]
) -> None:
    lane = lane_of(4, base=9)
    build(lane, 10)
    lane.rebase(base)
    assert lane.window == range(base, base + 4)
    assert [slot.step for slot in lane.ring.slots if slot.state is SlotState.READY] == kept


def test_a_lane_with_members_is_not_begun_anew() -> None:
    lane = lane_of(2)
    lane.join(1, Member(0))
    with pytest.raises(IntegrityError, match=r"members \[1\]"):
        lane.rebase(8)
    assert lane.base == 0


def waits(lane: Lane, name: int, step: int, *, demanded: bool = True) -> None:
    """A member that has had all before `step` asks for it."""
    lane.join(name, Member(lane.base))
    lane.members[name].position = step
    lane.want(name, step, demanded)


def test_one_is_held_up_if_the_window_ends_before_the_step_that_it_demands() -> None:
    lane = lane_of(3)
    lane.join(1, Member(0))
    waits(lane, 2, 3)
    waits(lane, 3, 2)
    waits(lane, 4, 3, demanded=False)
    assert (lane.held_up(), lane.blamed()) == ([2], [1])


def test_nobody_is_to_blame_for_what_keeps_only_itself_from_going_on() -> None:
    lane = lane_of(2)
    lane.join(1, Member(0))
    build(lane, 0, 1)
    for step in (0, 1):
        lane.lease(1, step, lease=step)
    lane.want(1, 2, demanded=True)
    assert (lane.held_up(), lane.blamed()) == ([1], [])


@pytest.mark.parametrize(
    ("leases", "demanded", "blamed"), [(0, False, []), (0, True, []), (1, True, []), (1, False, [1])]
)
def test_one_whose_own_step_is_on_its_way_is_to_blame_only_if_it_may_be_at_work(
    leases: int, demanded: bool, blamed: list[int]
) -> None:
    """That is: it holds a batch, and has asked ahead for the next one."""
    lane = lane_of(2)
    lane.join(1, Member(0))
    build(lane, 0)
    for lease in range(leases):
        lane.lease(1, 0, lease)
    lane.want(1, leases, demanded)
    waits(lane, 2, 2)
    assert lane.blamed() == blamed


def test_debts_grow_while_others_wait_stay_while_the_blame_is_on_others_and_are_forgiven_slowly() -> None:
    lane = lane_of(2)
    lane.join(1, Member(0))
    lane.join(2, Member(1, debt_s=4.0))
    waits(lane, 3, 2)
    lane.pass_time(2.0)
    assert [member.debt_s for member in lane.members.values()] == [2.0, 4.0, 0.0]
    lane.leave(3)
    lane.pass_time(4.0)
    assert [member.debt_s for member in lane.members.values()] == [1.0, 3.0]
    lane.pass_time(1.0, hoarders=[1])
    assert [member.debt_s for member in lane.members.values()] == [2.0, 2.75]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(SIZES), st.data())
def test_base_is_the_oldest_cursor_and_rises_whatever_the_members_do(prefetch: int, data: st.DataObject) -> None:
    lane, leases = lane_of(prefetch), dict[int, tuple[int, int]]()
    for number in range(data.draw(st.integers(0, 40), "events")):
        base, members = lane.base, sorted(lane.members)
        event = data.draw(st.sampled_from(["join", "move", "lease", "release", "leave"]), "event")
        step = lane.window[data.draw(st.integers(0, prefetch - 1), "offset")]
        if event == "join":
            lane.join(number, Member(step))
        elif event == "release" and leases:
            lease = data.draw(st.sampled_from(sorted(leases)), "lease")
            lane.release(leases.pop(lease)[0], lease)
        elif members and event in ("move", "lease", "leave"):
            member = data.draw(st.sampled_from(members), "member")
            if event == "move":
                lane.want(member, step, demanded=True)
            elif event == "lease":
                lane.lease(member, step, lease=number)
                leases[number] = member, step
                assert lane.members[member].position == step + 1
            else:
                lane.leave(member)
                leases = {lease: held for lease, held in leases.items() if held[0] != member}
        assert lane.base >= base
        assert not lane.members or lane.base == min(member.cursor for member in lane.members.values())
        assert all(step in lane.window for _, step in leases.values())
        assert all(step in lane.window for step in lane.claimable())
