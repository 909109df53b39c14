"""The generator: known values, and its array forms against its scalar ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from loader_service.contract.rng import RngArray, SampleRng, counter_block, derive, derive_slots, mix
from loader_service.errors import ArgumentError
from tests.vectors.files import read_vectors

VECTORS: dict[str, Any] = read_vectors("random-numbers")

words = st.integers(0, 2**64 - 1)
counters = st.integers(0, 2**63)


def bits(value: np.float32) -> int:
    return int(np.float32(value).view(np.uint32))


def test_mix_gives_the_known_values_for_ints_and_for_arrays() -> None:
    states = [int(case["x"]) for case in VECTORS["mix"]]
    expected = [int(case["value"]) for case in VECTORS["mix"]]
    assert [mix(x) for x in states] == expected
    assert mix(np.array(states, np.uint64)).tolist() == expected


@given(st.lists(words, min_size=0, max_size=20))
def test_mix_of_an_array_is_mix_of_its_elements(states: list[int]) -> None:
    assert mix(np.array(states, np.uint64)).tolist() == [mix(x) for x in states]


@pytest.mark.parametrize("shape", [(0,), (6,), (2, 3), (1, 0, 2)])
def test_mix_keeps_the_shape_and_leaves_its_argument_alone(shape: tuple[int, ...]) -> None:
    states = np.full(shape, 2**64 - 1, np.uint64)
    mixed = mix(states)
    assert mixed.shape == shape
    assert (mixed == mix(2**64 - 1)).all()
    assert (states == 2**64 - 1).all()


@pytest.mark.parametrize("case", VECTORS["derive"], ids=lambda case: str(list(case.values())[:5]))
def test_derive_gives_the_known_keys(case: dict[str, Any]) -> None:
    seed, epoch, step, slot, stream, key = case.values()
    assert derive(int(seed), epoch, step, slot, stream) == int(key)
    assert derive_slots(int(seed), epoch, step, np.array([slot], np.uint64), stream).tolist() == [int(key)]


@given(words, counters, counters, st.lists(words, max_size=9), st.integers(0, 200))
def test_keys_of_many_slots_are_the_keys_of_each(
    seed: int, epoch: int, step: int, slots: list[int], stream: int
) -> None:
    keys = derive_slots(seed, epoch, step, np.array(slots, np.uint64), stream)
    assert keys.dtype == np.uint64
    assert keys.tolist() == [derive(seed, epoch, step, slot, stream) for slot in slots]


@given(st.integers(-(2**63), -1), counters)
def test_a_negative_seed_means_its_twos_complement(seed: int, epoch: int) -> None:
    assert derive(seed, epoch, 1, 2, 3) == derive(seed + 2**64, epoch, 1, 2, 3)


@pytest.mark.parametrize("case", VECTORS["generators"], ids=lambda case: str(case["state"]))
def test_one_generator_gives_the_known_numbers_in_order(case: dict[str, Any]) -> None:
    rng = SampleRng(int(case["state"]))
    assert [rng.next_u64() for _ in case["next_u64"]] == [int(u) for u in case["next_u64"]]
    assert [bits(rng.next_single()) for _ in case["next_single"]] == case["next_single"]
    assert [rng.next_double() for _ in case["next_double"]] == [float.fromhex(d) for d in case["next_double"]]
    assert [rng.next_int(int(draw["n"])) for draw in case["next_int"]] == [int(d["value"]) for d in case["next_int"]]
    assert [bits(rng.next_normal()) for _ in case["next_normal"]] == case["next_normal"]


@given(words)
def test_the_generator_is_mix_of_a_counter(key: int) -> None:
    rng = SampleRng(key)
    assert [rng.next_u64() for _ in range(3)] == [mix(key + i * 0x9E3779B97F4A7C15) for i in range(3)]


@given(words)
def test_a_normal_is_twelve_singles_summed_left_to_right_in_float32_minus_six(key: int) -> None:
    rng, total = SampleRng(key), np.float32(0)
    for _ in range(12):
        total = np.float32(total + rng.next_single())
    normal = SampleRng(key).next_normal()
    assert normal.dtype == np.float32
    assert bits(normal) == bits(np.float32(total - np.float32(6)))


@given(words, st.integers(1, 2**64))
def test_numbers_stay_in_their_ranges(key: int, n: int) -> None:
    rng = SampleRng(key)
    assert 0 <= rng.next_single() < 1
    assert 0 <= rng.next_double() < 1
    assert 0 <= rng.next_int(n) < n
    assert -6 <= rng.next_normal() <= 6


@given(words)
def test_an_int_below_2_to_the_64_is_the_word_itself(key: int) -> None:
    assert SampleRng(key).next_int(2**64) == SampleRng(key).next_u64()


def test_ints_of_a_small_range_are_about_equally_frequent() -> None:
    rng = SampleRng(7)
    counts = np.bincount([rng.next_int(3) for _ in range(9000)], minlength=3)
    assert np.abs(counts - 3000).max() < 4 * np.sqrt(9000 * 2 / 9)


@pytest.mark.parametrize("n", [0, -1, 2**64 + 1])
def test_an_empty_or_too_large_range_is_refused(n: int) -> None:
    with pytest.raises(ArgumentError, match=f"n is {n}; it must lie in"):
        SampleRng(0).next_int(n)


key_lists = st.lists(words, max_size=12)
REJECTING = [2**63 + 1, 2**64 - 1, 2**63 + 2**62, 2**63 - 1]
"""A draw below 2^63 + 1 is rejected about every second time."""
bounds = st.sampled_from([1, 2, 3, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63, *REJECTING]) | st.integers(1, 2**64 - 1)


def array(values: list[int]) -> NDArray[np.uint64]:
    return np.array(values, np.uint64)


@given(key_lists, st.lists(st.sampled_from(["next_u64", "next_single", "next_double", "next_normal"]), max_size=5))
@settings(max_examples=60)
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
@settings(max_examples=80)
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
@settings(max_examples=30)
def test_a_block_of_any_key_is_repeated_drawing(key: int) -> None:
    rng = SampleRng(key)
    assert counter_block(key, np.empty(9, np.uint64)).tolist() == [rng.next_u64() for _ in range(9)]
