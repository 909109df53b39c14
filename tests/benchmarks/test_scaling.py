"""Axes of the measurements of scaling: each value makes a case, and each stream has the size that it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.scaling import blocks
from benchmarks.scaling.axes import AXES, Axis


@pytest.mark.parametrize("axis", AXES.values(), ids=list(AXES))
def test_each_value_of_an_axis_is_a_case_of_its_own(axis: Axis, tmp_path: Path) -> None:
    cases = [axis.case(value) for value in axis.values]
    assert len({case.name for case in cases}) == len(cases)
    assert list(axis.values) == sorted(axis.values)
    for case in cases:
        server, *readers = case.roles(tmp_path)
        assert not server.consumes
        assert readers
        assert all(reader.consumes for reader in readers)


@pytest.mark.parametrize("batch_bytes", [64, 16 << 10, 4 << 20])
def test_a_batch_of_blocks_has_the_bytes_that_were_asked_for(batch_bytes: int) -> None:
    assert blocks.blocks(batch_bytes).build(1023)["block"].nbytes == batch_bytes


@pytest.mark.parametrize("count", [16, 1000, 10**12])
def test_a_dataset_of_any_length_is_shuffled_without_a_table(count: int) -> None:
    batch = blocks.numbers(count).build(10**9)
    assert batch["block"].shape == (16, 1024)
    assert 0 <= float(batch["block"].max()) < count
