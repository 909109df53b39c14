"""The pool: what is leased or stands in a ring is never taken, and what is kept is one ring."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from loader_service.core.pool import SegmentPool
from loader_service.errors import MemoryLimitError
from tests.core.lanes_model import PAGE, Memory, World


def pool_of(reserve: int, segments: int) -> tuple[SegmentPool, Memory]:
    """A pool that keeps `reserve` segments of a page, over memory for `segments` of them."""
    memory = Memory(segments * PAGE)
    return SegmentPool(memory, reserve, segment_bytes=PAGE), memory


@pytest.mark.parametrize(("asked", "given"), [(0, PAGE), (1, PAGE), (PAGE, PAGE), (PAGE + 1, 2 * PAGE)])
def test_segments_are_whole_pages(asked: int, given: int) -> None:
    memory = Memory(2 * PAGE)
    pool = SegmentPool(memory, reserve=1, segment_bytes=asked)
    assert pool.nbytes(pool.take()) == pool.segment_bytes == pool.total_bytes == given


@pytest.mark.parametrize("reserve", [0, 1, 2, 3, 4, 5])
def test_the_reserve_is_created_ahead_and_taken_again(reserve: int) -> None:
    pool, memory = pool_of(reserve, 8)
    pool.fill()
    assert len(pool) == reserve
    assert sorted(pool.take_ring(reserve)) == sorted(memory.sizes)
    assert memory.created == reserve


def test_a_reserve_that_memory_cuts_short_can_be_taken() -> None:
    pool, memory = pool_of(4, 3)
    with pytest.raises(MemoryLimitError):
        pool.fill()
    assert sorted(pool.take() for _ in range(3)) == sorted(memory.sizes)


def test_a_ring_is_taken_whole_or_not_at_all() -> None:
    pool, memory = pool_of(4, 6)
    ring = pool.take_ring(4)
    with pytest.raises(MemoryLimitError):
        pool.take_ring(4)
    assert sorted(memory.sizes) == sorted(ring)


def test_what_comes_back_beyond_the_reserve_is_retired() -> None:
    pool, memory = pool_of(2, 8)
    for segment in pool.take_ring(5):
        pool.give(segment)
    assert len(pool) == len(memory.sizes) == 2


def test_a_leased_segment_is_neither_taken_nor_retired_until_its_last_lease_ends() -> None:
    pool, memory = pool_of(0, 2)
    segment = pool.take()
    pool.lease(segment)
    pool.lease(segment)
    pool.give(segment)
    assert pool.take() != segment
    pool.unlease(segment)
    assert pool.leased(segment)
    assert segment in memory.sizes
    pool.unlease(segment)
    assert not pool.leased(segment)
    assert segment not in memory.sizes


def test_a_lease_that_ends_within_the_ring_leaves_the_segment_there() -> None:
    pool, memory = pool_of(0, 1)
    segment = pool.take()
    pool.lease(segment)
    pool.unlease(segment)
    assert segment in memory.sizes
    with pytest.raises(MemoryLimitError):
        pool.take()


def test_each_use_has_a_higher_generation_also_when_the_segment_was_away() -> None:
    pool, _ = pool_of(1, 1)
    segment = pool.take()
    assert [pool.use(segment), pool.use(segment)] == [1, 2]
    pool.give(segment)
    assert pool.use(pool.take()) == 3


def test_growth_leaves_room_for_a_quarter_more_and_holds_for_all_next_segments() -> None:
    pool, _ = pool_of(2, 99)
    assert pool.nbytes(pool.take(4 * PAGE)) == 5 * PAGE
    assert pool.nbytes(pool.take()) == pool.segment_bytes == 5 * PAGE
    assert pool.nbytes(pool.take(5 * PAGE)) == 5 * PAGE


def test_segments_too_small_are_retired_as_soon_as_they_are_idle() -> None:
    pool, memory = pool_of(4, 99)
    pool.fill()
    standing, leased = pool.take(), pool.take()
    pool.lease(leased)
    pool.give(leased)
    large = pool.take(2 * PAGE)
    assert sorted(memory.sizes) == sorted([standing, leased, large])
    pool.give(standing)
    pool.unlease(leased)
    assert list(memory.sizes) == [large]


def test_a_size_that_cannot_be_had_changes_nothing() -> None:
    pool, memory = pool_of(2, 3)
    pool.fill()
    with pytest.raises(MemoryLimitError):
        pool.take(100 * PAGE)
    assert pool.segment_bytes == PAGE
    assert sorted(pool.take_ring(2)) == sorted(memory.sizes)


class AnyUse(RuleBasedStateMachine):
    """Rings and readers take and give in any order; `Memory` fails where a read segment is retired."""

    @initialize(reserve=st.integers(0, 9), segments=st.integers(0, 12))
    def begin(self, reserve: int, segments: int) -> None:
        self.reserve = reserve
        self.pool, self.memory = pool_of(reserve, segments)
        self.standing: list[str] = []
        self.generations: dict[str, int] = {}

    @rule(nbytes=st.sampled_from([0, 1, PAGE, PAGE + 1, 3 * PAGE]))
    def takes(self, nbytes: int) -> None:
        before = self.pool.segment_bytes, set(self.memory.sizes)
        try:
            segment = self.pool.take(nbytes)
        except MemoryLimitError:
            assert (self.pool.segment_bytes, set(self.memory.sizes)) == before
            return
        assert segment not in self.standing
        assert not self.memory.readers[segment]
        assert self.memory.sizes[segment] >= max(nbytes, before[0])
        self.standing.append(segment)

    @precondition(lambda self: self.standing)
    @rule(which=st.integers(0, 11))
    def gives(self, which: int) -> None:
        self.pool.give(self.standing.pop(which % len(self.standing)))

    @precondition(lambda self: self.standing)
    @rule(which=st.integers(0, 11))
    def uses_and_leases(self, which: int) -> None:
        segment = self.standing[which % len(self.standing)]
        generation = self.pool.use(segment)
        assert generation > self.generations.get(segment, 0)
        self.generations[segment] = generation
        self.memory.readers[segment] += 1
        self.pool.lease(segment)

    @precondition(lambda self: +self.memory.readers)
    @rule(which=st.integers(0, 11))
    def ends_a_lease(self, which: int) -> None:
        segment = sorted((+self.memory.readers).elements())[which % self.memory.readers.total()]
        self.memory.readers[segment] -= 1
        self.pool.unlease(segment)

    @invariant()
    def keeps_no_more_than_it_should(self) -> None:
        idle = set(self.memory.sizes) - set(self.standing) - set(+self.memory.readers)
        assert set(self.standing) <= set(self.memory.sizes)
        assert len(self.pool) == len(self.memory.sizes)
        assert self.pool.total_bytes == sum(self.memory.sizes.values())
        assert len(idle) <= self.reserve
        assert all(self.memory.sizes[segment] >= self.pool.segment_bytes for segment in idle)


TestAnyUse = AnyUse.TestCase
TestAnyUse.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_an_open_that_memory_refuses_leaves_nothing_behind() -> None:
    world = World(prefetch=4, segments=7)
    world.open(0)
    with pytest.raises(MemoryLimitError):
        world.open(50)
    assert (len(world.lanes.lanes), len(world.lanes.consumers), len(world.pool)) == (1, 1, 4)
    world.end()


def test_a_seek_that_memory_refuses_leaves_the_consumer_open() -> None:
    world = World(prefetch=2, segments=2)
    other, consumer = world.open(0), world.open(0)
    for _ in range(2):
        with pytest.raises(MemoryLimitError):
            world.ask(consumer, 50)
    world.close(other)
    world.ask(consumer, 50)
    world.end()
    assert world.delivered[consumer] == [50]


def test_a_larger_segment_takes_the_place_of_one_that_is_too_small() -> None:
    world = World(prefetch=2, segments=4)
    world.ask(world.open(0))
    small = world.claim()
    assert small is not None
    world.larger(small, PAGE + 1)
    (large,) = world.builds.values()
    assert (large.step, large.place, large.segment_bytes) == (0, 0, 2 * PAGE)
    assert small.segment not in world.memory.sizes
    world.end()


def test_a_segment_that_cannot_be_had_larger_leaves_the_claim_and_the_stream_as_they_were() -> None:
    world = World(prefetch=2, segments=4)
    world.open(0)
    claim = world.claim()
    assert claim is not None
    with pytest.raises(MemoryLimitError):
        world.larger(claim, 100 * PAGE)
    world.failed(claim)
    world.ask(consumer := world.open(90))
    world.end()
    assert world.delivered[consumer] == [90]
