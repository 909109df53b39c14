"""Many generators at once: each element is what its own generator would give, to the bit, whatever the others do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from loader_service.contract.rng import RngArray, SampleRng, counter_block
from loader_service.errors import ArgumentError

words = st.integers(0, 2**64 - 1)
key_lists = st.lists(words, max_size=12)
REJECTING = [2**63 + 1, 2**64 - 1, 2**63 + 2**62, 2**63 - 1]
"""A draw below 2^63 + 1 is rejected about every second time."""
bounds = st.sampled_from([1, 2, 3, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63, *REJECTING]) | st.integers(1, 2**64 - 1)


def array(values: list[int]) -> NDArray[np.uint64]:
    return np.array(values, np.uint64)


@given(key_lists, st.lists(st.sampled_from(["next_u64", "next_single", "next_double", "next_normal"]), max_size=5))
@settings(deadline=None, max_examples=60)
def test_every_method_gives_what_each_generator_gives(keys: list[int], methods: list[str]) -> None:
    many, single = RngArray(array(keys)), [SampleRng(key) for key in keys]
    for method in methods:
        numbers = getattr(many, method)()
        expected = [getattr(rng, method)() for rng in single]
        assert numbers.shape == (len(keys),)
        assert numbers.tolist() == [float(x) if isinstance(x, np.float32) else x for x in expected]
    assert many.state.tolist() == [rng.state for rng in single]


def test_numbers_have_the_dtypes_of_the_contract() -> None:
    rng = RngArray(array([1, 2]))
    drawn: list[NDArray[Any]] = [rng.next_u64(), rng.next_single(), rng.next_double(), rng.next_int(3)]
    drawn.append(rng.next_normal())
    assert [str(numbers.dtype) for numbers in drawn] == ["uint64", "float32", "float64", "uint64", "float32"]
    assert len(rng) == 2


@given(st.lists(st.tuples(words, bounds), max_size=12))
@settings(deadline=None, max_examples=80)
def test_ints_of_mixed_bounds_are_those_of_each_generator(pairs: list[tuple[int, int]]) -> None:
    keys, limits = [key for key, _ in pairs], [limit for _, limit in pairs]
    many, single = RngArray(array(keys)), [SampleRng(key) for key in keys]
    for _ in range(3):
        assert many.next_int(array(limits)).tolist() == [
            rng.next_int(limit) for rng, limit in zip(single, limits, strict=True)
        ]
    assert many.state.tolist() == [rng.state for rng in single]


@pytest.mark.parametrize("limit", REJECTING)
def test_one_bound_for_all_may_be_one_that_rejects(limit: int) -> None:
    many, single = RngArray(np.arange(200, dtype=np.uint64)), [SampleRng(key) for key in range(200)]
    for _ in range(5):
        assert many.next_int(limit).tolist() == [rng.next_int(limit) for rng in single]
    assert many.state.tolist() == [rng.state for rng in single]


def test_only_the_generators_whose_draw_was_rejected_advance_further() -> None:
    limits = array([2**63 + 1, 8] * 100)
    once, many = RngArray(np.arange(200, dtype=np.uint64)), RngArray(np.arange(200, dtype=np.uint64))
    once.next_u64()
    many.next_int(limits)
    further = many.state != once.state
    assert not further[1::2].any()
    assert 20 < further[::2].sum() < 80


def test_the_callers_keys_stay_as_they_are() -> None:
    keys = array([5, 6])
    RngArray(keys).next_normal()
    assert keys.tolist() == [5, 6]


BAD_BOUNDS: list[Any] = [
    0,
    -1,
    2**64 + 1,
    1.5,
    True,
    np.array([3, 0]),
    np.array([3, -1]),
    np.array([1.0, 2.0]),
    "3",
    None,
]


@pytest.mark.parametrize("bound", BAD_BOUNDS, ids=str)
def test_a_bound_outside_its_range_is_refused(bound: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^E1101: n (is|are) "):
        RngArray(array([1, 2])).next_int(bound)


def test_no_generators_draw_nothing() -> None:
    rng = RngArray(array([]))
    assert [len(rng.next_int(array([]))), len(rng.next_int(5)), len(rng.next_normal())] == [0, 0, 0]


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9, 100])
@pytest.mark.parametrize("key", [0, 1, 2**63, 2**64 - 1, -1])
def test_a_block_is_what_one_generator_gives_in_a_row(key: int, count: int) -> None:
    rng = SampleRng(key)
    expected = [rng.next_u64() for _ in range(count)]
    assert counter_block(key, np.empty(count, np.uint64)).tolist() == expected
    out, room = np.full(count, 7, np.uint64), np.full(count, 9, np.uint64)
    assert counter_block(key, out, room) is out
    assert out.tolist() == expected


@given(words)
@settings(deadline=None, max_examples=30)
def test_a_block_of_any_key_is_repeated_drawing(key: int) -> None:
    rng = SampleRng(key)
    assert counter_block(key, np.empty(9, np.uint64)).tolist() == [rng.next_u64() for _ in range(9)]
