"""The ring: each arrow of a slot's states, and no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from loader_service.errors import IntegrityError
from loader_service.sharing.placement import Placement
from loader_service.sharing.ring import Ring, SlotState

SIZES = [1, 2, 3, 4, 5, 7, 8, 9]
FREE, BUILDING, READY, FAILED = SlotState
CHANGES: dict[str, Callable[[Ring], object]] = {
    "claim": lambda ring: ring.claim(3, Placement("segment", 7, 1)),
    "commit": lambda ring: ring.commit(3, "bytes"),
    "fail": lambda ring: ring.fail(3, "error"),
    "abort": lambda ring: ring.abort(3),
    "free": lambda ring: ring.free(3),
}
ARROWS = {
    (FREE, "claim"): BUILDING,
    (BUILDING, "commit"): READY,
    (BUILDING, "fail"): FAILED,
    (BUILDING, "abort"): FREE,
    (READY, "free"): FREE,
    (FAILED, "free"): FREE,
    (FREE, "free"): FREE,
    (BUILDING, "free"): BUILDING,
}
WAY = {FREE: [], BUILDING: ["claim"], READY: ["claim", "commit"], FAILED: ["claim", "fail"]}


def ring_with_step_3(state: SlotState) -> Ring:
    ring = Ring(["a", "b"])
    for change in WAY[state]:
        CHANGES[change](ring)
    return ring


@pytest.mark.parametrize(("state", "change"), sorted(ARROWS))
def test_a_slot_changes_along_the_arrows(state: SlotState, change: str) -> None:
    ring = ring_with_step_3(state)
    CHANGES[change](ring)
    after = ARROWS[state, change]
    assert ring.state(3) is ring.of(3).state is after
    assert ring.of(3).step == (None if after is FREE else 3)
    assert ring.of(3).content == {READY: "bytes", FAILED: "error"}.get(after)
    assert ring.is_building() is (after is BUILDING)


@pytest.mark.parametrize(("state", "change"), [(s, c) for s in SlotState for c in CHANGES if (s, c) not in ARROWS])
def test_any_other_change_is_an_error_and_changes_nothing(state: SlotState, change: str) -> None:
    ring = ring_with_step_3(state)
    before = str(ring.slots)
    with pytest.raises(IntegrityError, match="step 3"):
        CHANGES[change](ring)
    assert str(ring.slots) == before


@pytest.mark.parametrize("change", ["commit", "fail", "abort"])
def test_a_build_ends_only_for_the_step_that_was_claimed(change: str) -> None:
    ring = Ring(["a", "b"])
    ring.claim(1, Placement("segment", 1, 1))
    with pytest.raises(IntegrityError, match="step 3"):
        CHANGES[change](ring)
    assert ring.state(1) is BUILDING


@pytest.mark.parametrize("size", SIZES)
def test_the_slot_of_a_step_is_the_step_mod_the_size(size: int) -> None:
    ring = Ring([f"segment-{place}" for place in range(size)])
    for step in range(100, 100 + size):
        slot = ring.claim(step, Placement("segment", step, 1))
        assert (slot.place, slot.segment, slot.placement) == (
            step % size,
            f"segment-{step % size}",
            Placement("segment", step, 1),
        )
    assert len({slot.place for slot in ring.slots}) == size


@pytest.mark.parametrize("size", SIZES)
def test_a_place_that_holds_another_step_is_free_for_ours(size: int) -> None:
    ring = Ring(["segment"] * size)
    ring.claim(5, Placement("segment", 1, 1))
    assert ring.state(5) is BUILDING
    assert ring.of(5 + size) is ring.of(5)
    assert ring.state(5 + size) is ring.state(5 - size) is FREE
    with pytest.raises(IntegrityError, match=f"slot {5 % size} is building"):
        ring.claim(5 + size, Placement("segment", 2, 1))


def test_only_a_step_that_is_done_and_stands_there_is_freed() -> None:
    ring = Ring(["a", "b", "c", "d", "e"])
    for step in range(5):
        ring.claim(step, Placement("segment", 1, 1))
    for step in (0, 2, 4):
        ring.commit(step, "bytes")
    ring.fail(1, "error")
    for step in (0, 1, 3, 7, 12):
        ring.free(step)
    assert [slot.state for slot in ring.slots] == [FREE, FREE, READY, BUILDING, READY]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("before", SIZES)
def test_what_stands_in_the_window_keeps_its_segment_and_content_in_a_ring_of_another_size(
    before: int, size: int
) -> None:
    ring = Ring([f"old-{place}" for place in range(before)])
    for step in range(7, 7 + before):
        ring.claim(step, Placement("segment", step, 1))
        ring.commit(step, f"bytes of {step}")
    kept = {slot.step: slot for slot in ring.slots if slot.step is not None}
    segments = {slot.segment for slot in ring.slots} | {f"new-{place}" for place in range(max(0, size - before))}
    steps = range(7, 7 + size)
    assert ring.missing_for(steps) == max(0, size - before)
    left_over = ring.resize(steps, [f"new-{place}" for place in range(ring.missing_for(steps))])
    assert [slot.place for slot in ring.slots] == list(range(size))
    assert {slot.segment for slot in ring.slots} | set(left_over) == segments
    for step in range(7, 7 + min(before, size)):
        assert ring.of(step) is kept[step]
        assert (ring.state(step), ring.of(step).content) == (READY, f"bytes of {step}")
    assert [slot.state for slot in ring.slots].count(FREE) == max(0, size - before)


def test_a_build_that_has_no_place_in_a_smaller_ring_leaves_with_its_segment() -> None:
    ring = Ring(["a", "b", "c", "d"])
    for step in range(4):
        ring.claim(step, Placement("segment", 1, 1))
    assert ring.missing_for(range(2)) == 0
    assert ring.resize(range(2), []) == []
    assert [slot.step for slot in ring.slots] == [0, 1]
    assert [(slot.step, slot.segment) for slot in ring.leaving] == [(2, "c"), (3, "d")]
    ring.abort(0)
    ring.abort(1)
    assert ring.is_building(), "workers still write into those that left"


def test_a_ring_lacks_the_segments_of_builds_that_everyone_went_past() -> None:
    ring = Ring(["a", "b"])
    ring.claim(0, Placement("segment", 1, 1))
    assert ring.missing_for(range(2, 5)) == 2
    with pytest.raises(IntegrityError, match="no ring of 3"):
        ring.resize(range(2, 5), ["c"])
    assert ring.resize(range(2, 5), ["c", "d"]) == []
    assert sorted(slot.segment for slot in ring.slots) == ["b", "c", "d"]
