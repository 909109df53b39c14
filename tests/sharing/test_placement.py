"""A placement names one use of a segment, and is a value."""

from __future__ import annotations

import dataclasses

import pytest

from loader_service.sharing.placement import Placement
from tests.sharing.model_events import take
from tests.sharing.model_world import World


def test_a_placement_is_a_frozen_value_with_slots() -> None:
    placement = Placement("segment-0", 1, 4096)
    assert placement == Placement("segment-0", 1, 4096)
    assert hash(placement) == hash(Placement("segment-0", 1, 4096))
    assert not hasattr(placement, "__dict__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        placement.generation = 2  # type: ignore[misc]  # that is what is tested


def test_no_two_builds_have_the_same_placement() -> None:
    world, seen = World(2, 2), set[Placement]()
    consumer = world.open(0)
    for _ in range(20):
        grant = take(world, consumer)
        assert grant.placement not in seen
        seen.add(grant.placement)
        world.release(consumer, grant.lease_id)
    assert {placement.segment for placement in seen} == {"segment-0", "segment-1"}
