"""Digests of long values: equal for equal content, unequal after any change, in bounded time and memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loader_service.contract.content import MAX_ITEMS, TooManyError, array_digest, items_digest

MIB = 1 << 20


def refuse(item: Any) -> Any:
    raise AssertionError(f"{item!r} is described one by one")


def described(item: Any) -> Any:
    return ["described", str(item)]


N = 1000
SEQUENCES: dict[str, list[Any]] = {
    "texts": [f"image_{place}" for place in range(N)],
    "texts with another": [f"image_{place}" for place in range(N - 1)] + ["other"],
    "ints": list(range(N)),
    "floats": [float(place) for place in range(N)],
    "bools": [place % 2 == 0 for place in range(N)],
    "bits": [place % 2 for place in range(N)],
    "bytes": [b"ab", b"c"] * N,
    "other bytes": [b"a", b"bc"] * N,
    "lists": [[place, place] for place in range(N)],
    "tuples": [(place, place) for place in range(N)],
    "longer lists": [[place] for place in range(2 * N)],
    "dicts": [{"path": f"{place}", "label": place} for place in range(N)],
    "dicts in another order": [{"label": place, "path": f"{place}"} for place in range(N)],
    "paths": [PurePosixPath(f"/{place}") for place in range(N)],
    "nested": [{"words": [[1, 2], [place]]} for place in range(N)],
    "empty": [],
    "nothing": [None] * N,
}


def test_sequences_that_differ_have_different_digests_and_no_item_is_described_alone() -> None:
    assert len({items_digest(items, refuse) for items in SEQUENCES.values()}) == len(SEQUENCES)


@pytest.mark.parametrize("name", SEQUENCES)
def test_equal_sequences_have_equal_digests(name: str) -> None:
    items = SEQUENCES[name]
    assert items_digest(list(items), refuse) == items_digest(items, refuse)
    assert items == [] or items_digest(items[:-1], refuse) != items_digest(items, refuse)


def test_what_is_not_plain_is_described_each_for_itself() -> None:
    assert items_digest([1j, 2j], described) != items_digest([1j, 3j], described)
    assert items_digest([{"a": 1}, {"b": 1}], described) != items_digest([{"a": 1}, {"b": 2}], described)


def test_more_than_can_be_described_in_a_bounded_time_are_refused() -> None:
    with pytest.raises(TooManyError):
        items_digest([1j] * (MAX_ITEMS + 1), described)


ARRAYS: list[NDArray[Any]] = [
    np.arange(24).reshape(2, 3, 4),
    np.arange(24).reshape(4, 6)[:, ::2],
    np.arange(24).reshape(4, 6).T,
    np.zeros((0, 3)),
    np.array(5.0),
    np.array(["a", "bc"]),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.shape))
def test_an_array_has_the_digest_of_its_copy(array: NDArray[Any]) -> None:
    assert array_digest(array) == array_digest(array.copy(order="C"))
    if array.size and array.dtype.kind != "U":
        changed = array.copy(order="C")
        changed.reshape(-1)[-1] += 1
        assert array_digest(array) != array_digest(changed)


def test_no_array_is_copied_whole() -> None:
    array = np.zeros((4 * MIB, 8), np.uint8)
    tracemalloc.start()
    try:
        for given in (array, array[:, ::2], array.T):
            array_digest(given)
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()


def test_a_large_mapped_file_counts_by_its_size_its_ends_and_blocks_between(tmp_path: Path) -> None:
    size = 80 * MIB
    mapped = np.memmap(tmp_path / "data", np.uint8, "w+", shape=(size,))
    first = array_digest(mapped)
    assert array_digest(np.asarray(mapped)) == first
    for place in (0, size - 1, size // 65):
        mapped[place] = 1
        assert array_digest(mapped) != first
        mapped[place] = 0
    assert array_digest(mapped) == first
    assert array_digest(mapped[: 64 * MIB]) == array_digest(np.zeros(64 * MIB, np.uint8)), (
        "up to 64 MiB it is read whole"
    )
