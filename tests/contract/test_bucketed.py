"""Bucketing: known plans, a slow reading of the text, every index once, and plans that are built once."""

from __future__ import annotations

import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from loader_service.contract.permutation import permute
from loader_service.contract.rng import derive
from loader_service.contract.samplers import BucketedSampler
from loader_service.errors import ArgumentError
from tests.vectors.files import read_vectors

VECTORS: list[dict[str, Any]] = read_vectors("samplers")["bucketed"]
EDGES = sorted({1, 2} | {2**k + d for k in range(1, 8) for d in (-1, 0, 1)})

some_lengths = st.lists(st.integers(0, 12) | st.sampled_from([2**31, 2**32 - 1]), min_size=1, max_size=150)


def whole_epoch(sampler: BucketedSampler, epoch: int = 0) -> list[list[int]]:
    return [sampler.indices(epoch, step).tolist() for step in range(sampler.steps_per_epoch)]


def by_the_text(lengths: list[int], batch_size: int, pool_batches: int, drop_last: bool, epoch: int) -> list[list[int]]:
    """R34 to R36 read word by word, for seed 42."""
    n = len(lengths)
    steps = n // batch_size if drop_last else -(-n // batch_size)
    order = [permute(p, n, derive(42, epoch, 0, 0, 103)) for p in range(n)][: steps * batch_size]
    pool = batch_size * pool_batches
    pools = [sorted(order[i : i + pool], key=lambda k: (lengths[k] << 32) | k) for i in range(0, len(order), pool)]
    ordered = [index for one in pools for index in one]
    batches: list[list[int]] = [[]] * steps
    for t in range(steps):
        batches[permute(t, steps, derive(42, epoch, 1, 0, 104))] = ordered[t * batch_size : (t + 1) * batch_size]
    return batches


@pytest.mark.parametrize("case", VECTORS, ids=lambda c: f"{c['seed']}-{c['batch_size']}-{c['drop_last']}-{c['epoch']}")
def test_the_plan_is_the_known_one(case: dict[str, Any]) -> None:
    arguments = case["lengths"], case["batch_size"], case["pool_batches"], int(case["seed"]), case["drop_last"]
    assert whole_epoch(BucketedSampler(*arguments), case["epoch"]) == case["steps"]


@given(some_lengths, st.integers(1, 20), st.integers(1, 5), st.booleans(), st.integers(0, 2**64 - 1))
@settings(max_examples=60)
def test_plans_are_what_the_text_says(
    lengths: list[int], batch_size: int, pool_batches: int, drop_last: bool, epoch: int
) -> None:
    if drop_last and len(lengths) < batch_size:
        with pytest.raises(ArgumentError, match="no full batch"):
            BucketedSampler(lengths, batch_size, pool_batches, 42, drop_last)
        return
    sampler = BucketedSampler(lengths, batch_size, pool_batches, 42, drop_last)
    batches = whole_epoch(sampler, epoch)
    assert batches == by_the_text(lengths, batch_size, pool_batches, drop_last, epoch)
    seen = [index for batch in batches for index in batch]
    assert len(set(seen)) == len(seen) == (sampler.steps_per_epoch * batch_size if drop_last else len(lengths))


