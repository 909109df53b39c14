"""Stacked and padded samples: names by path, dtypes as they are, no old byte, and errors that name the slot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from loader_service.contract.collate import (
    BatchContext,
    Collator,
    ImageBatchCollator,
    PadCollator,
    SlotError,
    StackCollator,
)
from loader_service.contract.rng import SampleRng
from loader_service.contract.samplers import SequentialSampler
from loader_service.contract.stream import Stream
from loader_service.errors import ArgumentError, BuildError

Tensors = dict[str, NDArray[Any]]
DTYPES = ["?", "<i1", "<u2", "<i4", "<i8", "<u8", "<f2", "<f4", "<f8", ">f4", "<c8"]


def collate(collator: Collator[Any], samples: Sequence[Any], fill: int = 0xFF) -> Tensors:
    """The batch in memory that holds `fill` in every byte before."""
    context = BatchContext(seed=1, epoch=2, step_in_epoch=3, indices=np.arange(50, 50 + len(samples)))
    layout = collator.plan(samples, context)
    tensors = layout.views(np.full(layout.nbytes, fill, np.uint8))
    collator.write(samples, context, tensors)
    return tensors


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


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    multiple=st.integers(1, 5),
    pad_value=st.sampled_from([0, -100, 7]),
    tail=st.sampled_from([(), (2,), (0,), (1, 3)]),
)
@settings(deadline=None, max_examples=60)
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


def test_no_byte_of_an_earlier_batch_shows_through() -> None:
    samples = [(np.arange(i % 3, dtype=np.uint8), {"x": np.float64(i)}) for i in range(5)]
    fixed = [(np.arange(3, dtype=np.uint8), {"x": np.float64(i)}) for i in range(5)]
    collators: list[tuple[Collator[Any], list[Any]]] = [(PadCollator(4, 3), samples), (StackCollator(), fixed)]
    for collator, given_samples in collators:
        ones, zeros = (collate(collator, given_samples, fill) for fill in (0xFF, 0))
        assert {name: a.tobytes() for name, a in ones.items()} == {name: a.tobytes() for name, a in zeros.items()}


def test_an_infinite_pad_value_is_one_of_floats() -> None:
    padded = collate(PadCollator(pad_value=-math.inf), [np.ones(1, np.float32), np.ones(2, np.float32)])
    assert padded["tokens"].tolist() == [[1, -math.inf], [1, 1]]


class Samples(list[Any]):
    """A dataset; as a subclass it has no fingerprint, which no test here needs."""


def build(collator: Collator[Any], *samples: Any) -> Tensors:
    count = len(samples)
    return dict(Stream(Samples(samples), SequentialSampler(count, count), collator, seed=0).build(0))


@pytest.mark.parametrize("pad_value", [-1, 0.5, 256, math.nan, math.inf])
def test_a_pad_value_that_a_part_cannot_hold_is_refused(pad_value: float) -> None:
    with pytest.raises(BuildError, match=rf"pad_value {pad_value} cannot stand in part 'tokens', which is uint8"):
        build(PadCollator(pad_value=pad_value), np.zeros(3, np.uint8))


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


@pytest.mark.parametrize(
    "other",
    [X.astype(float), np.zeros((3, 1), np.float32), np.float32(1), {"x": X}, (X, X), "text", {"indices": X}, [None]],
    ids=lambda value: str(value)[:20],
)
def test_a_sequence_that_differs_in_more_than_its_length_is_named_by_its_slot(other: Any) -> None:
    with pytest.raises(BuildError, match=r"at slot 1 \(dataset index 1\): \w+: "):
        build(PadCollator(), X, other)
    assert build(PadCollator(), X, X[:1])["tokens_lengths"].tolist() == [3, 1]


@pytest.mark.parametrize("collator", [StackCollator(), PadCollator(), StackCollator("indices")], ids=str)
@pytest.mark.parametrize("sample", ["text", {"indices": 1}, {"a": b"x"}, None], ids=str)
def test_a_first_sample_that_is_no_tree_of_numbers_is_named_too(collator: Collator[Any], sample: Any) -> None:
    with pytest.raises(BuildError, match=r"at slot 0 \(dataset index 0\): (TypeError|ValueError): "):
        build(collator, sample, 1)


def test_a_lone_sample_cannot_be_called_as_the_batchs_own_tensor() -> None:
    with pytest.raises(SlotError, match="a part named 'indices'"):
        collate(StackCollator("indices"), [1])


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


def test_a_transform_that_returns_no_sample_is_an_error_that_names_it() -> None:
    def forget(sample: Any, rng: SampleRng) -> None:
        rng.next_u64()

    stream = Stream(Samples([1, 2]), SequentialSampler(2, 2), StackCollator(), seed=0, transform=forget)
    with pytest.raises(BuildError, match=r"at slot 0 .*transform <function .*forget.* returned None; it must return"):
        stream.build(0)
