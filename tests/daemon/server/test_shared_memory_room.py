"""Room for a segment is told before it is made, and told right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from loader_service.daemon.server import shared_memory as memory
from loader_service.daemon.server.shared_memory import SharedMemoryAllocator
from loader_service.errors import MemoryLimitError, SharedMemoryError

PAGE = 4096


@pytest.fixture
def allocator() -> Iterator[SharedMemoryAllocator]:
    made = SharedMemoryAllocator(8 * PAGE)
    yield made
    made.close()


@pytest.mark.parametrize("pages", [1, 2, 3, 7, 8])
def test_what_fits_can_be_had_and_one_byte_more_cannot(allocator: SharedMemoryAllocator, pages: int) -> None:
    segment = allocator.create((8 - pages) * PAGE) if pages < 8 else None
    assert allocator.fits(0)
    assert allocator.fits(pages * PAGE)
    assert not allocator.fits(pages * PAGE + 1)
    with pytest.raises(MemoryLimitError):
        allocator.create(pages * PAGE + 1)
    allocator.create(pages * PAGE)
    assert not allocator.fits(1)
    if segment is not None:
        allocator.retire(segment)
        assert allocator.fits((8 - pages) * PAGE)


def test_a_limit_that_is_lowered_below_what_is_used_leaves_no_room(allocator: SharedMemoryAllocator) -> None:
    allocator.create(4 * PAGE)
    allocator.limit_bytes = PAGE
    assert not allocator.fits(1)
    allocator.limit_bytes = 0
    assert allocator.fits(100 * PAGE), "none but the machine's"


@pytest.mark.parametrize("free", [0, PAGE - 1, PAGE, None])
def test_what_the_machine_has_free_counts_too(
    allocator: SharedMemoryAllocator, monkeypatch: pytest.MonkeyPatch, free: int | None
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: free)
    assert allocator.fits(PAGE) == (free is None or free >= PAGE)
    if not allocator.fits(PAGE):
        with pytest.raises(SharedMemoryError, match=f"has {free} bytes free"):
            allocator.create(PAGE)
