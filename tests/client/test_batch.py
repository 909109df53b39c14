"""A batch is made of views that live as long as its memory is leased, once what the message says is checked."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loader_client import batch as batches
from loader_client.batch import LeasedMemory, leased_batch
from loader_service.contract.layout import Layout
from loader_service.contract.shards import Shard
from loader_service.errors import ArgumentError, IntegrityError, ProtocolError
from loader_service.sharing.placement import Placement
from loader_service.wire.layouts import pack_layout
from loader_service.wire.messages import Ready
from loader_service.wire.segment import HEADER_BYTES, Segment

LAYOUT = Layout.plan([("x", "int64", [4]), ("y", "<f4", [4, 2]), ("whole", "uint8", [3], "whole")])
READY = Ready(1, 5, 0, 12, 1, 2, 0, Placement("x", 9, 4096), LAYOUT.nbytes, 4, pack_layout(LAYOUT), 8, False)


@pytest.fixture
def segment() -> Segment:
    made = Segment("lsv-x", np.zeros(HEADER_BYTES + LAYOUT.nbytes, np.uint8))
    made.begin(12, 9)
    arrays = LAYOUT.views(made.payload)
    arrays["x"][:] = range(4)
    arrays["y"][:] = np.arange(8).reshape(4, 2)  # [8] -> [4, 2]
    made.commit(12, 9, LAYOUT.nbytes)
    return made


def leased(segment: Segment, ready: Ready = READY, shard: Shard = Shard()) -> Any:  # noqa: B008  # a value that is frozen
    return leased_batch(ready, segment, LeasedMemory(segment, ready.nbytes), shard)


def test_the_arrays_are_views_of_the_segment_in_its_layout(segment: Segment) -> None:
    batch = leased(segment)
    assert (batch.step, batch.epoch, batch.step_in_epoch, batch.rows) == (12, 1, 2, 4)
    assert list(batch) == ["x", "y", "whole"]
    assert batch["y"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    segment.payload[0] = 77
    assert batch["x"][0] == 77
    assert not any(array.flags.writeable or array.flags.owndata for array in batch.values())


@pytest.mark.parametrize("keep", [lambda b: b["y"][1:, 0], lambda b: b["x"].reshape(2, 2).T, lambda b: dict(b), iter])
def test_the_memory_lives_as_long_as_the_last_view(segment: Segment, keep: Any) -> None:
    memory = LeasedMemory(segment, READY.nbytes)
    alive = weakref.ref(memory)
    batch = leased_batch(READY, segment, memory, Shard())
    kept = keep(batch)
    del memory, batch
    gc.collect()
    assert alive() is not None
    del kept
    assert alive() is None


def test_a_shard_has_its_rows_and_all_of_what_is_whole(segment: Segment) -> None:
    batch = leased(segment, shard=Shard(1, 2))
    assert (batch.rows, batch["x"].tolist(), batch["whole"].shape) == (2, [2, 3], (3,))


def test_what_cannot_be_cut_for_a_rank_is_refused(segment: Segment) -> None:
    with pytest.raises(ArgumentError, match="cannot be cut"):
        leased(segment, replace(READY, rows=5), Shard(1, 2))


@pytest.mark.parametrize(
    "changes",
    [{"step": 13}, {"placement": Placement("x", 10, 4096)}, {"nbytes": LAYOUT.nbytes + 64}, {"nbytes": 2**40}],
)
def test_another_batch_than_the_message_says_is_an_integrity_error(segment: Segment, changes: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError, match="segment lsv-x holds"):
        leased(segment, replace(READY, **changes))


def test_a_segment_that_is_written_again_is_an_integrity_error(segment: Segment) -> None:
    segment.begin(20, 10)
    with pytest.raises(IntegrityError):
        leased(segment)


@pytest.mark.parametrize("size", [0, 39, 40, HEADER_BYTES])
def test_a_segment_that_is_too_small_is_an_integrity_error(segment: Segment, size: int) -> None:
    with pytest.raises(IntegrityError):
        leased(Segment("lsv-x", segment.memory[:size]))


def test_a_layout_that_is_larger_than_its_batch_or_none_is_refused(segment: Segment) -> None:
    larger = pack_layout(Layout.plan([("x", "int64", [1000])]))
    with pytest.raises(ProtocolError, match="has tensors of 8000 bytes in"):
        leased(segment, replace(READY, layout=larger))
    with pytest.raises(ProtocolError, match="layout"):
        leased(segment, replace(READY, layout=b"\xc1"))


def test_a_layout_is_unpacked_once_and_one_that_is_large_is_not_kept(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches._unpacked.cache_clear()
    for _ in range(5):
        leased(segment)
    assert batches._unpacked.cache_info().misses == 1
    monkeypatch.setattr(batches, "_KEPT_BYTES", 3)
    leased(segment)
    assert batches._unpacked.cache_info().hits == 4
