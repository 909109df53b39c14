"""Segments of one stream: which stand in a ring, which are leased, which are spare.

Owns `SegmentPool`, plain accounting over an injected allocator. Invariant: `take` never gives a segment that a
lease is on, that was leased to an evicted consumer, that is lost, or that stands in a ring; and each use of a segment
has a higher generation than the one before. Fails as its allocator does: nothing is lost then.

A segment is lost when somebody has removed its name from the machine: who has it mapped goes on, nobody else can map
it. It is looked for when it is to be written and when it is to be granted, so that no lost one ever is.

    kept after use: at most `reserve` segments in all, none smaller than `segment_bytes`; the rest is retired
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from loader_service.sharing.placement import Placement

__all__ = ["Allocator", "SegmentPool"]

_PAGE = 4096


def _whole_pages(nbytes: int) -> int:
    """Round up to a multiple of the page size, 4,096 bytes."""
    return -(-nbytes // _PAGE) * _PAGE


class Allocator(Protocol):
    """Makes and ends segments; the daemon's is real shared memory, a test's a counter."""

    def create(self, nbytes: int) -> str:
        """A new segment of at least `nbytes`; raises SharedMemoryError or MemoryLimitError."""
        ...

    def retire(self, segment: str) -> None:
        """The segment is not used again."""
        ...

    def fits(self, nbytes: int) -> bool:
        """Whether `nbytes` more could be created now, as far as can be told."""
        ...

    def exists(self, segment: str) -> bool:
        """Whether others can still find it by its name."""
        ...


@dataclass(slots=True)
class _Segment:
    nbytes: int
    in_ring: bool = False
    generation: int = 0
    abandoned: bool = False
    lost: bool = False


class SegmentPool:
    """The segments of one stream.

    allocator: where segments come from; reserve: how many to keep, one ring; segment_bytes: the size of the next
    one, in bytes; it rises when a batch needs more.
    """

    def __init__(self, allocator: Allocator, reserve: int, segment_bytes: int) -> None:
        self._allocator = allocator
        self.reserve = reserve
        self.segment_bytes = _whole_pages(max(segment_bytes, 1))
        self._segments: dict[str, _Segment] = {}
        self._leases: Counter[str] = Counter()
        self._spare: dict[str, None] = {}  # in the order in which they came; for `take` not to look at all

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def total_bytes(self) -> int:
        return sum(segment.nbytes for segment in self._segments.values())

    def nbytes(self, segment: str) -> int:
        """Its size; 0 for one that is retired."""
        known = self._segments.get(segment)
        return 0 if known is None else known.nbytes

    def fill(self) -> None:
        """Create the reserve ahead of its use. Raises as the allocator; what was created by then is kept."""
        for segment in self.take_ring(self.reserve):
            self.give(segment)

    def take_ring(self, slots: int) -> list[str]:
        """A segment for each slot of a new ring, or none at all. Raises as the allocator."""
        taken: list[str] = []
        try:
            while len(taken) < slots:
                taken.append(self.take())
        except Exception:  # whatever the allocator raises: what was taken goes back, and it passes on
            for segment in taken:
                self.give(segment)
            raise
        return taken

    def take(self, nbytes: int = 0) -> str:
        """A segment for a ring: unleased, of at least max(nbytes, segment_bytes). Raises as the allocator."""
        wanted = self._wanted(nbytes)
        while (name := self._first_spare(wanted)) is not None:
            del self._spare[name]
            if not self.lost(name):
                self._segments[name].in_ring = True
                return name
            self._settle(name)
        name = self._allocator.create(wanted)
        self._segments[name] = _Segment(wanted, in_ring=True)
        self._grow_to(wanted)
        return name

    def make_room(self, segment: str, nbytes: int) -> None:
        """Retire a segment that nobody reads where one of `nbytes` has room in its place, and none beside it."""
        wanted, held = self._wanted(nbytes), self.nbytes(segment)
        beside = self._first_spare(wanted) is not None or self._allocator.fits(wanted)
        if not beside and segment in self._segments and self._allocator.fits(wanted - held):
            del self._segments[segment]
            self._allocator.retire(segment)

    def _wanted(self, nbytes: int) -> int:
        return self.segment_bytes if nbytes <= self.segment_bytes else _whole_pages(nbytes + nbytes // 4)

    def _first_spare(self, nbytes: int) -> str | None:
        return next((name for name in self._spare if self._segments[name].nbytes >= nbytes), None)

    def give(self, segment: str) -> None:
        """The segment leaves its ring; it stays untouched while a lease is on it. One that is retired is ignored."""
        if segment in self._segments:
            self._segments[segment].in_ring = False
            self._settle(segment)

    def swap(self, segment: str) -> str:
        """Another segment for the place of a leased one, which leaves its ring. Raises as the allocator.

        One whose holder was evicted, or that is lost, is retired first, so that the other may have its room; not while
        it is leased too, for then its room would go to whoever comes first when that lease ends.
        """
        if segment in self._segments and self._segments[segment].abandoned and not self._leases[segment]:
            self.give(segment)
        other = self.take()
        self.give(segment)
        return other

    def use(self, segment: str) -> Placement:
        """Count one more use of this segment, for the next build into it."""
        known = self._segments[segment]
        known.generation += 1
        return Placement(segment, known.generation, known.nbytes)

    def lease(self, segment: str) -> None:
        self._leases[segment] += 1

    def unlease(self, segment: str) -> None:
        self._leases[segment] -= 1
        if not self._leases[segment]:
            del self._leases[segment]
            self._settle(segment)

    def leased(self, segment: str) -> bool:
        """Whether it must not be written: it is leased, an evicted consumer may read it, it is lost or retired."""
        known = self._segments.get(segment)
        return known is None or known.abandoned or self._leases[segment] > 0 or self.lost(segment)

    def lost(self, segment: str) -> bool:
        """Whether its name is gone: it is given up then, and retired as soon as nobody reads it."""
        known = self._segments.get(segment)
        if known is None:
            return False
        if not known.lost and not self._allocator.exists(segment):
            known.lost = known.abandoned = True
        return known.lost

    def abandon(self, segment: str) -> None:
        """End a lease whose holder may go on reading: the segment is never written again, and retired in time."""
        self._segments[segment].abandoned = True
        self.unlease(segment)

    def could_take(self, count: int) -> bool:
        """Whether `count` segments could be taken now, as far as can be told."""
        wanted = count - sum(self._segments[name].nbytes >= self.segment_bytes for name in self._spare)
        return wanted <= 0 or self._allocator.fits(wanted * self.segment_bytes)

    def retune(self, reserve: int) -> None:
        """Keep another number of segments from now on."""
        self.reserve = reserve
        for name in list(self._spare):
            self._settle(name)

    def _grow_to(self, segment_bytes: int) -> None:
        """A segment of this size could be had: all next ones have it, and idle smaller ones are of no use."""
        if segment_bytes > self.segment_bytes:
            self.segment_bytes = segment_bytes
            for name in list(self._spare):
                self._settle(name)

    def _settle(self, name: str) -> None:
        """A segment that is out of its ring and unleased is spare, or retired: too small, or one too many."""
        segment = self._segments[name]
        if segment.in_ring or self._leases[name]:
            return
        too_small = segment.nbytes < self.segment_bytes
        if too_small or segment.abandoned or len(self._segments) > self.reserve:
            del self._segments[name]
            self._spare.pop(name, None)
            self._allocator.retire(name)
        else:
            self._spare[name] = None
