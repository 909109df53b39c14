"""The place of a batch, as a collator knows it, and how it names the sample that does not fit."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from loader_service.contract.collate import BatchContext, SlotError
from loader_service.errors import ArgumentError


def test_the_slots_are_those_of_the_global_batch() -> None:
    context = BatchContext(7, 0, 3, np.arange(4), first_slot=8)
    assert context.slots.tolist() == [8, 9, 10, 11]
    assert context.slots.dtype == np.uint64


def test_an_error_names_its_row_as_a_plain_int_and_its_cause() -> None:
    error = SlotError(np.int64(2), ValueError("too wide"))  # type: ignore[arg-type]  # numpy's argmax gives one
    assert (type(error.row), error.row, str(error)) == (int, 2, "row 2: too wide")
    again = pickle.loads(pickle.dumps(error))
    assert (again.row, str(again.cause)) == (2, "too wide")


@pytest.mark.parametrize(
    ("row", "cause"), [(1.5, ValueError()), (True, ValueError()), (0, "too wide"), (0, ValueError)]
)
def test_what_is_no_row_or_no_cause_is_refused(row: Any, cause: Any) -> None:
    with pytest.raises(ArgumentError):
        SlotError(row, cause)
