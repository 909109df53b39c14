"""The events of a world for RingScheduler, for those who send them in any order, and the steps of a plain test.

Owns `EVENTS` and `happen`: two numbers pick a consumer, build or view, and a step, an offset, a size or a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from loader_service.errors import ArgumentError, EvictedError, MemoryLimitError
from loader_service.sharing.consumer import ConsumerOptions, Grant, SlowConsumerPolicy
from loader_service.sharing.lane_table import Claim
from tests.sharing.model_world import World

__all__ = ["EVENTS", "PREFETCH", "SPLIT_AT_ONCE", "WAIT"]
__all__ += ["claim_all", "happen", "quick_one", "sorted_builds", "take", "terms_of"]

PREFETCH = [1, 2, 3, 4, 5, 8]
WAIT = ConsumerOptions(SlowConsumerPolicy("wait"))
SPLIT_AT_ONCE = ConsumerOptions(SlowConsumerPolicy("split", 0.0))
Event = Callable[[World, int, int], object]


def pick(among: Iterable[int], which: int) -> int:
    return (ordered := sorted(among))[which % len(ordered)]


def clean_up(world: World, which: int, _: int) -> None:
    """Somebody removes a segment's name."""
    if world.memory.sizes:
        ordered = sorted(world.memory.sizes)
        world.unlink(ordered[which % len(ordered)])


def to_consumer(event: Event) -> Event:
    """`event` for an open consumer, if there is one."""
    return lambda world, which, n: world.position and event(world, pick(world.position, which), n)


def to_build(event: Callable[[World, Claim, int], object]) -> Event:
    """`event` for a build in flight, if there is one."""
    return lambda world, which, n: world.builds and event(world, sorted_builds(world)[which % len(world.builds)], n)


def to_view(event: Event) -> Event:
    """`event` for the holder and the lease of a live view, if there is one."""

    def happens(world: World, which: int, _: int) -> object:
        lease = pick(world.views, which) if world.views else -1
        return lease in world.views and event(world, world.views[lease][0], lease)

    return happens


def sorted_builds(world: World) -> list[Claim]:
    return sorted(world.builds.values(), key=lambda claim: (claim.lane_id, claim.step, claim.placement.segment))


def terms_of(world: World, n: int) -> ConsumerOptions:
    """Options of any kind that the world's rings allow."""
    hold = [None, 1, 2, 3][n % 4]
    pace = SlowConsumerPolicy("wait" if n % 5 == 0 else "split", [0, 0.5, 1][n % 3])
    return ConsumerOptions(pace, hold if hold is None or hold < world.prefetch else None)


def open_if_few(world: World, step: int | None, n: int) -> None:
    if len(world.position) < 5:
        world.open(step, terms_of(world, n))


def ask_within_window(world: World, consumer: int, offset: int) -> None:
    lane = world.lane_of(consumer)
    world.ask(consumer, None if lane is None else lane.base + offset % len(lane.ring.slots))


def ask_the_next(world: World, consumer: int, n: int) -> None:
    """The next step; where that has failed, the same again or the one after it."""
    position = world.position[consumer]
    world.ask(consumer, position + (position in world.errors and n % 4 > 0))


def ask_when_put_out(world: World, which: int, step: int) -> None:
    try:
        if world.put_out:
            world.lanes.ask(pick(world.put_out, which), step)
    except EvictedError:
        return
    assert not world.put_out


def close_when_put_out(world: World, which: int, _: int) -> None:
    if world.put_out:
        world.close(pick(world.put_out, which))


EVENTS: dict[str, tuple[int, Event]] = {
    "opens": (6, lambda world, which, n: open_if_few(world, n, which + n)),
    "opens live": (2, lambda world, _, n: open_if_few(world, None, n)),
    "opens beside": (
        4,
        to_consumer(lambda world, consumer, n: open_if_few(world, world.position[consumer] + n % 3, n)),
    ),
    "asks": (60, to_consumer(ask_the_next)),
    "asks ahead": (25, to_consumer(lambda world, consumer, _: world.ask(consumer, demanded=False))),
    "asks for a run": (12, to_consumer(lambda world, consumer, n: world.ask(consumer, steps=2 + n % 6))),
    "asks for one alone": (6, to_consumer(lambda world, consumer, n: world.ask(consumer, n, alone=True))),
    "jumps": (4, to_consumer(lambda world, consumer, _: world.ask(consumer, jumps=True))),
    "demands": (12, to_consumer(lambda world, consumer, _: world.demand(consumer))),
    "asks within the window": (3, to_consumer(ask_within_window)),
    "asks when put out": (1, ask_when_put_out),
    "seeks": (1, to_consumer(lambda world, consumer, step: world.ask(consumer, step))),
    "releases": (60, to_view(lambda world, holder, lease: world.release(holder, lease))),
    "releases anything": (1, lambda world, consumer, lease: world.release(consumer, lease)),
    "closes": (3, to_consumer(lambda world, consumer, _: world.close(consumer))),
    "closes again": (1, to_view(lambda world, holder, _: world.close(holder))),
    "closes when put out": (1, close_when_put_out),
    "loses a client": (1, to_consumer(lambda world, consumer, _: world.drop(consumer))),
    "loses a holder": (1, to_view(lambda world, holder, _: world.drop(holder))),
    "evicts": (1, to_consumer(lambda world, consumer, _: world.evict(consumer))),
    "time passes": (25, lambda world, _, n: world.pass_time(n % 5 / 4)),
    "retunes": (3, lambda world, which, _: world.retune(1 + which)),
    "claims": (60, lambda world, _, __: world.claim()),
    "claims what is demanded": (20, lambda world, _, __: world.claim(demanded=True)),
    "builds": (90, to_build(lambda world, claim, _: world.built(claim))),
    "fails": (3, to_build(lambda world, claim, _: world.failed(claim))),
    "loses a worker": (1, to_build(lambda world, claim, _: world.aborted(claim))),
    "needs more": (1, to_build(lambda world, claim, n: world.larger(claim, 200 * n))),
    "cleans up": (1, clean_up),
    "settles": (12, lambda world, _, __: world.settle()),
    "finishes": (0, lambda world, _, __: world.finish()),
}
"""Name -> (weight, event)."""


def happen(world: World, name: str, which: int, n: int) -> None:
    try:
        EVENTS[name][1](world, which, n)
    except (MemoryLimitError, ArgumentError):
        world.tally["refused"] += 1
        world.check()
    except EvictedError:
        world.tally["evicted"] += 1


def take(world: World, consumer: int, step: int | None = None) -> Grant:
    """Ask, build all that can be built; what the consumer got."""
    world.ask(consumer, step)
    world.settle()
    return [grant for holder, grant in world.views.values() if holder == consumer][-1]


def claim_all(world: World) -> list[int]:
    """Claim until there is no more to claim: the steps, in the order of the claims."""
    return [claim.step for claim in iter(world.claim, None)]


def quick_one(world: World, base: int = 0) -> int:
    """One who has had the whole window from `base` on and asks for the next step."""
    quick = world.open(base, WAIT)
    for _ in range(world.prefetch):
        world.release(quick, take(world, quick).lease_id)
    world.ask(quick)
    world.settle()
    return quick
