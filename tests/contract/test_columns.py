"""Samples as columns: a sequence of trees, and rows that are read out of a block only when they are wanted."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loader_service.contract.collate.collator import SlotError
from loader_service.contract.collate.columns import Columns, RowsOfBlock
from loader_service.errors import ArgumentError

Pair = namedtuple("Pair", ["x", "y"])  # a plain one, as users have
BLOCK = np.arange(16, dtype=np.uint8)


def rows(starts: list[int], **options: Any) -> RowsOfBlock:
    """Rows of two unsigned 16-bit numbers."""
    return RowsOfBlock(BLOCK, np.array(starts, np.int64), np.dtype("<u2"), (2,), **options)


def test_rows_are_copied_from_where_they_begin_in_any_order() -> None:
    assert rows([8, 0, 8]).read().tolist() == [[0x0908, 0x0B0A], [0x0100, 0x0302], [0x0908, 0x0B0A]]


def test_rows_of_another_stored_type_are_converted() -> None:
    converted = RowsOfBlock(BLOCK, np.array([4, 0]), np.dtype("<i8"), (2,), stored=np.dtype("u1")).read()
    assert (converted.dtype, converted.tolist()) == (np.dtype("<i8"), [[4, 5], [0, 1]])


def test_no_rows_are_none() -> None:
    assert rows([]).read().shape == (0, 2)


@pytest.mark.parametrize("starts", [[-1], [13], [0, 100]])
def test_rows_that_do_not_lie_in_the_block_are_refused(starts: list[int]) -> None:
    with pytest.raises(ArgumentError, match="16 bytes"):
        rows(starts)


@pytest.mark.parametrize("block", [np.arange(16), np.zeros((4, 4), np.uint8), BLOCK[::2]])
def test_another_kind_of_block_is_refused(block: NDArray[Any]) -> None:
    with pytest.raises(ArgumentError, match="uint8"):
        RowsOfBlock(block, np.array([0]), np.dtype("u1"), (1,))


def test_a_row_that_is_wrong_is_named_by_its_place_in_the_batch() -> None:
    def verify(found: NDArray[Any]) -> None:
        for row, value in enumerate(found[:, 0]):
            if value == 0x0908:
                raise SlotError(row, ValueError("bad"))

    with pytest.raises(SlotError) as refused:
        Columns({"x": rows([0, 8], verify=verify)}, 2)[1]
    assert refused.value.row == 1


def test_a_sample_is_the_tree_with_one_row_of_each_leaf() -> None:
    columns = Columns({"a": np.array([1, 2]), "b": Pair([np.array([[3], [4]])], (rows([0, 8]),))}, 2)
    sample = columns[-1]
    assert sample["a"] == 2
    assert isinstance(sample["b"], Pair)
    assert sample["b"].x[0].tolist() == [4]
    assert sample["b"].y[0].tolist() == [0x0908, 0x0B0A]
    assert [one["a"] for one in columns[::-1]] == [2, 1]
    with pytest.raises(IndexError):
        columns[2]


def test_kinds_are_those_of_the_parts_and_nothing_is_read() -> None:
    def verify(found: NDArray[Any]) -> None:
        raise AssertionError("it was read")

    block = rows([0, 8], verify=verify)
    assert Columns({"b": block}, 2).kinds("data") == (("b", np.dtype("<u2"), (2,)),)
    assert Columns({"a": np.ones((2, 3), np.float32), "b": block}, 2).kinds("data") == (
        ("a", np.dtype("<f4"), (3,)),
        ("b", np.dtype("<u2"), (2,)),
    )
    assert Columns(block, 2).kinds("data") == (("data", np.dtype("<u2"), (2,)),)
    with pytest.raises(SlotError, match="indices"):
        Columns({"indices": block}, 2).kinds("data")


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ArgumentError, match="3 rows"):
        Columns([np.zeros(2), np.zeros(3)], 2)