@pytest.mark.parametrize("n", EDGES)
@pytest.mark.parametrize("equal", [True, False])
def test_every_index_comes_once_an_epoch(n: int, equal: bool) -> None:
    lengths = np.full(n, 7) if equal else np.arange(n) * 37 % 11
    batches = whole_epoch(BucketedSampler(lengths, 4, 3, seed=1, drop_last=False), epoch=2)
    assert sorted(index for batch in batches for index in batch) == list(range(n))
    assert sorted(map(len, batches), reverse=True) == [4] * (n // 4) + [n % 4] * (n % 4 > 0)


def test_batches_of_a_pool_hold_neighbours_in_length() -> None:
    lengths = np.arange(240) * 7919 % 240
    batches = whole_epoch(BucketedSampler(lengths, 6, 40, seed=0))
    assert sorted(tuple(lengths[batch]) for batch in batches) == [tuple(range(i, i + 6)) for i in range(0, 240, 6)]
    assert [lengths[batch][0] for batch in batches] != list(range(0, 240, 6))


def test_the_short_batch_may_come_at_any_step() -> None:
    sampler = BucketedSampler(range(22), 5, 2, seed=3, drop_last=False)
    places = {[len(batch) for batch in whole_epoch(sampler, epoch)].index(2) for epoch in range(40)}
    assert places == set(range(5))


def test_equal_lengths_are_sorted_by_index_within_a_pool() -> None:
    for batch in whole_epoch(BucketedSampler([3] * 64, 8, 4, seed=5)):
        assert batch == sorted(batch)


def test_indices_are_int64_and_the_caller_owns_them() -> None:
    lengths = np.arange(20)
    sampler = BucketedSampler(lengths, 4, 2, seed=0)
    before = sampler.indices(0, 1)
    kept = before.tolist()
    assert before.dtype == np.int64
    before[:], lengths[:] = -1, 0
    assert sampler.indices(0, 1).tolist() == kept == BucketedSampler(range(20), 4, 2, seed=0).indices(0, 1).tolist()


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The epochs whose plans were built, in order."""
    epochs: list[int] = []
    build = BucketedSampler._sorted_order

    def watch(sampler: BucketedSampler, epoch: int) -> NDArray[np.uint32]:
        epochs.append(epoch)
        return build(sampler, epoch)

    monkeypatch.setattr(BucketedSampler, "_sorted_order", watch)
    return epochs


def test_the_plans_of_the_current_and_the_previous_epoch_are_kept(built: list[int]) -> None:
    sampler = BucketedSampler(range(64), 4, 2, seed=0)
    for epoch in range(3):
        whole_epoch(sampler, epoch)
        if epoch:
            sampler.indices(epoch - 1, 0)  # a consumer that is still behind
    assert built == [0, 1, 2]
    assert sampler._plan(2)[0] is sampler._plan(2)[0]
    sampler.indices(0, 0)
    assert built == [0, 1, 2, 0]
    assert len(sampler._plans) == 2


def test_threads_that_ask_at_once_share_one_plan(built: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    together, batch_order = Event(), BucketedSampler._batch_order

    def meet(sampler: BucketedSampler, epoch: int) -> NDArray[np.int64]:
        """Gives a second thread the time to come in, if it can."""
        if built.count(epoch) > 1:
            together.set()
        together.wait(0.05)
        return batch_order(sampler, epoch)

    monkeypatch.setattr(BucketedSampler, "_batch_order", meet)
    sampler = BucketedSampler(np.arange(4096) % 97, 8, 4, seed=0)
    places = [(epoch, step) for step in range(64) for epoch in (5, 6)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda place: sampler.indices(*place).tolist(), places))
    assert sorted(built) == [5, 6]
    monkeypatch.undo()
    alone = BucketedSampler(np.arange(4096) % 97, 8, 4, seed=0)
    assert answers == [alone.indices(*place).tolist() for place in places]


def test_a_million_lengths_make_a_plan() -> None:
    lengths = np.arange(10**6, dtype=np.uint32) * np.uint32(2654435761)
    sampler = BucketedSampler(lengths, 128, 100, seed=0)
    ordered, batch_at = sampler._plan(0)
    assert len(np.unique(ordered)) == 10**6 // 128 * 128
    assert np.array_equal(np.sort(batch_at), np.arange(10**6 // 128))
    pool = lengths[ordered[: 128 * 100]]
    assert (pool[1:] >= pool[:-1]).all()


def _plan_cpu_s(n: int) -> float:
    """CPU time of this thread for the plan of an epoch: the least of three, which other processes do not change."""
    lengths = np.arange(n, dtype=np.uint32) * np.uint32(2654435761)
    times = []
    for _ in range(3):
        sampler = BucketedSampler(lengths, 128, n // 128, seed=0)
        before = time.thread_time()
        sampler.indices(0, 0)
        times.append(time.thread_time() - before)
    return min(times)


def test_the_work_for_a_plan_grows_little_more_than_the_number_of_lengths() -> None:
    """16 times the lengths: n log n says 21 times the work, n^2 would be 256 times."""
    small, large = _plan_cpu_s(2**15), _plan_cpu_s(2**19)
    assert large < 80 * small


def test_a_pool_larger_than_the_dataset_is_the_whole_of_it() -> None:
    for batch_size, drop_last in ((2, True), (2, False), (2**31 - 1, False)):
        huge, whole = (BucketedSampler([3, 1, 2, 9, 4], batch_size, k, 42, drop_last) for k in (2**31 - 1, 3))
        assert whole_epoch(huge, 7) == whole_epoch(whole, 7)


def test_it_survives_pickle_without_its_plans() -> None:
    sampler = BucketedSampler(range(1000), 4, 2, seed=-1, drop_last=False)
    empty = len(pickle.dumps(sampler))
    sampler.indices(0, 0)
    again = pickle.loads(pickle.dumps(sampler))
    assert len(pickle.dumps(sampler)) == empty
    assert whole_epoch(again, 3) == whole_epoch(sampler, 3)
    assert repr(again) == "BucketedSampler(1000 lengths, 4, 2, -1, False)"


LENGTHS: list[tuple[Any, str]] = [
    ([1, -1], r"lengths lie in \[-1, 1\]; they must lie in \[0, 2\^32\)"),
    ([1, 2**32], r"lengths lie in \[1, 4294967296\]"),
    (np.array([1, 2**63], np.uint64), r"lengths lie in \[1, 9223372036854775808\]"),
    ([1.0, 2.0], r"lengths\[0\] is 1\.0; it must be an integer"),
    ([True, False], r"lengths\[0\] is True"),
    ([[1, 2], [3, 4]], r"lengths\[0\] is \[1, 2\]; it must be an integer"),
    (np.ones((2, 2), int), r"lengths have the shape \[2, 2\]; they must have one dimension"),
    (7, "lengths is 7; it must be a sequence"),
    (["a"], r"lengths\[0\] is 'a'"),
    ([], "n is 0"),
]


@pytest.mark.parametrize(("lengths", "match"), LENGTHS, ids=[match for _, match in LENGTHS])
def test_lengths_that_are_no_counts_are_refused(lengths: Any, match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        BucketedSampler(lengths, 1, 1, seed=0)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 9}, "n = 8 samples make no full batch of batch_size = 9"),
        ({"pool_batches": 0}, "pool_batches is 0"),
        ({"pool_batches": 1.5}, r"pool_batches is 1\.5; it must be an integer"),
        ({"seed": False}, "seed is False"),
    ],
    ids=str,
)
def test_arguments_without_an_epoch_are_refused(changes: dict[str, Any], match: str) -> None:
    whole: dict[str, Any] = {"lengths": range(8), "batch_size": 2, "pool_batches": 2, "seed": 0}
    with pytest.raises(ArgumentError, match=match):
        BucketedSampler(**whole | changes)


@pytest.mark.parametrize(("epoch", "step", "match"), [(0, 4, "step in epoch is 4"), (2**64, 0, "epoch is")])
def test_a_place_outside_the_run_is_refused(epoch: int, step: int, match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        BucketedSampler(range(8), 2, 2, seed=0).indices(epoch, step)
