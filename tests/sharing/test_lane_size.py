"""The lane whose ring is to have another size: what stands has its place before, on the way and after."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_service.sharing.lane import Lane, Member
from loader_service.sharing.placement import Placement
from loader_service.sharing.ring import SlotState
from tests.sharing.test_lane import build, lane_of

SIZES = [1, 2, 3, 4, 5, 7, 8, 9]


def fit(lane: Lane) -> list[str]:
    missing = max(0, lane.missing_slots())
    return lane.fit([f"new-{number}" for number in range(missing)])


@pytest.mark.parametrize("after", SIZES)
@pytest.mark.parametrize("before", SIZES)
def test_the_window_is_never_larger_than_the_ring_is_or_is_to_be(before: int, after: int) -> None:
    lane = lane_of(before, base=10)
    lane.join(1, Member(10))
    lane.prefetch = after
    assert lane.window == range(10, 10 + min(before, after))
    assert lane.reach == range(10, 10 + before)
    assert lane.can_fit()
    assert len(fit(lane)) == max(0, before - after)
    assert lane.window == lane.reach == range(10, 10 + after)
    assert list(lane.claimable()) == list(lane.window)


def test_a_ready_step_that_nobody_holds_gives_way_to_a_smaller_ring() -> None:
    lane = lane_of(4)
    lane.join(1, Member(0))
    build(lane, 0, 3)
    lane.prefetch = 2
    assert lane.can_fit()
    assert sorted(fit(lane)) == ["segment-2", "segment-3"]
    assert [slot.step for slot in lane.ring.slots] == [0, None]


def test_a_held_step_does_not_give_way_and_all_is_as_it_was() -> None:
    lane = lane_of(4)
    lane.join(1, Member(0))
    lane.join(2, Member(3))
    build(lane, 0, 3)
    lane.lease(2, 3, lease=7)
    lane.prefetch = 2
    assert not lane.can_fit()
    assert lane.ring.state(3) is SlotState.READY
    lane.release(2, lease=7)
    assert lane.can_fit()


@pytest.mark.parametrize(("step", "position"), [(3, 0), (0, 1)])
def test_a_build_that_has_no_place_in_the_other_ring_is_waited_for(step: int, position: int) -> None:
    """A step beyond it, or one that everyone went past."""
    lane = lane_of(4)
    lane.join(1, Member(0))
    lane.ring.claim(step, Placement("segment", 1, 1))
    lane.want(1, position, demanded=True)
    lane.prefetch = 2
    assert not lane.can_fit()
    lane.ring.commit(step, "bytes")
    lane.ended(step)
    assert lane.can_fit()


def test_one_is_held_up_by_a_ring_that_is_to_be_smaller_unless_its_step_is_there_or_comes() -> None:
    lane = lane_of(8)
    lane.join(1, Member(0))
    for name, step in ((2, 5), (3, 6), (4, 7)):
        lane.join(name, Member(step))
        lane.want(name, step, demanded=True)
    build(lane, 5)
    lane.ring.claim(6, Placement("segment", 1, 1))
    lane.prefetch = 2
    assert lane.held_up() == [4]
    assert lane.blamed() == [1]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(SIZES), st.sampled_from(SIZES), st.integers(0, 9), st.data())
def test_what_fits_keeps_its_step_segment_and_state(before: int, after: int, base: int, data: st.DataObject) -> None:
    lane = lane_of(before, base)
    lane.join(1, Member(base))
    for step in lane.window:
        state = data.draw(st.sampled_from(SlotState), "state")
        if state is not SlotState.FREE:
            lane.ring.claim(step, Placement("segment", step, 1))
        if state in (SlotState.READY, SlotState.FAILED):
            {SlotState.READY: lane.ring.commit, SlotState.FAILED: lane.ring.fail}[state](step, "content")
    lane.prefetch = after
    standing = [slot for slot in lane.ring.slots if slot.step is not None]
    stood = {(slot.step or 0): (slot.segment, slot.state, slot.placement) for slot in standing}
    if not lane.can_fit():
        assert any(slot.state is SlotState.BUILDING and slot.step not in lane.window for slot in standing)
        return
    segments = {slot.segment for slot in lane.ring.slots}
    left = fit(lane)
    assert len(lane.ring.slots) == after
    assert {slot.segment for slot in lane.ring.slots} | set(left) >= segments
    for step in stood.keys() & set(lane.window):
        slot = lane.ring.of(step)
        assert (slot.segment, slot.state, slot.placement) == stood[step]
    assert list(lane.claimable()) == [step for step in lane.window if lane.ring.state(step) is SlotState.FREE]
