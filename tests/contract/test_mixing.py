"""Mixing: known draws, a scalar reading of the text, shares that hold, and what is refused."""

from __future__ import annotations

import math
import pickle
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from loader_service.contract.collate import StackCollator
from loader_service.contract.rng import SampleRng, derive
from loader_service.contract.samplers import MixingSampler
from loader_service.contract.stream import Stream
from loader_service.data import ConcatDataset
from loader_service.errors import ArgumentError
from tests.vectors.files import read_vectors

VECTORS: list[dict[str, Any]] = read_vectors("samplers")["mixing"]

sources = st.lists(
    st.tuples(st.integers(0, 50) | st.sampled_from([2**33, 2**60]), st.sampled_from([0, 1, 0.1, 1e-9, 7, 1e300])),
    min_size=1,
    max_size=6,
).filter(lambda pairs: any(size and share for size, share in pairs))


def by_the_text(sampler: MixingSampler, epoch: int, step: int, slot: int) -> int:
    """R29 to R31 read word by word, for one slot."""
    drawable = [k for k, size in enumerate(sampler.sizes) if size and sampler.shares[k] > 0]
    total = sum(sampler.shares[k] for k in drawable)
    rng = SampleRng(derive(sampler.seed, epoch, step, slot, 102))
    u, reached, source = rng.next_double(), 0.0, drawable[-1]
    for k in drawable:
        reached += sampler.shares[k] / total
        if reached > u:
            source = k
            break
    return sum(sampler.sizes[:source]) + rng.next_int(sampler.sizes[source])


@pytest.mark.parametrize("case", VECTORS, ids=lambda c: f"{c['seed']}-{c['sizes']}-{c['epoch']}")
def test_the_draws_are_the_known_ones(case: dict[str, Any]) -> None:
    sampler = MixingSampler(case["sizes"], case["shares"], case["batch_size"], int(case["seed"]), steps_per_epoch=9)
    assert sampler.indices(case["epoch"], case["step"]).tolist() == case["indices"]


@given(sources, st.integers(1, 40), st.integers(-(2**63), 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 99))
@settings(max_examples=60)
def test_each_slot_is_drawn_as_the_text_says(
    pairs: list[tuple[int, float]], batch_size: int, seed: int, epoch: int, step: int
) -> None:
    sizes, shares = [size for size, _ in pairs], [share for _, share in pairs]
    sampler = MixingSampler(sizes, shares, batch_size, seed, steps_per_epoch=100)
    indices = sampler.indices(epoch, step)
    assert indices.dtype == np.int64
    assert indices.tolist() == [by_the_text(sampler, epoch, step, slot) for slot in range(batch_size)]
    drawn = {int(source) for source in sampler.sources(indices)}
    assert all(sizes[source] and shares[source] for source in drawn)


@pytest.mark.parametrize("shares", [[1, 1, 2], [0.9, 0.05, 0.05], [3, 0, 1], [1e-3, 1, 1]], ids=str)
@pytest.mark.parametrize("seed", [0, 42])
def test_counts_lie_within_four_sigma_over_10_000_draws(shares: list[float], seed: int) -> None:
    sampler = MixingSampler([500, 300, 200], shares, 100, seed, steps_per_epoch=100)
    indices = np.concatenate([sampler.indices(0, step) for step in range(100)])
    counts = np.bincount(sampler.sources(indices), minlength=3)
    for share, count in zip(np.array(shares) / sum(shares), counts, strict=True):
        assert abs(count - 10_000 * share) <= 4 * math.sqrt(10_000 * share * (1 - share))


def test_indices_of_one_source_are_about_equally_frequent() -> None:
    sampler = MixingSampler([4, 6], [0, 1], 100, seed=5, steps_per_epoch=100)
    counts = np.bincount(np.concatenate([sampler.indices(1, step) for step in range(100)]), minlength=10)
    assert counts[:4].tolist() == [0] * 4
    assert np.abs(counts[4:] - 10_000 / 6).max() < 4 * math.sqrt(10_000 * 5 / 36)


def draw_always(monkeypatch: pytest.MonkeyPatch, u: float) -> None:
    """From here on every next_double of many generators is `u`."""

    def next_double(rng: Any) -> NDArray[np.float64]:
        rng.next_u64()
        return np.full(len(rng), u, np.float64)

    monkeypatch.setattr("loader_service.contract.rng.RngArray.next_double", next_double)


@pytest.mark.parametrize(("u", "source"), [(0.0, 0), (0.25 - 2**-54, 0), (0.25, 1), (0.5, 3), (1 - 2**-53, 3)])
def test_a_sum_must_exceed_what_was_drawn(monkeypatch: pytest.MonkeyPatch, u: float, source: int) -> None:
    sampler = MixingSampler([3, 3, 3, 3], [1, 1, 0, 2], 8, seed=0)
    draw_always(monkeypatch, u)
    assert set(sampler.sources(sampler.indices(0, 0)).tolist()) == {source}


@pytest.mark.parametrize("shares", [[0.1] * 7, [3, 0.7, 1e-3, 11, 0.3], [1 / 3] * 3], ids=str)
def test_shares_are_divided_by_their_sum_and_added_one_by_one(
    monkeypatch: pytest.MonkeyPatch, shares: list[float]
) -> None:
    sampler = MixingSampler([2] * len(shares), shares, 1, seed=0)
    for source, reached in enumerate(accumulate(share / list(accumulate(shares))[-1] for share in shares)):
        draw_always(monkeypatch, np.nextafter(reached, 0))
        assert sampler.sources(sampler.indices(0, 0)).tolist() == [source]
        draw_always(monkeypatch, reached)
        assert sampler.sources(sampler.indices(0, 0)).tolist() == [min(source + 1, len(shares) - 1)]


