"""The pool: what is leased or stands in a ring is never taken, and what is kept is one ring."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from loader_service.errors import MemoryLimitError
from loader_service.sharing.placement import Placement
from loader_service.sharing.segment_pool import SegmentPool
from tests.sharing.model_memory import PAGE, Memory


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
    assert pool.is_kept(segment)
    assert segment in memory.sizes
    pool.unlease(segment)
    assert segment not in memory.sizes
    assert pool.is_kept(segment), "what is retired must not be written either"


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
    assert [pool.use(segment), pool.use(segment)] == [Placement(segment, used, PAGE) for used in (1, 2)]
    pool.give(segment)
    assert pool.use(pool.take()).generation == 3


def measure(pool: SegmentPool, *pages: int) -> None:
    """Batches of so many pages are built."""
    for number in pages:
        pool.measure(number * PAGE)


def test_a_batch_of_unusual_size_gets_one_larger_segment_and_the_rings_keep_theirs() -> None:
    pool, memory = pool_of(8, 99)
    ring = pool.take_ring(8)
    measure(pool, *[1] * 20)
    large = pool.take(50 * PAGE)
    measure(pool, 50)
    assert (pool.nbytes(large), pool.segment_bytes) == (50 * PAGE, PAGE)
    assert not pool.is_writable(large), "the next batch in its place is a usual one"
    assert pool.nbytes(pool.swap(large)) == PAGE
    for segment in ring:
        pool.give(segment)
    assert large not in memory.sizes
    assert {pool.nbytes(segment) for segment in pool.take_ring(8)} == {PAGE}


@pytest.mark.parametrize("earlier", [0, 1, 4, 100])
def test_segments_grow_once_more_than_three_of_the_latest_batches_need_more(earlier: int) -> None:
    pool, _ = pool_of(2, 99)
    measure(pool, *[1] * earlier, 8, 8, 8)
    assert pool.segment_bytes == PAGE
    measure(pool, 8)
    assert pool.segment_bytes == 10 * PAGE, "with a quarter more"
    measure(pool, 10, 9, 10)
    assert pool.segment_bytes == 10 * PAGE


def test_segments_shrink_once_all_but_three_of_the_latest_64_batches_need_less_than_half() -> None:
    pool, _ = pool_of(2, 99)
    measure(pool, *[8] * 64, *[2] * 60)
    assert pool.segment_bytes == 10 * PAGE
    measure(pool, *[2] * 68)
    assert pool.segment_bytes == 3 * PAGE


def test_segments_never_shrink_below_what_is_configured() -> None:
    memory = Memory(99 * PAGE)
    pool = SegmentPool(memory, 2, 8 * PAGE, least_bytes=6 * PAGE)
    measure(pool, *[1] * 256)
    assert pool.segment_bytes == 8 * PAGE
    pool = SegmentPool(memory, 2, 20 * PAGE, least_bytes=6 * PAGE)
    measure(pool, *[1] * 256)
    assert pool.segment_bytes == 6 * PAGE


def test_segments_too_small_or_too_large_are_retired_as_soon_as_they_are_idle() -> None:
    pool, memory = pool_of(4, 99)
    pool.fill()
    standing, leased, large = pool.take(), pool.take(), pool.take(50 * PAGE)
    pool.lease(leased)
    pool.give(leased)
    measure(pool, 2, 2, 2, 2)
    assert sorted(memory.sizes) == sorted([standing, leased, large])
    pool.give(standing)
    pool.give(large)
    pool.unlease(leased)
    assert list(memory.sizes) == []


def test_a_size_that_cannot_be_had_changes_nothing() -> None:
    pool, memory = pool_of(2, 3)
    pool.fill()
    with pytest.raises(MemoryLimitError):
        pool.take(100 * PAGE)
    assert pool.segment_bytes == PAGE
    assert sorted(pool.take_ring(2)) == sorted(memory.sizes)


def test_what_is_given_up_to_an_evicted_reader_is_never_taken_again_and_retired_at_once() -> None:
    pool, memory = pool_of(4, 4)
    segment = pool.take()
    pool.lease(segment)
    pool.give(segment)
    pool.abandon(segment)
    assert segment not in memory.sizes
    assert pool.is_kept(segment)
    assert segment not in pool.take_ring(4)


def test_what_is_given_up_while_it_stands_is_retired_when_it_is_swapped_so_that_its_room_is_enough() -> None:
    pool, memory = pool_of(1, 1)
    segment = pool.take()
    pool.lease(segment)
    pool.abandon(segment)
    assert segment in memory.sizes
    assert pool.is_kept(segment)
    assert pool.swap(segment) != segment
    assert segment not in memory.sizes


def test_what_is_given_up_while_another_reads_it_lives_until_that_one_has_done() -> None:
    pool, memory = pool_of(1, 2)
    segment = pool.take()
    pool.lease(segment)
    pool.lease(segment)
    pool.abandon(segment)
    pool.swap(segment)
    assert segment in memory.sizes
    pool.unlease(segment)
    assert segment not in memory.sizes


def test_the_room_of_what_is_given_up_stays_with_its_place_while_another_reads_it() -> None:
    pool, _ = pool_of(1, 1)
    segment = pool.take()
    pool.lease(segment)
    pool.lease(segment)
    pool.abandon(segment)
    with pytest.raises(MemoryLimitError):
        pool.swap(segment)
    pool.unlease(segment)
    with pytest.raises(MemoryLimitError):
        pool.take()
    assert pool.swap(segment) != segment


def test_a_swap_without_memory_loses_nothing() -> None:
    pool, memory = pool_of(1, 1)
    segment = pool.take()
    pool.lease(segment)
    with pytest.raises(MemoryLimitError):
        pool.swap(segment)
    pool.unlease(segment)
    assert segment in memory.sizes
    assert not pool.is_kept(segment)


def test_a_lost_segment_is_neither_taken_nor_written_and_retired_when_it_is_met() -> None:
    pool, memory = pool_of(2, 2)
    pool.fill()
    standing, spare = pool.take(), next(iter(memory.sizes.keys() - {next(iter(memory.sizes))}))
    memory.unlinked |= {standing, spare}
    assert pool.is_kept(standing)
    assert pool.is_lost(standing)
    assert pool.take() not in (standing, spare)
    assert spare not in memory.sizes
    assert pool.swap(standing) not in (standing, spare)
    assert standing not in memory.sizes
    assert not pool.is_lost(standing), "what is retired is not lost, but gone"


def test_a_lost_segment_that_is_read_lives_until_that_has_ended() -> None:
    pool, memory = pool_of(1, 2)
    segment = pool.take()
    pool.lease(segment)
    memory.unlinked.add(segment)
    assert pool.swap(segment) != segment
    assert segment in memory.sizes
    assert pool.is_lost(segment)
    pool.unlease(segment)
    assert segment not in memory.sizes


@pytest.mark.parametrize(("before", "after", "kept"), [(4, 2, 2), (4, 0, 0), (2, 4, 2), (3, 3, 3)])
def test_another_reserve_retires_what_is_too_many_and_creates_nothing(before: int, after: int, kept: int) -> None:
    pool, memory = pool_of(before, 8)
    pool.fill()
    pool.retune(after)
    assert (len(pool), memory.created) == (kept, before)


class AnyUse(RuleBasedStateMachine):
    """Rings and readers take, give and are put out in any order; `Memory` fails where a read segment is retired."""

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

    @precondition(lambda self: set(self.standing) - self.memory.given_up)
    @rule(which=st.integers(0, 11))
    def uses_and_leases(self, which: int) -> None:
        usable = [segment for segment in self.standing if segment not in self.memory.given_up]
        segment = usable[which % len(usable)]
        generation = self.pool.use(segment).generation
        assert generation > self.generations.get(segment, 0)
        self.generations[segment] = generation
        self.memory.readers[segment] += 1
        self.pool.lease(segment)

    @precondition(lambda self: +self.memory.readers)
    @rule(which=st.integers(0, 11), is_evicted=st.booleans())
    def ends_a_lease(self, which: int, is_evicted: bool) -> None:
        segment = sorted((+self.memory.readers).elements())[which % self.memory.readers.total()]
        self.memory.readers[segment] -= 1
        self.memory.given_up |= {segment} if is_evicted else set()
        (self.pool.abandon if is_evicted else self.pool.unlease)(segment)

    @precondition(lambda self: self.standing)
    @rule(which=st.integers(0, 11))
    def swaps(self, which: int) -> None:
        """As a slot does whose segment is leased: without memory it keeps it, though the segment may be gone."""
        place = which % len(self.standing)
        segment = self.standing[place]
        try:
            self.standing[place] = self.pool.swap(segment)
        except MemoryLimitError:
            if segment not in self.memory.sizes:
                self.standing.pop(place)

    @rule(pages=st.sampled_from([1, 1, 1, 2, 3, 9]), times=st.sampled_from([1, 4, 64]))
    def measures(self, pages: int, times: int) -> None:
        measure(self.pool, *[pages] * times)

    @rule(reserve=st.integers(0, 9))
    def retunes(self, reserve: int) -> None:
        self.reserve = reserve
        self.pool.retune(reserve)

    @rule(count=st.integers(0, 12))
    def tells_what_could_be_taken(self, count: int) -> None:
        """By taking it: as long as nothing grows, what it says is exact."""
        could, before = self.pool.could_take(count), set(self.memory.sizes)
        try:
            ring = self.pool.take_ring(count)
        except MemoryLimitError:
            assert not could
        else:
            assert could
            for segment in ring:
                self.pool.give(segment)
        assert len(self.memory.sizes.keys() - before) <= self.reserve

    @invariant()
    def keeps_no_more_than_it_should(self) -> None:
        self.memory.check()
        idle = set(self.memory.sizes) - set(self.standing) - set(+self.memory.readers)
        assert not idle & self.memory.given_up
        assert set(self.standing) <= set(self.memory.sizes)
        for segment in self.memory.sizes:
            may_be_read = self.memory.readers[segment] > 0 or segment in self.memory.given_up
            assert self.pool.is_kept(segment) is may_be_read
        assert len(self.pool) == len(self.memory.sizes)
        assert self.pool.total_bytes == sum(self.memory.sizes.values())
        assert len(idle) <= self.reserve
        assert all(1 <= self.memory.sizes[segment] / self.pool.segment_bytes <= 2 for segment in idle)


TestAnyUse = AnyUse.TestCase
TestAnyUse.settings = settings(max_examples=100, stateful_step_count=40)
