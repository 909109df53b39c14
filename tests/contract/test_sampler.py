"""The number of steps of an epoch, which all samplers share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_service.contract.samplers.sampler import count_steps
from loader_service.errors import ArgumentError


@given(st.integers(1, 2**40), st.integers(1, 2**20))
def test_short_batches_are_dropped_or_counted(n: int, batch_size: int) -> None:
    whole = count_steps(n, batch_size, drop_last=False)
    assert (whole - 1) * batch_size < n <= whole * batch_size
    if n >= batch_size:
        full = count_steps(n, batch_size, drop_last=True)
        assert full * batch_size <= n < (full + 1) * batch_size


@pytest.mark.parametrize("drop_last", [True, False])
def test_nothing_to_draw_from_is_refused(drop_last: bool) -> None:
    with pytest.raises(ArgumentError, match="n is 0"):
        count_steps(0, 4, drop_last)


def test_no_full_batch_is_refused_with_the_remedy() -> None:
    with pytest.raises(ArgumentError, match="drop_last=False"):
        count_steps(3, 4, drop_last=True)