def test_the_last_source_that_can_be_drawn_is_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = MixingSampler([3, 3, 3, 3], [0.1] * 3 + [0], 8, seed=0)
    draw_always(monkeypatch, 1.0)  # what no sum exceeds
    assert set(sampler.sources(sampler.indices(0, 0)).tolist()) == {2}


def test_shares_count_by_their_ratios() -> None:
    one, other = (MixingSampler([9, 9], shares, 50, seed=3) for shares in ([1, 3], [2.5, 7.5]))
    assert one.indices(4, 0).tolist() == other.indices(4, 0).tolist()


def test_every_index_belongs_to_the_source_that_holds_it() -> None:
    sampler = MixingSampler([0, 2, 0, 0, 3, 1, 0], [1] * 7, 4, seed=0)
    assert sampler.sources(np.arange(6)).tolist() == [1, 1, 4, 4, 4, 5]
    assert sampler.sources(np.arange(0)).tolist() == []


@pytest.mark.parametrize(
    ("sizes", "batch_size", "steps"), [([10, 20], 4, 7), ([10, 20], 30, 1), ([10, 20], 31, 1), ([1], 5, 1), ([6], 3, 2)]
)
def test_an_epoch_has_by_default_as_many_full_batches_as_the_sources(
    sizes: list[int], batch_size: int, steps: int
) -> None:
    assert MixingSampler(sizes, [1] * len(sizes), batch_size, seed=0).steps_per_epoch == steps
    given = MixingSampler(sizes, [1] * len(sizes), batch_size, seed=0, steps_per_epoch=123)
    assert given.steps_per_epoch == 123
    assert len(given.indices(0, 122)) == batch_size


@pytest.mark.parametrize("sizes", [[2**62], [3, 2**62], [2**62, 2**62], [0, 2**63], [2**63, 0]], ids=str)
def test_sources_may_be_as_large_as_an_index_can_tell(sizes: list[int]) -> None:
    sampler = MixingSampler(sizes, [1] * len(sizes), 64, seed=1)
    indices = sampler.indices(2**64 - 1, sampler.steps_per_epoch - 1)
    assert indices.tolist() == [by_the_text(sampler, 2**64 - 1, sampler.steps_per_epoch - 1, j) for j in range(64)]
    ends = list(accumulate(sizes))
    assert sampler.sources(indices).tolist() == [next(k for k, end in enumerate(ends) if i < end) for i in indices]


def test_it_draws_from_datasets_put_together() -> None:
    datasets = [[100, 101, 102], [], [200, 201], [300]]
    dataset = ConcatDataset(datasets)
    sampler = MixingSampler(dataset.sizes, [1, 5, 2, 0], 32, seed=9)
    stream = Stream(dataset, sampler, StackCollator(), seed=9)
    batch = stream.build(5)
    where = [dataset.locate(index) for index in batch["indices"].tolist()]
    assert batch["data"].tolist() == [datasets[source][offset] for source, offset in where]
    assert [source for source, _ in where] == sampler.sources(batch["indices"]).tolist()
    assert {source for source, _ in where} == {0, 2}


def test_it_survives_pickle_and_its_arguments_are_its_state() -> None:
    sampler = MixingSampler([3, 4], [1, 2], 5, seed=-1)
    again = pickle.loads(pickle.dumps(sampler))
    assert repr(again) == repr(sampler) == "MixingSampler((3, 4), (1.0, 2.0), 5, -1, 1)"
    assert again.indices(3, 0).tolist() == MixingSampler([3, 4], [1, 2], 5, seed=2**64 - 1).indices(3, 0).tolist()


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"shares": [1, NAN]}, r"shares\[1\] is nan; it must be finite"),
        ({"shares": [INFINITY, 1]}, r"shares\[0\] is inf; it must be finite"),
        ({"shares": [1, -0.5]}, r"shares\[1\] is -0\.5; it must be at least 0"),
        ({"shares": [1, "a"]}, r"shares\[1\] is 'a'; it must be a number"),
        ({"shares": [1, None]}, r"shares\[1\] is None"),
        ({"shares": [10**400, 1]}, r"shares\[0\] is 10000.*; it must be finite"),
        ({"shares": [1e308, 1e308]}, "shares add up to inf; give smaller ones"),
        ({"shares": [1]}, "2 sizes and 1 shares; give one share for each"),
        ({"shares": [0, 0]}, "no source can be drawn"),
        ({"sizes": [0, 0]}, "no source can be drawn"),
        ({"sizes": [0, 5], "shares": [1, 0]}, "no source can be drawn"),
        ({"sizes": [], "shares": []}, "no source can be drawn"),
        ({"sizes": [3, -1]}, r"sizes\[1\] is -1"),
        ({"sizes": [3, 1.5]}, r"sizes\[1\] is 1\.5; it must be an integer"),
        ({"sizes": [2**63, 1]}, "the sum of the sizes is 9223372036854775809"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"seed": 0.5}, r"seed is 0\.5"),
        ({"steps_per_epoch": 0}, "steps_per_epoch is 0"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_arguments_that_draw_nothing_sensible_are_refused(changes: dict[str, Any], match: str) -> None:
    whole: dict[str, Any] = {"sizes": [3, 4], "shares": [1, 1], "batch_size": 2, "seed": 0}
    with pytest.raises(ArgumentError, match=match):
        MixingSampler(**whole | changes)


@pytest.mark.parametrize(("epoch", "step", "match"), [(0, 3, "step in epoch is 3"), (-1, 0, "epoch is -1")])
def test_a_place_outside_the_run_is_refused(epoch: int, step: int, match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        MixingSampler([3, 4], [1, 1], 2, seed=0).indices(epoch, step)
