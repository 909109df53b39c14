"""The stream catalog: what workers are told, and that all of them made the same streams."""

from __future__ import annotations

from typing import Any

import pytest

from loader_service.daemon.config.load import Config
from loader_service.daemon.server.stream_catalog import StreamCatalog
from loader_service.daemon.workers.messages import Start, StreamFacts, StreamSpec
from loader_service.errors import FactoryError
from loader_service.wire.segment import HEADER_BYTES


def catalog(**train: Any) -> StreamCatalog:
    streams = {
        "train": {"factory": "a:b", "args": {"seed": 1}} | train,
        "val": {"factory": "a:c", "slot_bytes": "4KiB"},
    }
    return StreamCatalog(Config.of({"server": {"import_paths": ["/src"]}, "streams": streams}))


def facts(fingerprint: str = "f", steps: int = 10, batch_bytes: int | None = None) -> list[StreamFacts]:
    train = StreamFacts("train", steps, fingerprint, {"seed": 1}, batch_bytes)
    return [train, StreamFacts("val", 5, "v", {"seed": 2}, None)]


def test_only_the_first_worker_measures_and_only_what_has_no_size() -> None:
    told = catalog()
    specs = [StreamSpec("train", "a:b", {"seed": 1}, measure=True), StreamSpec("val", "a:c", {}, measure=False)]
    assert told.start_message(0) == Start(["/src"], specs)
    assert not any(spec.measure for worker in (1, 2, 63) for spec in told.start_message(worker).streams)
    assert not catalog(slot_bytes=1).start_message(0).streams[0].measure


def test_workers_that_made_the_same_streams_are_welcome() -> None:
    told = catalog()
    for worker in (1, 0, 2, 0):
        told.check(worker, facts(batch_bytes=1000 if worker == 0 else None))
    assert [one.name for one in told.facts] == ["train", "val"]


@pytest.mark.parametrize("other", [facts(fingerprint="g"), facts(steps=11)])
def test_a_worker_that_made_another_stream_is_named(other: list[StreamFacts]) -> None:
    told = catalog()
    told.check(0, facts())
    with pytest.raises(FactoryError, match="stream 'train': worker 3 made a stream with another fingerprint"):
        told.check(3, other)
    told.check(4, facts())


@pytest.mark.parametrize(("batch_bytes", "payload"), [(None, 0), (0, 0), (1, 1), (3, 3), (4, 5), (1000, 1250)])
def test_a_measured_stream_gets_a_quarter_more_than_its_first_batch(batch_bytes: int | None, payload: int) -> None:
    told = catalog()
    told.check(0, facts(batch_bytes=batch_bytes))
    told.check(1, facts())
    assert told.slot_bytes("train") == HEADER_BYTES + payload


def test_a_configured_size_is_taken_as_it_is() -> None:
    told = catalog(slot_bytes=5000)
    told.check(0, facts(batch_bytes=100_000))
    assert told.slot_bytes("train") == HEADER_BYTES + 5000
    assert told.slot_bytes("val") == HEADER_BYTES + 4096
