"""Two builds of one step: the same bytes, or in which tensors they differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from loader_service.contract.batch import differences

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
