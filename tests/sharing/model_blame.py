"""Who is to blame that a consumer waits, told from a world's own account, without `sharing.fairness`."""

from __future__ import annotations

from loader_service.sharing.lane import Lane
from loader_service.sharing.pace import debt_after
from loader_service.sharing.ring import SlotState
from tests.sharing.model_account import Account

__all__ = ["at_base", "could_leave", "debts_after", "hoarders", "idle_at_base"]


def _comes(lane: Lane, step: int) -> bool:
    return step in lane.window or lane.ring.state(step) is not SlotState.FREE


def _held_up(world: Account, lane: Lane) -> set[int]:
    """Those who demand a step that the window does not reach."""
    return {name for name in world.demanding & lane.members.keys() if not _comes(lane, world.waiting[name])}


def _is_served(world: Account, lane: Lane, name: int) -> bool:
    """Its own step is on its way; with a lease it may be at work, unless it says that it waits."""
    comes = name in world.waiting and _comes(lane, world.waiting[name])
    return comes and (name in world.demanding or not lane.members[name].leases)


def idle_at_base(world: Account, lane: Lane) -> set[int]:
    """The members who keep the base where it is, by what they do not release or do not ask for."""
    cursors = {name: min([world.position[name], *one.leases.values()]) for name, one in lane.members.items()}
    return {name for name, cursor in cursors.items() if cursor == lane.base and not _is_served(world, lane, name)}


def at_base(world: Account) -> set[int]:
    """Those who are idle at the base of a lane where another is held up."""
    return {name for lane in world.occupied() for name in idle_at_base(world, lane) if _held_up(world, lane) - {name}}


def hoarders(world: Account) -> set[int]:
    """Those who read what stands in the place of a demanded step, with no memory for another segment."""
    if world.takes(1):
        return set()
    places = set()
    for name in world.demanding & world.waiting.keys():
        lane = world.lane_of(name)
        assert lane is not None
        if lane.can_claim(world.waiting[name]):
            places.add(lane.ring.of(world.waiting[name]).segment)
    return {holder for holder, grant in world.views.values() if grant.placement.segment in places}


def debts_after(world: Account, elapsed_s: float) -> dict[int, float]:
    """The debts of all after `elapsed_s` seconds in the present state."""
    blamed, debts = at_base(world) | hoarders(world), dict(world.debt)
    for lane in world.occupied():
        waits = bool(_held_up(world, lane))
        for name in lane.members:
            debts[name] = debt_after(debts.get(name, 0), elapsed_s, blamed=name in blamed, someone_waits=waits)
    for name in blamed - world.members().keys():
        debts[name] = debts.get(name, 0) + elapsed_s
    return debts


def could_leave(world: Account, name: int) -> bool:
    """Whether there is memory for `name` to go on elsewhere, and for the others to go on without what it leases."""
    lane = world.lane_of(name)
    assert lane is not None
    spares = len(lane.members[name].leases)
    if any(world.position[name] in other.window for other in world.occupied() if other is not lane):
        return world.takes(spares)
    if world.limits.max_lanes and len(world.occupied()) >= world.limits.max_lanes:
        return False
    is_there = len(world.occupied()) < len(world.lanes.lanes)
    return world.takes(spares + (0 if is_there else world.prefetch))
