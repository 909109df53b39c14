"""The keyed permutation: known values, bijection, and the inverse where n is too large to list."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_service.contract.permutation import permute
from loader_service.contract.rng import mix
from loader_service.errors import ArgumentError
from tests.vectors.files import read_vectors

VECTORS: list[dict[str, Any]] = read_vectors("permutation")["cases"]
AROUND_POWERS = sorted({2**k + d for k in range(1, 17) for d in (-1, 0, 1)} | {70_000})

keys = st.integers(0, 2**64 - 1)


def inverse(image: int, n: int, key: int) -> int:
    """The position that `permute` sends to `image`: the rounds backwards, walking the cycle backwards."""
    half = ((n - 1).bit_length() + 1) // 2
    mask = 2**half - 1
    x: int = image
    while True:
        left, right = x >> half, x & mask
        for turn in (3, 2, 1, 0):
            round_key = (key ^ (turn * 0x632BE59BD9B4E019)) % 2**64
            left, right = right ^ (mix(left ^ round_key) & mask), left
        x = (left << half) | right
        if x < n:
            return x


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: f"n={case['n']}")
def test_positions_go_where_the_known_values_say(case: dict[str, Any]) -> None:
    n, key = int(case["n"]), int(case["key"])
    positions, expected = [int(p) for p in case["positions"]], [int(q) for q in case["values"]]
    assert [permute(p, n, key) for p in positions] == expected
    assert permute(np.array(positions, np.uint64), n, key).tolist() == expected


@pytest.mark.parametrize("n", range(34))
def test_it_is_a_bijection_for_every_small_n(n: int) -> None:
    for key in (0, 1, 2**63, 2**64 - 1):
        assert sorted(permute(p, n, key) for p in range(n)) == list(range(n))


@pytest.mark.parametrize("n", AROUND_POWERS)
def test_it_is_a_bijection_around_every_power_of_two(n: int) -> None:
    images = permute(np.arange(n), n, 0x0123456789ABCDEF)
    assert np.array_equal(np.sort(images), np.arange(n))


@given(st.integers(1, 2000), keys)
@settings(max_examples=50)
def test_it_is_a_bijection_for_any_key(n: int, key: int) -> None:
    assert np.array_equal(np.sort(permute(np.arange(n), n, key)), np.arange(n))


@given(st.data(), st.sampled_from([2, 3, 1000, 10**12, 2**40 + 1, 2**62 - 1, 2**63 - 1, 2**63]), keys)
def test_the_inverse_leads_back_where_n_is_too_large_to_list(data: st.DataObject, n: int, key: int) -> None:
    position = data.draw(st.integers(0, n - 1))
    image = permute(position, n, key)
    assert 0 <= image < n
    assert inverse(image, n, key) == position


@given(st.data(), st.integers(1, 2**63), keys)
def test_an_array_goes_where_its_elements_go(data: st.DataObject, n: int, key: int) -> None:
    positions = data.draw(st.lists(st.integers(0, n - 1), max_size=20))
    images = permute(np.array(positions, np.uint64), n, key)
    assert images.tolist() == [permute(p, n, key) for p in positions]


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8, np.uint64])
@pytest.mark.parametrize("shape", [(0,), (6,), (2, 3)])
def test_arrays_keep_their_shape_and_signedness(dtype: Any, shape: tuple[int, ...]) -> None:
    positions = np.ones(shape, dtype)
    images = permute(positions, 10, key=3)
    assert images.shape == shape
    assert images.dtype == (np.uint64 if positions.dtype.kind == "u" else np.int64)
    assert (positions == 1).all()


@pytest.mark.parametrize("n", [0, 1])
def test_nothing_and_one_thing_go_to_zero(n: int) -> None:
    assert permute(0, n, key=5) == 0
    assert permute(np.zeros(3, np.int64), n, key=5).tolist() == [0, 0, 0]


def test_numpy_integers_go_where_ints_go() -> None:
    n: Any = np.int64(1000)
    position: Any = np.int64(3)
    assert permute(position, n, key=2**64 - 1) == permute(3, 1000, key=2**64 - 1)


def test_keys_count_modulo_2_to_the_64() -> None:
    assert permute(np.arange(9), 9, key=-1).tolist() == permute(np.arange(9), 9, key=2**64 - 1).tolist()


def test_another_key_gives_another_order() -> None:
    assert permute(np.arange(100), 100, key=1).tolist() != permute(np.arange(100), 100, key=2).tolist()


@pytest.mark.parametrize("n", [-1, 2**63 + 1])
def test_an_n_outside_its_range_is_refused(n: int) -> None:
    with pytest.raises(ArgumentError, match=r"n is .*it must lie in \[0, 2\^63\]"):
        permute(0, n, key=0)


@pytest.mark.parametrize("position", [-1, 10, 2**63])
def test_a_position_outside_its_range_is_refused(position: int) -> None:
    with pytest.raises(ArgumentError, match=r"position is .*it must lie in \[0, 9\]"):
        permute(position, 10, key=0)


@pytest.mark.parametrize("positions", [np.array([3, -1]), np.array([10]), np.array([0.5])], ids=str)
def test_an_array_with_a_wrong_position_is_refused(positions: Any) -> None:
    with pytest.raises(ArgumentError, match="position"):
        permute(positions, 10, key=0)
