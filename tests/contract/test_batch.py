"""Batches: read-only, released by name only, and told apart by their digest."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from loader_service.contract.batch import Batch, differences
from loader_service.data import synthetic_lines
from loader_service.errors import ArgumentError, ReleasedError


def make_batch(**changes: Any) -> Batch:
    tensors: dict[str, NDArray[Any]] = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "y": np.arange(2)}
    place: dict[str, Any] = {"tensors": tensors, "step": 7, "epoch": 1, "step_in_epoch": 3}
    return Batch(**place | changes)


def test_a_batch_is_a_mapping_from_name_to_array() -> None:
    batch = make_batch()
    assert isinstance(batch, Mapping)
    assert list(batch) == ["x", "y"]
    assert len(batch) == 2
    assert "x" in batch
    assert "z" not in batch
    assert batch["x"].shape == (2, 3)
    assert (batch.step, batch.epoch, batch.step_in_epoch) == (7, 1, 3)
    with pytest.raises(KeyError):
        batch["z"]


def test_repr_names_the_step_and_the_tensors() -> None:
    batch = make_batch()
    assert repr(batch) == "Batch(step=7, epoch=1, x float32[2, 3], y int64[2])"
    batch.release()
    assert repr(batch) == "Batch(step=7, released)"


def test_arrays_of_a_built_batch_are_read_only() -> None:
    for array in synthetic_lines(batch_size=4, count=8).build(0).values():
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_a_copy_is_writeable_and_independent() -> None:
    batch = synthetic_lines(batch_size=4, count=8).build(1)
    copy = batch.copy()
    assert copy.digest() == batch.digest()
    before = batch.digest()
    for array in copy.values():
        array[...] = 1
    batch_digest = batch.digest()
    assert batch_digest == before
    assert copy.digest() != before
    assert (copy.step, copy.epoch, copy.step_in_epoch) == (batch.step, batch.epoch, batch.step_in_epoch)


def test_a_copy_outlives_the_release_of_its_batch() -> None:
    batch = make_batch()
    copy = batch.copy()
    batch.release()
    assert copy["y"].tolist() == [0, 1]


def test_a_released_batch_says_so_and_how_to_keep_one() -> None:
    batch = make_batch()
    batch.release()
    for use in (lambda: batch["x"], lambda: list(batch), lambda: len(batch), batch.copy, batch.digest):
        with pytest.raises(ReleasedError, match=r"batch 7 was released.*batch\.copy\(\)"):
            use()
    with pytest.raises(ReleasedError), batch:
        pass


def test_release_may_be_called_again() -> None:
    batch = make_batch()
    batch.release()
    batch.release()


def test_arrays_taken_before_the_release_stay_valid() -> None:
    batch = synthetic_lines(batch_size=4, count=8).build(0)
    expected = batch.copy()["images"]
    images = batch["images"]
    row = images[1]
    batch.release()
    del batch
    gc.collect()
    assert np.array_equal(images, expected)
    assert np.array_equal(row, expected[1])


def test_release_drops_the_batchs_own_references_only() -> None:
    array = np.arange(3)
    batch = make_batch(tensors={"a": array})
    watch = weakref.ref(array)
    batch.release()
    assert watch() is array
    del array
    gc.collect()
    assert watch() is None


def test_with_releases_at_its_end_and_after_an_error() -> None:
    with make_batch() as batch:
        assert batch["y"].tolist() == [0, 1]
    with pytest.raises(ReleasedError):
        batch["y"]
    with pytest.raises(RuntimeError, match="stop"), make_batch() as batch:
        raise RuntimeError("stop")
    with pytest.raises(ReleasedError):
        batch["y"]


def test_batches_compare_by_identity_and_can_be_kept_in_sets() -> None:
    batch, twin = make_batch(), make_batch()
    assert batch == batch
    assert batch != twin
    assert len({batch, twin}) == 2
    assert batch.digest() == twin.digest()


@pytest.mark.parametrize(
    "changes",
    [
        {"step": 8},
        {"epoch": 2},
        {"step_in_epoch": 4},
        {"tensors": {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}},
        {"tensors": {"x": np.arange(6, dtype=np.float32).reshape(3, 2), "y": np.arange(2)}},
        {"tensors": {"x": np.arange(6, dtype=np.int32).reshape(2, 3), "y": np.arange(2)}},
        {"tensors": {"x": np.ones((2, 3), np.float32), "y": np.arange(2)}},
        {"tensors": {"X": np.arange(6, dtype=np.float32).reshape(2, 3), "y": np.arange(2)}},
    ],
    ids=str,
)
def test_a_digest_changes_with_every_part(changes: dict[str, Any]) -> None:
    assert make_batch(**changes).digest() != make_batch().digest()


@pytest.mark.parametrize(
    "array", [np.empty((0, 3), np.int32), np.array(2.5), np.arange(12).reshape(3, 4)[:, ::2]], ids=str
)
def test_a_digest_reads_empty_scalar_and_strided_arrays(array: NDArray[Any]) -> None:
    assert make_batch(tensors={"a": array}).digest() == make_batch(tensors={"a": array.copy()}).digest()


def test_a_batch_survives_pickle() -> None:
    batch = make_batch()
    assert pickle.loads(pickle.dumps(batch)).digest() == batch.digest()


@pytest.mark.parametrize("rows", [0, 1, 2, 7])
def test_a_batch_tells_how_many_samples_stand_in_it_and_so_do_its_copies(rows: int) -> None:
    batch = make_batch(rows=rows)
    assert [one.rows for one in (batch, batch.copy(), pickle.loads(pickle.dumps(batch)))] == [rows] * 3
    assert batch.digest() == make_batch().digest(), "its bytes are its tensors'"


X = np.arange(6, dtype=np.int32).reshape(2, 3)  # [6] -> [2, 3]
PLACES = (
    st.sampled_from(["<f4", "<i8", "|b1", "|u1", "<c8"])
    .map(np.dtype)
    .flatmap(lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, min_side=0)))
)


def changed(tensor: NDArray[Any], place: int, bit: int) -> NDArray[Any]:
    """A copy with one bit of one element turned."""
    copy = tensor.copy().reshape(-1)  # [...] -> [elements]
    copy.view(np.uint8)[place * tensor.dtype.itemsize] ^= 1 << bit
    return copy.reshape(tensor.shape)  # [elements] -> [...]


@given(PLACES, st.data())
def test_a_turned_bit_is_found_where_it_is_and_a_copy_is_the_same(tensor: NDArray[Any], data: st.DataObject) -> None:
    assert differences({"x": tensor}, {"x": tensor.copy()}) == []
    if tensor.size:
        place = data.draw(st.integers(0, tensor.size - 1))
        [text] = differences({"x": tensor}, {"x": changed(tensor, place, data.draw(st.integers(0, 7)))})
        where = [int(one) for one in np.unravel_index(place, tensor.shape)]
        assert text.startswith(f"tensor 'x': 1 of {tensor.size} elements differ, the first at {where}: ")


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (X.astype(np.int64), "tensor 'x': int32[2, 3], then int64[2, 3]"),
        (X.T, "tensor 'x': int32[2, 3], then int32[3, 2]"),
        (X[:1], "tensor 'x': int32[2, 3], then int32[1, 3]"),
        (X * (X % 3 != 1), "tensor 'x': 2 of 6 elements differ, the first at [0, 1]: 1, then 0"),
    ],
)
def test_another_dtype_shape_or_value_is_told(other: NDArray[Any], text: str) -> None:
    assert differences({"y": X, "x": X}, {"y": X, "x": other}) == [text]


def test_a_tensor_that_one_build_lacks_is_told_and_so_is_another_order() -> None:
    assert differences({"x": X, "y": X}, {"x": X}) == ["tensor 'y': int32[2, 3], then nothing"]
    assert differences({}, {"x": X}) == ["tensor 'x': nothing, then int32[2, 3]"]
    assert differences({"x": X, "y": X}, {"y": X, "x": X}) == ["the order of the tensors: ['x', 'y'], then ['y', 'x']"]


def test_bytes_count_and_not_numbers() -> None:
    nan = np.array([np.nan])
    assert differences({"x": nan}, {"x": nan.copy()}) == []
    assert differences({"x": np.array([0.0])}, {"x": np.array([-0.0])}) != []
    assert differences({"x": X}, {"x": np.asfortranarray(X)}) == [], "how it lies in memory is not its content"


def test_a_name_that_is_none_of_its_tensors_is_told_with_those_that_are() -> None:
    names: list[Any] = ["z", 5, None, []]
    for name in names:
        with pytest.raises(KeyError, match="the tensors of this batch are 'x', 'y'"):
            make_batch()[name]
    assert make_batch().get("z") is None
    assert "z" not in make_batch()


def test_other_libraries_make_a_batch_of_new_arrays_from_its_type() -> None:
    """As accelerate, Lightning and transformers move a mapping to a device."""
    batch = make_batch()
    moved = type(batch)({name: array + 1 for name, array in batch.items()})
    assert isinstance(moved, Batch)
    assert {name: array.tolist() for name, array in moved.items()} == {
        name: (array + 1).tolist() for name, array in batch.items()
    }
    assert (moved.step, moved.epoch, moved.step_in_epoch) == (-1, -1, -1)
    assert repr(type(batch)({"a": "no array"})) == "Batch(step=-1, epoch=-1, a str)"


@pytest.mark.parametrize("tensors", [None, 5, "ab", [("a", 1)], dict], ids=str)
def test_what_is_no_mapping_makes_no_batch(tensors: Any) -> None:
    with pytest.raises(ArgumentError, match="tensors is"):
        Batch(tensors)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda batch: pickle.loads(pickle.dumps(batch))])
def test_a_copied_batch_has_the_same_bytes(copied: Any) -> None:
    assert copied(make_batch()).digest() == make_batch().digest()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda batch: pickle.loads(pickle.dumps(batch))])
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_copies_and_pickles_have_memory_of_their_own_that_can_be_written(copied: Any, protocol: int) -> None:
    batch = synthetic_lines(batch_size=4, count=8).build(5)
    for other in (copied(batch), pickle.loads(pickle.dumps(batch, protocol))):
        assert (other.digest(), other.rows) == (batch.digest(), batch.rows)
        for name, array in other.items():
            assert not np.shares_memory(array, batch[name])
            array[...] = 0
    batch.release()
    with pytest.raises(ReleasedError):
        copied(batch)


def test_what_is_no_array_is_copied_as_it_can_be() -> None:
    class Tensor:
        """As torch's, as far as a copy cares."""

        def clone(self) -> str:
            return "a clone"

    values: Any = {"x": Tensor(), "name": "text"}
    assert dict(Batch(values).copy()) == {"x": "a clone", "name": "text"}


def test_dtypes_that_numpy_writes_alike_have_digests_of_their_own() -> None:
    zeros = [np.zeros(2, dtype) for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e3m4, np.int8)]
    assert len({Batch({"x": array}).digest() for array in zeros}) == 3
