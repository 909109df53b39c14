"""The memory of a world for RingScheduler: it knows what stands in each segment and who reads it."""

from __future__ import annotations

from collections import Counter

from loader_service.errors import MemoryLimitError

__all__ = ["PAGE", "Memory"]

PAGE = 4096


class Memory:
    """The allocator: refuses above `limit_bytes`; that a segment is written or retired while it is read, is a bug.

    given_up: segments that somebody who was put out may read for ever: they may be retired, and never be written;
    unlinked: those whose names somebody has removed: whoever has them goes on, and nobody new may be given one.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.sizes: dict[str, int] = {}
        self.texts: dict[str, object] = {}
        self.readers: Counter[str] = Counter()
        self.given_up: set[str] = set()
        self.unlinked: set[str] = set()
        self.created = 0

    @property
    def room(self) -> int:
        return self.limit_bytes - sum(self.sizes.values())

    def create(self, nbytes: int) -> str:
        if not self.fits(nbytes):
            raise MemoryLimitError(f"{nbytes} bytes were asked for, {self.room} are free; release a batch")
        name = f"segment-{self.created}"
        self.created += 1
        self.sizes[name] = nbytes
        return name

    def retire(self, segment: str, *, may_be_read: bool) -> None:
        del self.sizes[segment]
        assert may_be_read or not self.readers[segment], f"{segment} loses its bytes while it is read"
        assert may_be_read or segment not in self.given_up, f"{segment} loses its bytes while one put out may read it"

    def fits(self, nbytes: int) -> bool:
        return nbytes <= self.room

    def exists(self, segment: str) -> bool:
        return segment not in self.unlinked

    def write(self, segment: str, text: object) -> None:
        assert segment in self.sizes, f"{segment} is written and does not exist"
        assert not self.readers[segment], f"{segment} is written while it is read"
        assert segment not in self.given_up, f"{segment} is written while one who was put out may read it"
        self.texts[segment] = text

    def check(self) -> None:
        """After an event, not within it: who reads may have been put out by it."""
        retired = set(+self.readers) - self.sizes.keys()
        assert not retired, f"{retired} were retired while they are read"
