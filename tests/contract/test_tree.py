"""Samples that are trees: which leaves there are, by which names, and what no batch carries."""

from __future__ import annotations

from collections import OrderedDict
from types import MappingProxyType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from loader_service.contract.collate import SlotError
from loader_service.contract.collate.tree import leaves, row_leaves


class Pair(NamedTuple):
    image: Any
    text: Any


@pytest.mark.parametrize(
    ("sample", "paths"),
    [
        (1.5, ["lone"]),
        (np.zeros((2, 2)), ["lone"]),
        ({"a": 1, "b": {"c": 2, "d": 3}}, ["a", "b.c", "b.d"]),
        ((1, [2, (3,)]), ["0", "1.0", "1.1.0"]),
        (Pair(1, {"ids": 2}), ["image", "text.ids"]),
        ({"pair": Pair(1, 2)}, ["pair.image", "pair.text"]),
        (OrderedDict(z=1, a=2), ["z", "a"]),
        (MappingProxyType({1: 1, "x": 2}), ["1", "x"]),
        ([], []),
        ({"a": ()}, []),
    ],
    ids=str,
)
def test_leaves_are_named_by_their_paths(sample: Any, paths: list[str]) -> None:
    assert list(leaves(sample, "lone")) == paths


@pytest.mark.parametrize(
    "part",
    [
        "text",
        b"bytes",
        None,
        object(),
        np.array(["a"]),
        np.array([1, "a"], object),
        np.datetime64("2020-01-01"),
        np.timedelta64(1, "s"),
        np.zeros(2, "i4,f4"),
        np.longdouble(1),
        np.zeros(2, np.clongdouble),
        np.zeros(2, ml_dtypes.int4),
        np.ma.masked_array([1, 2], [True, False]),
    ],
    ids=lambda part: f"{type(part).__name__} {getattr(part, 'dtype', '')}",
)
def test_what_no_batch_carries_is_named_by_its_path_and_its_row(part: Any) -> None:
    with pytest.raises(SlotError, match=r"^row 3: part 'a\.0' is ") as caught:
        row_leaves(3, {"a": [part]}, "lone")
    assert (caught.value.row, type(caught.value.cause)) == (3, TypeError)


def test_a_leaf_cannot_have_the_name_of_the_batchs_own_tensor() -> None:
    with pytest.raises(ValueError, match="a part named 'indices'"):
        leaves(1, "indices")
