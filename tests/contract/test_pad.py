"""Padded sequences: each part to its own longest, with what its dtype can hold."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_service.contract.collate import (
    ImageBatchCollator,
    PadCollator,
)
from loader_service.errors import ArgumentError, BuildError
from tests.contract.collating import build, collate

X = np.zeros(3, np.float32)


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    multiple=st.integers(1, 5),
    pad_value=st.sampled_from([0, -100, 7]),
    tail=st.sampled_from([(), (2,), (0,), (1, 3)]),
)
@settings(max_examples=60)
def test_sequences_are_padded_to_a_multiple_of_the_longest(
    lengths: list[int], multiple: int, pad_value: int, tail: tuple[int, ...]
) -> None:
    samples = [np.full((length, *tail), i + 1, np.int32) for i, length in enumerate(lengths)]
    batch = collate(PadCollator(multiple, pad_value), samples)
    padded = batch["tokens"].shape[1]
    assert padded % multiple == 0
    assert max(lengths) <= padded < max(lengths) + multiple
    assert batch["tokens"].shape == (len(lengths), padded, *tail)
    assert batch["tokens_lengths"].tolist() == lengths
    assert batch["tokens_lengths"].dtype == np.int32
    for i, length in enumerate(lengths):
        assert (batch["tokens"][i, :length] == i + 1).all()
        assert (batch["tokens"][i, length:] == pad_value).all()


def test_each_part_is_padded_to_its_own_longest() -> None:
    samples = [{"a": np.ones(i), "b": (np.ones((5 - i, 2), np.float32), i)} for i in range(4)]
    batch = collate(PadCollator(2), samples)
    assert list(batch) == ["a", "a_lengths", "b.0", "b.0_lengths", "b.1", "indices"]
    assert (batch["a"].shape, batch["b.0"].shape, batch["b.1"].shape) == ((4, 4), (4, 6, 2), (4,))
    assert (batch["a_lengths"].tolist(), batch["b.0_lengths"].tolist()) == ([0, 1, 2, 3], [5, 4, 3, 2])


def test_an_infinite_pad_value_is_one_of_floats() -> None:
    padded = collate(PadCollator(pad_value=-math.inf), [np.ones(1, np.float32), np.ones(2, np.float32)])
    assert padded["tokens"].tolist() == [[1, -math.inf], [1, 1]]


@pytest.mark.parametrize("pad_value", [-1, 0.5, 256, math.nan, math.inf])
def test_a_pad_value_that_a_part_cannot_hold_is_refused(pad_value: float) -> None:
    with pytest.raises(BuildError, match=rf"pad_value {pad_value} cannot stand in part 'tokens', which is uint8"):
        build(PadCollator(pad_value=pad_value), np.zeros(3, np.uint8))


@pytest.mark.parametrize(
    "other",
    [X.astype(float), np.zeros((3, 1), np.float32), np.float32(1), {"x": X}, (X, X), "text", {"indices": X}, [None]],
    ids=lambda value: str(value)[:20],
)
def test_a_sequence_that_differs_in_more_than_its_length_is_named_by_its_slot(other: Any) -> None:
    with pytest.raises(BuildError, match=r"at slot 1 \(dataset index 1\): \w+: "):
        build(PadCollator(), X, other)
    assert build(PadCollator(), X, X[:1])["tokens_lengths"].tolist() == [3, 1]


def test_a_part_named_as_anothers_lengths_is_refused() -> None:
    with pytest.raises(BuildError, match=r"names a tensor twice.*'x_lengths'"):
        build(PadCollator(), {"x": np.zeros(2), "x_lengths": 1})


@pytest.mark.parametrize("multiple", [0, -1, 2.5, "2", None])
def test_a_multiple_that_is_no_positive_integer_is_refused(multiple: Any) -> None:
    with pytest.raises(ArgumentError, match=r"multiple is .*it must (be an integer|lie in)"):
        PadCollator(multiple)
    with pytest.raises(ArgumentError, match=r"width_multiple is .*it must (be an integer|lie in)"):
        ImageBatchCollator(multiple)


def test_a_numpy_integer_is_a_multiple() -> None:
    multiple: Any = np.uint8(200)
    assert collate(PadCollator(multiple), [np.zeros(3)] * 2)["tokens"].shape == (2, 200)


def pad(dtype: Any, pad_value: Any) -> Any:
    """The number that fills up a row of two, [1]."""
    tensor = build(PadCollator(pad_value=pad_value), np.ones(1, dtype), np.ones(2, dtype))["tokens"]
    assert tensor.dtype == np.dtype(dtype)
    return tensor[0, 1:]


def test_each_part_has_a_pad_value_of_its_own() -> None:
    samples = [{"ids": np.arange(n), "mask": np.ones(n, bool), "at": np.ones(n, np.float32)} for n in (1, 3)]
    batch = build(PadCollator(pad_value={"ids": 50256, "mask": False, "at": -math.inf}), *samples)
    assert batch["ids"][0].tolist() == [0, 50256, 50256]
    assert batch["mask"][0].tolist() == [True, False, False]
    assert batch["at"][0].tolist() == [1, -math.inf, -math.inf]
    assert build(PadCollator(pad_value={"ids": 7}), *samples)["mask"][0].tolist() == [True, False, False]


HELD: list[tuple[Any, Any]] = [
    (bool, False),
    (bool, True),
    (bool, 0),
    (np.uint8, 255),
    (np.uint64, 2**64 - 1),
    (np.int64, -(2**63)),
    (np.int16, 5.0),
    (np.float16, 65504),
    (np.float32, 0.1),
    (np.float32, np.float64(1e30)),
    (np.float64, math.nan),
    (np.complex64, -1.5),
    (ml_dtypes.bfloat16, 1e30),
    (ml_dtypes.float8_e5m2, -math.inf),
    (ml_dtypes.float8_e4m3fn, 448),
]


@pytest.mark.parametrize(("dtype", "pad_value"), HELD, ids=str)
def test_a_dtype_is_padded_with_what_it_can_hold(dtype: Any, pad_value: Any) -> None:
    assert pad(dtype, pad_value).tobytes() == np.array(pad_value).astype(dtype).tobytes()


NOT_HELD: list[tuple[Any, Any]] = [
    (bool, 50256),
    (bool, 0.5),
    (bool, math.nan),
    (np.int64, True),
    (np.float32, True),
    (np.int64, math.nan),
    (np.int64, 2**63),
    (np.uint8, -1),
    (np.float16, 70000),
    (np.float32, 1e300),
    (np.float64, 10**400),
    (np.complex64, 1e39),
    (ml_dtypes.float8_e4m3fn, 1e6),
    (ml_dtypes.float8_e4m3fn, math.inf),
    (ml_dtypes.float8_e8m0fnu, 0),
    (ml_dtypes.float8_e8m0fnu, -1),
]


@pytest.mark.parametrize(("dtype", "pad_value"), NOT_HELD, ids=str)
def test_what_a_dtype_cannot_hold_is_refused(dtype: Any, pad_value: Any) -> None:
    with pytest.raises(BuildError, match=r"cannot stand in part 'tokens'.*pad_value=\{'tokens': (False|0)\}"):
        pad(dtype, pad_value)


@pytest.mark.parametrize(
    "pad_value", [None, "0", b"0", 1j, np.complex64(1 + 2j), [0], {"a": None}, {1: 0}, float], ids=str
)
def test_a_pad_value_that_is_no_number_is_refused(pad_value: Any) -> None:
    with pytest.raises(ArgumentError, match="pad_value"):
        PadCollator(pad_value=pad_value)


def test_a_pad_value_for_a_part_that_there_is_not_is_refused() -> None:
    with pytest.raises(BuildError, match=r"pad_value names the parts \['idz'\]; those of a sample are \['ids'\]"):
        build(PadCollator(pad_value={"idz": 3}), {"ids": np.ones(2)})
