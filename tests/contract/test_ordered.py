"""Samplers: known orders, every index once an epoch, the same cost at any step, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_service.contract.rng import derive_slots
from loader_service.contract.samplers import Sampler, SequentialSampler, ShuffledSampler
from loader_service.errors import ArgumentError
from tests.vectors.files import read_vectors

VECTORS: dict[str, Any] = read_vectors("samplers")
EDGES = sorted({0, 1, 2} | {2**k + d for k in range(1, 9) for d in (-1, 0, 1)})

sizes = st.sampled_from(EDGES[1:]) | st.integers(1, 600)


def make_sequential(n: int, batch_size: int, drop_last: bool = True) -> Sampler:
    return SequentialSampler(n, batch_size, drop_last)


def make_shuffled(n: int, batch_size: int, drop_last: bool = True) -> Sampler:
    return ShuffledSampler(n, batch_size, 42, drop_last)


Make = Callable[..., Sampler]
both = pytest.mark.parametrize("make", [make_sequential, make_shuffled])


def whole_epoch(sampler: Sampler, epoch: int) -> list[list[int]]:
    return [sampler.indices(epoch, step).tolist() for step in range(sampler.steps_per_epoch)]


@pytest.mark.parametrize("case", VECTORS["sequential"], ids=lambda c: f"{c['n']}-{c['batch_size']}-{c['drop_last']}")
def test_the_sequential_order_is_the_known_one(case: dict[str, Any]) -> None:
    if case["steps"] is None:
        with pytest.raises(ArgumentError, match="drop_last"):
            SequentialSampler(case["n"], case["batch_size"], case["drop_last"])
        return
    sampler = SequentialSampler(case["n"], case["batch_size"], case["drop_last"])
    assert whole_epoch(sampler, epoch=0) == case["steps"]
    assert whole_epoch(sampler, epoch=5) == case["steps"]


@pytest.mark.parametrize(
    "case", VECTORS["shuffled"], ids=lambda c: f"{c['seed']}-{c['n']}-{c['batch_size']}-{c['drop_last']}-{c['epoch']}"
)
def test_the_shuffled_order_is_the_known_one(case: dict[str, Any]) -> None:
    sampler = ShuffledSampler(case["n"], case["batch_size"], int(case["seed"]), case["drop_last"])
    assert whole_epoch(sampler, case["epoch"]) == case["steps"]


@both
@given(n=sizes, batch_size=st.integers(1, 70), epoch=st.integers(0, 2**63))
@settings(max_examples=60)
def test_an_epoch_holds_every_index_once(make: Make, n: int, batch_size: int, epoch: int) -> None:
    sampler = make(n, batch_size, drop_last=False)
    batches = whole_epoch(sampler, epoch)
    assert sorted(index for batch in batches for index in batch) == list(range(n))
    assert [len(batch) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    assert len(batches[-1]) == n - (len(batches) - 1) * batch_size > 0


@both
@given(n=sizes, batch_size=st.integers(1, 70), epoch=st.integers(0, 2**63))
@settings(max_examples=60)
def test_drop_last_leaves_out_only_the_short_batch(make: Make, n: int, batch_size: int, epoch: int) -> None:
    if n < batch_size:
        with pytest.raises(ArgumentError, match="no full batch"):
            make(n, batch_size)
        return
    batches = whole_epoch(make(n, batch_size, drop_last=False), epoch)
    assert whole_epoch(make(n, batch_size), epoch) == [batch for batch in batches if len(batch) == batch_size]
    assert make(n, batch_size).steps_per_epoch == n // batch_size


@both
def test_indices_are_int64_and_the_caller_owns_them(make: Make) -> None:
    sampler = make(10, 4)
    first = sampler.indices(0, 1)
    kept = first.tolist()
    first[:] = -1
    assert first.dtype == np.int64
    assert sampler.indices(0, 1).tolist() == kept


def test_each_epoch_and_each_seed_has_an_order_of_its_own() -> None:
    samplers = [ShuffledSampler(50, 50, seed) for seed in range(3)]
    orders = {tuple(sampler.indices(epoch, 0).tolist()) for sampler in samplers for epoch in range(3)}
    assert len(orders) == 9


def test_a_negative_seed_means_its_twos_complement() -> None:
    assert whole_epoch(ShuffledSampler(9, 3, -5), 0) == whole_epoch(ShuffledSampler(9, 3, 2**64 - 5), 0)


@pytest.mark.parametrize("n", [10**12, 2**63 - 1, 2**63])
@both
def test_the_last_step_of_a_huge_dataset_is_reached_at_once(make: Make, n: int) -> None:
    sampler = make(n, 128, drop_last=False)
    last = sampler.indices(2**64 - 1, sampler.steps_per_epoch - 1)
    assert len(set(last.tolist())) == (n % 128 or 128)
    assert 0 <= int(last.min()) <= int(last.max()) < n


@both
def test_numpy_integers_draw_what_ints_draw(make: Make) -> None:
    n: Any = np.int64(40)
    epoch: Any = np.uint64(3)
    step: Any = np.int32(2)
    assert make(n, np.int16(7)).indices(epoch, step).tolist() == make(40, 7).indices(3, 2).tolist()
    seed: Any = np.int64(-1)
    assert ShuffledSampler(9, 3, seed) == ShuffledSampler(9, 3, -1)
    assert type(ShuffledSampler(9, 3, seed).seed) is int


@both
@pytest.mark.parametrize(
    ("n", "batch_size", "match"),
    [
        (0, 1, "n is 0"),
        (-1, 1, "n is -1"),
        (2**63 + 1, 1, "n is 9223372036854775809"),
        (5, 0, "batch_size is 0"),
        (5, -3, "batch_size is -3"),
        (5, 2**31, "batch_size is 2147483648"),
        (5, 2.0, "batch_size is 2.0; it must be an integer"),
        ("5", 2, "n is '5'; it must be an integer"),
        (5, 6, "n = 5 samples make no full batch"),
    ],
)
def test_arguments_without_an_epoch_are_refused(make: Make, n: Any, batch_size: Any, match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        make(n, batch_size)


@pytest.mark.parametrize("seed", [5, 5 + 2**64, 5 - 2**64, np.int8(5), np.array(5)])
def test_a_seed_counts_modulo_2_to_the_64(seed: Any) -> None:
    assert ShuffledSampler(100, 10, seed).indices(0, 0).tolist() == ShuffledSampler(100, 10, 5).indices(0, 0).tolist()


@pytest.mark.parametrize("seed", [0.5, False, "5", None])
def test_a_seed_that_is_no_integer_is_refused(seed: Any) -> None:
    with pytest.raises(ArgumentError, match="seed is"):
        ShuffledSampler(5, 2, seed)


@both
@pytest.mark.parametrize("step", [-1, 2, 2**63, 0.5])
def test_a_step_outside_the_epoch_is_refused(make: Make, step: Any) -> None:
    with pytest.raises(ArgumentError, match="step in epoch is"):
        make(10, 5).indices(0, step)


@both
@pytest.mark.parametrize("epoch", [-1, 2**64, 1.5])
def test_an_epoch_that_is_no_counter_is_refused(make: Make, epoch: Any) -> None:
    with pytest.raises(ArgumentError, match="epoch is"):
        make(10, 5).indices(epoch, 0)


@pytest.mark.parametrize("n", [65_536, 262_144])
def test_a_power_of_two_of_indices_loses_none(n: int) -> None:
    sampler = ShuffledSampler(n, 4096, seed=9)
    drawn = np.concatenate([sampler.indices(3, step) for step in range(sampler.steps_per_epoch)])
    assert np.array_equal(np.sort(drawn), np.arange(n))


def test_numbers_of_neighbouring_seeds_and_slots_are_unrelated() -> None:
    """Seed 1 with slot 1 and seed 2 with slot 0, and so on: no key comes twice, and about half of the bits differ."""
    seeds = range(64)
    keys = np.stack([derive_slots(seed, 0, 0, np.arange(64, dtype=np.uint64), 0) for seed in seeds])  # [64, 64]
    assert len(np.unique(keys)) == keys.size
    differing = np.unpackbits((keys[:-1, 1:] ^ keys[1:, :-1]).view(np.uint8)).mean()  # (s, j + 1) beside (s + 1, j)
    assert abs(float(differing) - 0.5) < 0.01
