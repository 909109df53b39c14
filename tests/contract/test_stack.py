"""Stacked samples: names by path, dtypes as they are, no old byte, and errors that name the slot."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from loader_service.contract.collate import (
    Collator,
    PadCollator,
    SlotError,
    StackCollator,
)
from loader_service.contract.rng import SampleRng
from loader_service.contract.samplers import SequentialSampler
from loader_service.contract.stream import Stream
from loader_service.errors import BuildError
from tests.contract.collating import Samples, build, collate

DTYPES = ["?", "<i1", "<u2", "<i4", "<i8", "<u8", "<f2", "<f4", "<f8", ">f4", "<c8"]


def test_nested_samples_are_stacked_by_path() -> None:
    samples = [
        {"image": np.full((2, 3), i, np.float32), "meta": {"id": i, "pair": (i * 2, [np.int8(i), i > 1])}}
        for i in range(4)
    ]
    batch = collate(StackCollator(), samples)
    assert list(batch) == ["image", "meta.id", "meta.pair.0", "meta.pair.1.0", "meta.pair.1.1", "indices"]
    assert batch["image"].shape == (4, 2, 3)
    assert batch["image"][2].tolist() == [[2] * 3] * 2
    assert batch["meta.id"].tolist() == [0, 1, 2, 3]
    assert batch["meta.pair.0"].tolist() == [0, 2, 4, 6]
    assert batch["meta.pair.1.0"].dtype == np.int8
    assert batch["meta.pair.1.1"].tolist() == [False, False, True, True]
    assert batch["indices"].tolist() == [50, 51, 52, 53]
    assert batch["indices"].dtype == np.int64


def test_the_order_of_a_dicts_keys_may_differ_between_samples() -> None:
    batch = collate(StackCollator(), [{"a": 1, "b": 2}, {"b": 4, "a": 3}])
    assert {name: batch[name].tolist() for name in "ab"} == {"a": [1, 3], "b": [2, 4]}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)], ids=str)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_lone_arrays_keep_dtype_and_shape(dtype: str, shape: tuple[int, ...], count: int) -> None:
    size = math.prod(shape)
    samples = [(np.arange(size) + i).reshape(shape).astype(dtype) for i in range(count)]
    stacked = collate(StackCollator("x"), samples)
    assert list(stacked) == ["x", "indices"]
    assert stacked["x"].dtype == np.dtype(dtype)
    assert np.array_equal(stacked["x"], np.stack(samples))
    padded = collate(PadCollator(name="x"), samples)
    assert padded["x"].dtype == np.dtype(dtype)
    assert np.array_equal(padded["x"], np.stack(samples))
    assert list(padded) == (["x", "x_lengths", "indices"] if shape else ["x", "indices"])


def test_lone_numbers_are_named_by_the_collator() -> None:
    assert collate(StackCollator(), [1.5, 2.5])["data"].tolist() == [1.5, 2.5]
    assert collate(PadCollator(), [1, 2])["tokens"].tolist() == [1, 2]


def test_strided_and_read_only_arrays_are_taken_as_they_are() -> None:
    sample = np.arange(12).reshape(3, 4)[:, ::2]
    sample.flags.writeable = False
    assert np.array_equal(collate(StackCollator(), [sample.T, sample.T])["data"][1], sample.T)


def test_no_byte_of_an_earlier_batch_shows_through() -> None:
    samples = [(np.arange(i % 3, dtype=np.uint8), {"x": np.float64(i)}) for i in range(5)]
    fixed = [(np.arange(3, dtype=np.uint8), {"x": np.float64(i)}) for i in range(5)]
    collators: list[tuple[Collator[Any], list[Any]]] = [(PadCollator(4, 3), samples), (StackCollator(), fixed)]
    for collator, given_samples in collators:
        ones, zeros = (collate(collator, given_samples, fill) for fill in (0xFF, 0))
        assert {name: a.tobytes() for name, a in ones.items()} == {name: a.tobytes() for name, a in zeros.items()}


X = np.zeros(3, np.float32)


MISFITS: list[tuple[Any, Any, str]] = [
    (
        X,
        X[:2],
        r"part 'data' is float32\[2\] and the first sample's is float32\[3\]; all samples",
    ),
    (X, X.astype(float), r"part 'data' is float64\[3\] and the first sample's is float32\[3\]"),
    ({"a": X, "b": (1, X)}, {"a": X, "b": (1, X[:1])}, r"part 'b\.1' is float32\[1\]"),
    ({"a": 1, "b": 2}, {"a": 1}, r"has the parts \['a'\] and the first has \['a', 'b'\]"),
    ((1, 2), (1, 2, 3), r"has the parts \['0', '1', '2'\] and the first has \['0', '1'\]"),
    (1, 1.0, r"part 'data' is float64\[\] and the first sample's is int64\[\]"),
    (1, "text", "part 'data' is str of <U4; a batch holds numbers only"),
    ({"a": 1}, {"a": None}, "part 'a' is NoneType of object; a batch holds numbers only"),
    ({"a": 1}, {"a": 1, "indices": 2}, "part named 'indices', which is the batch's own; rename it"),
    ({"a": {"b": 1}}, {"a": {"b": 1}, "a.b": 2}, r"two parts named 'a\.b'; rename one"),
    ({"1": 1}, {1: 1, "1": 2}, "two parts named '1'; rename one"),
]


@pytest.mark.parametrize(("first", "other", "match"), MISFITS, ids=[match for _, _, match in MISFITS])
def test_a_sample_that_does_not_stack_is_named_by_its_slot(first: Any, other: Any, match: str) -> None:
    with pytest.raises(BuildError, match=rf"at slot 2 \(dataset index 2\): \w+: .*{match}"):
        build(StackCollator(), first, first, other, first)


@pytest.mark.parametrize("collator", [StackCollator(), PadCollator(), StackCollator("indices")], ids=str)
@pytest.mark.parametrize("sample", ["text", {"indices": 1}, {"a": b"x"}, None], ids=str)
def test_a_first_sample_that_is_no_tree_of_numbers_is_named_too(collator: Collator[Any], sample: Any) -> None:
    with pytest.raises(BuildError, match=r"at slot 0 \(dataset index 0\): (TypeError|ValueError): "):
        build(collator, sample, 1)


def test_a_lone_sample_cannot_be_called_as_the_batchs_own_tensor() -> None:
    with pytest.raises(SlotError, match="a part named 'indices'"):
        collate(StackCollator("indices"), [1])


def test_a_transform_that_returns_no_sample_is_an_error_that_names_it() -> None:
    def forget(sample: Any, rng: SampleRng) -> None:
        rng.next_u64()

    stream = Stream(Samples([1, 2]), SequentialSampler(2, 2), StackCollator(), seed=0, transform=forget)
    with pytest.raises(BuildError, match=r"at slot 0 .*transform <function .*forget.* returned None; it must return"):
        stream.build(0)
