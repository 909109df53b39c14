"""Segments of one stream: which stand in a ring, which are leased, which are spare, and how large they are.

Owns `SegmentPool`, plain accounting over an injected allocator. Invariant: `take` never gives a segment that a
lease is on, that was leased to an evicted consumer, that is lost, or that stands in a ring; and each use of a segment
has a higher generation than the one before. Fails as its allocator does: nothing is lost then.

A segment is lost when somebody has removed its name from the machine: who has it mapped goes on, nobody else can map
it. It is looked for when it is to be written and when it is to be granted, so that no lost one ever is.

    size of a new segment   5/4 of what all but the 3 largest of the latest 64 batches need, so that a batch of unusual
                            size gets one larger segment and the rings keep theirs
    kept after use          at most `reserve` segments in all, from that size to twice that size; the rest is retired
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Protocol

from loader_service.sharing.placement import Placement

__all__ = ["Allocator", "SegmentPool"]

_PAGE = 4096
_LATEST = 64
_UNUSUAL = 3
"""So many of the latest 64 batches, 5 %, may be larger than any ring is made for."""


def _whole_pages(nbytes: int) -> int:
    """Round up to a multiple of the page size, 4,096 bytes."""
    return -(-nbytes // _PAGE) * _PAGE


class Allocator(Protocol):
    """Makes and ends segments; the daemon's is real shared memory, a test's a counter."""

    def create(self, nbytes: int) -> str:
        """Return a new segment of at least `nbytes`. Raises SharedMemoryError, MemoryLimitError."""
        ...

    def retire(self, segment: str, *, may_be_read: bool) -> None:
        """End a segment. Unless it may still be read, its memory is free at once, whoever has it mapped."""
        ...

    def fits(self, nbytes: int) -> bool:
        """Return whether `nbytes` more could be created now, as far as can be told."""
        ...

    def exists(self, segment: str) -> bool:
        """Return whether others can still find it by its name."""
        ...


@dataclass(slots=True)
class _Segment:
    """in_ring: it stands in one; abandoned: somebody may read it without a lease; lost: its name is gone."""

    nbytes: int
    in_ring: bool = False
    generation: int = 0
    abandoned: bool = False
    lost: bool = False


class SegmentPool:
    """The segments of one stream.

    Args:
        allocator: where segments come from.
        reserve: how many to keep, one ring.
        segment_bytes: the size of the first ones, in bytes.
        least_bytes: the size below which new ones never fall, however small the batches are.
    """

    def __init__(self, allocator: Allocator, reserve: int, segment_bytes: int, least_bytes: int = 0) -> None:
        self._allocator = allocator
        self.reserve = reserve
        self.segment_bytes = _whole_pages(max(segment_bytes, 1))
        self._least_bytes = _whole_pages(max(least_bytes, 1))
        self._segments: dict[str, _Segment] = {}
        self._leases: Counter[str] = Counter()
        self._spare: dict[str, None] = {}  # in the order in which they came; for `take` not to look at all
        self._sizes: deque[int] = deque(maxlen=_LATEST)
        self._measured = 0

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def total_bytes(self) -> int:
        return sum(segment.nbytes for segment in self._segments.values())

    def nbytes(self, segment: str) -> int:
        """Return its size; 0 for one that is retired."""
        known = self._segments.get(segment)
        return 0 if known is None else known.nbytes

    # --- taking and giving -------------------------------------------------------------------------------

    def fill(self) -> None:
        """Create the reserve ahead of its use. Raises as the allocator; what was created by then is kept."""
        for segment in self.take_ring(self.reserve):
            self.give(segment)

    def take_ring(self, number: int) -> list[str]:
        """Return so many segments, or none at all. Raises as the allocator."""
        taken: list[str] = []
        try:
            while len(taken) < number:
                taken.append(self.take())
        except Exception:  # whatever the allocator raises: what was taken goes back, and it passes on
            for segment in taken:
                self.give(segment)
            raise
        return taken

    def take(self, nbytes: int = 0) -> str:
        """Return a segment for a ring: unleased, of at least max(nbytes, segment_bytes). Raises as the allocator."""
        wanted = self._wanted(nbytes)
        while (name := self._first_spare(wanted)) is not None:
            del self._spare[name]
            if not self.is_lost(name):
                self._segments[name].in_ring = True
                return name
            self._settle(name)
        name = self._allocator.create(wanted)
        self._segments[name] = _Segment(wanted, in_ring=True)
        return name

    def make_room(self, segment: str, nbytes: int) -> None:
        """Retire a segment that nobody reads where one of `nbytes` has room in its place, and none beside it."""
        wanted, held = self._wanted(nbytes), self.nbytes(segment)
        beside = self._first_spare(wanted) is not None or self._allocator.fits(wanted)
        if not beside and segment in self._segments and self._allocator.fits(wanted - held):
            self._retire(segment)

    def give(self, segment: str) -> None:
        """Let a segment leave its ring; it stays untouched while a lease is on it. One that is retired is ignored."""
        if segment in self._segments:
            self._segments[segment].in_ring = False
            self._settle(segment)

    def swap(self, segment: str) -> str:
        """Return another segment for the place of one that cannot be written, which leaves its ring.

        One that nobody leases is retired first, so that the other may have its room; not while it is leased, for then
        its room would go to whoever comes first when that lease ends. Raises as the allocator.
        """
        if segment in self._segments and not self._leases[segment] and not self.is_writable(segment):
            self.give(segment)
        other = self.take()
        self.give(segment)
        return other

    def use(self, segment: str) -> Placement:
        """Count one more use of this segment, for the next build into it."""
        known = self._segments[segment]
        known.generation += 1
        return Placement(segment, known.generation, known.nbytes)

    def could_take(self, number: int) -> bool:
        """Return whether so many segments could be taken now, as far as can be told."""
        wanted = number - sum(self._segments[name].nbytes >= self.segment_bytes for name in self._spare)
        return wanted <= 0 or self._allocator.fits(wanted * self.segment_bytes)

    # --- leases ------------------------------------------------------------------------------------------

    def lease(self, segment: str) -> None:
        """Let one more reader have it."""
        self._leases[segment] += 1

    def unlease(self, segment: str) -> None:
        """End one lease."""
        self._leases[segment] -= 1
        if not self._leases[segment]:
            del self._leases[segment]
            self._settle(segment)

    def abandon(self, segment: str) -> None:
        """End a lease whose holder may go on reading: the segment is never written again, and retired in time."""
        self._segments[segment].abandoned = True
        self.unlease(segment)

    def is_kept(self, segment: str) -> bool:
        """Return whether it must not be written: it is leased, lost or retired, or an evicted consumer may read it."""
        known = self._segments.get(segment)
        return known is None or known.abandoned or self._leases[segment] > 0 or self.is_lost(segment)

    def is_writable(self, segment: str) -> bool:
        """Return whether the next batch is built into it: it may be written, and is not far larger than needed."""
        known = self._segments.get(segment)
        if known is None or known.abandoned or self._leases[segment] or known.nbytes > 2 * self.segment_bytes:
            return False
        return not self.is_lost(segment)

    def is_lost(self, segment: str) -> bool:
        """Return whether its name is gone: it is given up then, and retired as soon as nobody reads it."""
        known = self._segments.get(segment)
        if known is None:
            return False
        if not known.lost and not self._allocator.exists(segment):
            known.lost = known.abandoned = True
        return known.lost

    # --- size --------------------------------------------------------------------------------------------

    def retune(self, reserve: int) -> None:
        """Keep another number of segments from now on."""
        self.reserve = reserve
        self._settle_spares()

    def measure(self, nbytes: int) -> None:
        """Note that a batch was built that needs a segment of `nbytes`: the size of new ones follows the usual batch.

        It grows as soon as more than a few of the latest batches need more, and shrinks once what they need is less
        than half of it. Costs nothing where batches fit, but once in 64.
        """
        self._sizes.append(nbytes)
        self._measured += 1
        if (nbytes <= self.segment_bytes and self._measured % _LATEST) or len(self._sizes) <= _UNUSUAL:
            return
        usual = sorted(self._sizes)[-1 - _UNUSUAL]
        wanted = max(_whole_pages(usual + usual // 4), self._least_bytes)
        if usual > self.segment_bytes or (self._measured >= _LATEST and 2 * wanted <= self.segment_bytes):
            self.segment_bytes = wanted
            self._settle_spares()

    def _wanted(self, nbytes: int) -> int:
        return self.segment_bytes if nbytes <= self.segment_bytes else _whole_pages(nbytes)

    def _first_spare(self, nbytes: int) -> str | None:
        return next((name for name in self._spare if self._segments[name].nbytes >= nbytes), None)

    def _settle_spares(self) -> None:
        for name in list(self._spare):
            self._settle(name)

    def _settle(self, name: str) -> None:
        """Keep a segment that is out of its ring and unleased as a spare one, or retire it."""
        segment = self._segments[name]
        if segment.in_ring or self._leases[name]:
            return
        usual = self.segment_bytes <= segment.nbytes <= 2 * self.segment_bytes
        if not usual or segment.abandoned or len(self._segments) > self.reserve:
            self._retire(name)
        else:
            self._spare[name] = None

    def _retire(self, name: str) -> None:
        retired = self._segments.pop(name)
        self._spare.pop(name, None)
        self._allocator.retire(name, may_be_read=retired.abandoned)
