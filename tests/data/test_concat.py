"""Datasets put together: each sample at its place, widths only where all tell them, and one fingerprint."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_service.contract.fingerprint import describe
from loader_service.data import ConcatDataset, SyntheticLines
from loader_service.errors import ArgumentError

LINES = [
    SyntheticLines(7, min_width=10, max_width=90),
    SyntheticLines(300, height=32, seed=4),
    SyntheticLines(1, seed=9),
]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
@settings(max_examples=60)
def test_samples_lie_one_dataset_behind_the_other(sizes: list[int]) -> None:
    datasets = [[(source, offset) for offset in range(size)] for source, size in enumerate(sizes)]
    both = ConcatDataset(datasets)
    expected = [sample for dataset in datasets for sample in dataset]
    assert len(both) == len(expected)
    assert both.sizes == tuple(sizes)
    assert [both[index] for index in range(len(both))] == expected
    assert [both.locate(index) for index in range(len(both))] == expected


@pytest.mark.parametrize("index", [-1, 5, 2**70])
def test_an_index_outside_is_refused(index: int) -> None:
    both = ConcatDataset([[1, 2], [], [3, 4, 5]])
    for read in (both.__getitem__, both.locate):
        with pytest.raises(ArgumentError, match=rf"index is {index}; .* lie in \[0, 5\)"):
            read(index)


@pytest.mark.parametrize("kind", [np.int64, np.uint64, np.uint8, np.int8])
def test_a_numpy_index_is_an_index(kind: Any) -> None:
    assert ConcatDataset([range(120), range(1000, 1100)])[kind(125)] == 1005
    offset = ConcatDataset([range(120), range(1000, 1100)]).locate(kind(125))[1]
    assert type(offset) is int


def test_widths_are_those_of_the_samples() -> None:
    both = ConcatDataset(LINES)
    indices = np.array([0, 307, 6, 7, 306, 100, 6, 0])
    assert both.widths(indices).tolist() == [both[index].image.shape[2] for index in indices.tolist()]
    assert both.widths(np.arange(0)).shape == (0,)
    assert both.widths(indices).dtype == np.int64


def test_widths_are_told_only_where_every_dataset_tells_its_own() -> None:
    assert hasattr(ConcatDataset([ConcatDataset(LINES), LINES[0]]), "widths")
    assert not hasattr(ConcatDataset([*LINES, [1, 2]]), "widths")


def test_it_survives_pickle() -> None:
    both = ConcatDataset(LINES)
    again = pickle.loads(pickle.dumps(both))
    assert again.widths(np.arange(308)).tolist() == both.widths(np.arange(308)).tolist()
    assert np.array_equal(again[50].image, both[50].image)


def test_its_description_is_that_of_its_datasets_in_order() -> None:
    descriptions = [describe(ConcatDataset(datasets)) for datasets in (LINES, LINES[::-1], LINES[:2], [LINES[0]] * 3)]
    assert len({str(description) for description in descriptions}) == 4
    assert describe(ConcatDataset(LINES)) == describe(ConcatDataset(tuple(LINES)))


def test_no_datasets_at_all_are_refused() -> None:
    with pytest.raises(ArgumentError, match="no datasets to put together; give at least one"):
        ConcatDataset([])
