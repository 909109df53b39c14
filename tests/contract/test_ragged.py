"""Line images in one block: a sequence of samples, and rows that do not lie in the block are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loader_service.contract.ragged import RaggedImages
from loader_service.errors import ArgumentError


def two() -> RaggedImages:
    """Images of height 2 and of widths 1 and 2; the second has no target."""
    return RaggedImages(
        values=np.arange(6, dtype=np.float32),
        starts=np.array([0, 2]),
        widths=np.array([1, 2]),
        channels=1,
        height=2,
        targets=np.array([7], np.int32),
        target_starts=np.array([0, 1]),
        target_lengths=np.array([1, 0]),
        labels=np.array([4, 5], np.int32),
    )


def test_it_is_a_sequence_of_samples() -> None:
    first, second = two()
    assert (first.image.tolist(), first.target.tolist(), first.label) == ([[[0], [1]]], [7], 4)
    assert (second.image.tolist(), second.target.tolist(), second.label) == ([[[2, 3], [4, 5]]], [], 5)
    assert [sample.label for sample in two()[::-1]] == [5, 4]


def test_samples_are_views_of_the_block() -> None:
    images = two()
    assert images[1].image.base is not None
    assert np.shares_memory(images[1].image, images.values)


@pytest.mark.parametrize(
    "change",
    [
        {"starts": np.array([0, 3])},
        {"starts": np.array([-1, 2])},
        {"widths": np.array([1, -1])},
        {"widths": np.array([1, 2**62])},
        {"target_lengths": np.array([1, 1])},
        {"target_starts": np.array([2, 0])},
    ],
)
def test_a_row_that_does_not_lie_in_its_block_is_named(change: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=r"of row [01] begins"):
        replace(two(), **change)


@pytest.mark.parametrize(
    "change",
    [
        {"values": np.arange(6)},
        {"values": np.zeros((2, 3), np.float32)},
        {"values": np.zeros(12, np.float32)[::2]},
        {"labels": np.zeros(3, np.int32)},
        {"widths": [1, 2]},
        {"height": 2.0},
        {"channels": -1},
    ],
)
def test_another_kind_of_array_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        replace(two(), **change)
