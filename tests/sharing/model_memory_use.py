"""The consumers that keep memory from others, and those that could leave their lane, told from a world's account."""

from __future__ import annotations

from tests.sharing.model_account import Account

__all__ = ["could_leave", "memory_blockers"]


def memory_blockers(world: Account) -> set[int]:
    """The consumers that read what stands in the slot of a demanded step, with no memory for another segment."""
    if world.takes(1):
        return set()
    segments = set()
    for name in world.demanding:
        reader = world.reference.readers[name]
        assert reader.lane_id is not None
        assert reader.wanted is not None
        if world.reference.can_build(reader.lane_id, reader.wanted):
            segments.add(world.segment_at(reader.lane_id, reader.wanted))
    return {holder for holder, grant in world.views.values() if grant.placement.segment in segments}


def could_leave(world: Account, name: int) -> bool:
    """Tell if there is memory for `name` to go on elsewhere, and for the others to go on without what it leases."""
    reference = world.reference
    reader, occupied = reference.readers[name], reference.occupied()
    spares = len(reader.held)
    if any(reader.position in reference.lanes[other].window for other in occupied if other != reader.lane_id):
        return world.takes(spares)
    if world.limits.max_lanes and len(occupied) >= world.limits.max_lanes:
        return False
    is_there = len(occupied) < len(reference.lanes)
    return world.takes(spares + (0 if is_there else world.prefetch))
