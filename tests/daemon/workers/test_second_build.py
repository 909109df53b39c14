"""The second build of a step: the same bytes say nothing, other bytes name the tensors, no memory is no verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from loader_service.contract.layout import Layout
from loader_service.contract.stream import Stream
from loader_service.daemon.workers.messages import Verify
from loader_service.daemon.workers.second_build import second_build
from loader_service.data import synthetic_lines
from loader_service.errors import IntegrityError, SharedMemoryError
from loader_service.sharing.placement import Placement
from loader_service.wire.layouts import pack_layout
from loader_service.wire.segment import HEADER_BYTES, Segment

STEP, GENERATION = 7, 3


def stream() -> Stream:
    return synthetic_lines(count=20, batch_size=4)


@pytest.fixture
def built() -> tuple[Verify, Segment]:
    """The first build, in a segment of this process's own memory, and the message that asks for the second."""
    layouts: list[Layout] = []
    segment = Segment("lsv-test", np.zeros(2**20, np.uint8))

    def allocate(layout: Layout) -> NDArray[np.uint8]:
        layouts.append(layout)
        return segment.payload[: layout.nbytes]

    segment.begin(STEP, GENERATION)
    stream().build_into(STEP, allocate)
    nbytes = layouts[0].nbytes
    segment.commit(STEP, GENERATION, nbytes)
    placement = Placement("lsv-test", GENERATION, HEADER_BYTES + nbytes)
    return Verify(5, 0, STEP, placement, nbytes, pack_layout(layouts[0])), segment


def finding(segment: Segment) -> Callable[[str], Segment]:
    return lambda name: segment


def test_equal_bytes_have_no_difference(built: tuple[Verify, Segment]) -> None:
    verify, segment = built
    verdict = second_build(verify, stream(), finding(segment))
    assert (verdict.task, verdict.differences) == (5, [])


def test_other_bytes_name_their_tensor(built: tuple[Verify, Segment]) -> None:
    verify, segment = built
    segment.payload[0] ^= 1
    verdict = second_build(verify, stream(), finding(segment))
    assert len(verdict.differences) == 1
    assert "images" in verdict.differences[0]  # the first tensor of the layout


def test_the_first_build_is_not_written(built: tuple[Verify, Segment]) -> None:
    verify, segment = built
    before = segment.memory.copy()
    second_build(verify, stream(), finding(segment))
    assert (segment.memory == before).all()


def test_a_segment_that_holds_another_build_is_an_error(built: tuple[Verify, Segment]) -> None:
    verify, segment = built
    later = replace(verify, placement=replace(verify.placement, generation=GENERATION + 1))
    with pytest.raises(IntegrityError):
        second_build(later, stream(), finding(segment))


def test_a_segment_that_is_gone_is_no_verdict(built: tuple[Verify, Segment]) -> None:
    def gone(name: str) -> Segment:
        raise SharedMemoryError(f"{name} is gone")

    verdict = second_build(built[0], stream(), gone)
    assert (verdict.differences, verdict.skipped) == ([], "lsv-test is gone")


def test_no_memory_for_it_is_no_verdict(built: tuple[Verify, Segment], monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(layout: Layout) -> NDArray[np.uint8]:
        raise MemoryError

    monkeypatch.setattr("loader_service.daemon.workers.second_build._memory", exhausted)
    verify, segment = built
    verdict = second_build(verify, stream(), finding(segment))
    assert verdict.differences == []
    assert "memory" in verdict.skipped
