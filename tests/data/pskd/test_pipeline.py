"""Shuffles and batches at their edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_service.data.pskd import Pipeline, shuffle_indices
from loader_service.errors import ArgumentError

_SIZES = st.sampled_from([0, 1, 2, *(2**k + d for k in (2, 3, 6, 10) for d in (-1, 0, 1))]) | st.integers(0, 300)


@given(_SIZES, st.integers(-(2**63), 2**64 - 1), st.integers(1, 2**40))
@settings(max_examples=100)
def test_a_shuffle_is_a_permutation_and_another_one_in_the_next_epoch(n: int, seed: int, epoch: int) -> None:
    order = shuffle_indices(n, seed, epoch)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(n))
    assert order.tolist() == shuffle_indices(n, seed, epoch).tolist()
    if n > 40:
        assert order.tolist() != shuffle_indices(n, seed, epoch + 1).tolist()


@pytest.mark.parametrize(("n", "epoch"), [(-1, 1), (2**63, 1), (3, 0), (3, -1), (3, 1.5), (1.5, 1)])
def test_a_shuffle_of_no_size_or_epoch_is_refused(n: Any, epoch: Any) -> None:
    with pytest.raises(ArgumentError):
        shuffle_indices(n, 7, epoch)


@pytest.mark.parametrize("count", [10**12, 2**63 - 1])
def test_any_batch_of_endless_samples_is_found_without_a_table(count: int) -> None:
    pipeline = Pipeline(count, shuffle=7, batch=32)
    batch = pipeline.indices(3, pipeline.batches_per_epoch - 1)
    assert len(set(batch.tolist())) == 32
    assert 0 <= batch.min() <= batch.max() < count


@given(_SIZES, st.none() | st.integers(0, 9), st.integers(1, 400), st.none() | st.integers(0, 400))
@settings(max_examples=100)
def test_an_epoch_is_the_whole_groups_of_the_order(n: int, seed: int | None, batch: int, take: int | None) -> None:
    pipeline = Pipeline(n, seed, batch, take)
    order = list(range(n)) if seed is None else shuffle_indices(n, seed, 1).tolist()
    groups = [order[first : first + batch] for first in range(0, n - batch + 1, batch)][:take]
    assert [found.tolist() for found in pipeline.epoch(1)] == groups
    assert pipeline.batches_per_epoch == len(groups)
    with pytest.raises(ArgumentError):
        pipeline.indices(1, len(groups))


@pytest.mark.parametrize(
    "arguments",
    [
        {"count": -1},
        {"count": 2**63},
        {"count": 1.0},
        {"count": 9, "batch": 0},
        {"count": 9, "take": -1},
        {"count": 9, "take": 1.5},
        {"count": 9, "shuffle": 0.5},
        {"count": 9, "shuffle": 2**64},
    ],
    ids=str,
)
def test_a_pipeline_of_other_arguments_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        Pipeline(**arguments)


@pytest.mark.parametrize(("epoch", "batch"), [(0, 0), (1.5, 0), (1, -1), (1, 3), (1, 0.5)])
def test_a_batch_that_no_epoch_has_is_refused(epoch: Any, batch: Any) -> None:
    with pytest.raises(ArgumentError):
        Pipeline(10, batch=3).indices(epoch, batch)
