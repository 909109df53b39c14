"""Fault schedules: a function of seed and length, every kind in it, a quiet end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.soak.schedule import FaultKind, fault_schedule


@given(st.integers(), st.floats(0, 300), st.booleans())
def test_a_schedule_depends_on_its_arguments_alone(seed: int, duration_s: float, fill_shm: bool) -> None:
    faults = fault_schedule(seed, duration_s, fill_shm=fill_shm)
    assert faults == fault_schedule(seed, duration_s, fill_shm=fill_shm)
    times = [fault.at_s for fault in faults]
    assert times == sorted(times)
    assert all(1.0 <= at_s <= duration_s - 2.0 for at_s in times)


@pytest.mark.parametrize("fill_shm", [False, True])
def test_a_long_schedule_has_every_kind_that_was_asked_for(fill_shm: bool) -> None:
    kinds = {fault.kind for fault in fault_schedule(1, 120.0, fill_shm=fill_shm)}
    assert kinds == set(FaultKind) - (set() if fill_shm else {FaultKind.FILL_SHM})


def test_the_daemon_is_left_alone_near_the_end() -> None:
    faults = fault_schedule(2, 200.0)
    assert all(fault.at_s <= 120 for fault in faults if fault.kind in (FaultKind.KILL_DAEMON, FaultKind.END_DAEMON))
    assert any(fault.at_s > 120 for fault in faults)
