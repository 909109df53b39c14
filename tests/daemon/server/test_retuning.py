"""Settings that change while the daemon runs: the parts that follow them; a change that is refused changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from loader_service.daemon.broker.stream_state import StreamState
from loader_service.daemon.config.load import Config
from loader_service.daemon.config.settings import changed_config
from loader_service.daemon.server.retuning import apply_settings, ring_limits
from loader_service.daemon.server.shared_memory import SharedMemoryAllocator
from loader_service.errors import (
    ArgumentError,
    LoaderServiceError,
    MemoryLimitError,
)
from loader_service.sharing.consumer import ConsumerOptions, Grant
from loader_service.sharing.scheduler import RingScheduler
from loader_service.sharing.segment_pool import SegmentPool

PAGE = 4096
CONFIG = Config.of(
    {
        "server": {"workers": 2, "memory_limit": 40 * PAGE},
        "streams": {
            "a": {"factory": "m:f", "prefetch": 4},
            "b": {"factory": "m:g", "args": {"seed": 7}, "prefetch": 8},
        },
    }
)


class FakeWorkers:
    """Workers that are numbers."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def resize(self, count: int) -> None:
        self.counts.append(count)


class Daemon:
    """The parts that a change is applied to."""

    def __init__(self, config: Config = CONFIG) -> None:
        self.config, self.workers = config, FakeWorkers()
        self.memory = SharedMemoryAllocator(config.server.memory_limit_bytes)
        self.served = [self._serve(number, name) for number, name in enumerate(config.streams)]

    def _serve(self, number: int, name: str) -> StreamState:
        stream = self.config.streams[name]
        pool = SegmentPool(self.memory, stream.prefetch, PAGE)
        lanes = RingScheduler(stream.prefetch, pool, count(), ring_limits(self.config, stream))
        return StreamState(name, number, 10, name, {}, lanes)

    def tune(self, stream: str = "", **settings: Any) -> None:
        """As the service does: a refused change is one that raises."""
        config = changed_config(self.config, stream, settings)
        apply_settings(config, self.served, self.workers, self.memory)
        self.config = config

    def state(self) -> Any:
        """All that a change may change."""
        streams = [
            (
                stream.lanes.prefetch,
                stream.lanes.rings.max_lanes,
                stream.lanes.fairness.evict_after_s,
                stream.lanes.pool.reserve,
                [len(lane.ring.slots) for lane in stream.lanes.lanes.values()],
            )
            for stream in self.served
        ]
        return streams, self.memory.limit_bytes, self.workers.counts, self.config

    def refused(self, error: type[LoaderServiceError], stream: str = "", **settings: Any) -> str:
        before, used = self.state(), self.memory.used_bytes
        with pytest.raises(error) as caught:
            self.tune(stream, **settings)
        assert type(caught.value) is error
        assert self.state() == before
        assert self.memory.used_bytes == used
        return caught.value.message


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    made = Daemon()
    yield made
    made.memory.close()


# --- what follows ------------------------------------------------------------------------------------------


def test_the_parts_follow_each_setting(daemon: Daemon) -> None:
    daemon.tune(workers=5, memory_limit="1MiB", evict_after_s=2.5, max_lanes=3, prefetch=6)
    streams, limit_bytes, counts, _ = daemon.state()
    assert (limit_bytes, counts) == (2**20, [5])
    assert streams == [(6, 3, 2.5, 6, [])] * 2
    daemon.tune("b", prefetch=2)
    assert [stream.lanes.prefetch for stream in daemon.served] == [6, 2]
    assert daemon.workers.counts == [5, 5]


def test_rings_that_are_there_have_the_new_size(daemon: Daemon) -> None:
    """And whoever reads goes on where it was."""
    lanes = daemon.served[0].lanes
    lanes.open(1, 0)
    for prefetch in (9, 2, 4):
        daemon.tune("a", prefetch=prefetch)
        assert [len(lane.ring.slots) for lane in lanes.lanes.values()] == [prefetch]
        assert daemon.memory.used_bytes == prefetch * PAGE
    lanes.ask(1, 0)
    claim = lanes.rings.claim(demanded=False)
    assert claim is not None
    [(_, granted)] = lanes.built(claim, "content")
    assert isinstance(granted, Grant)
    assert granted.content == "content"


def test_a_lower_memory_limit_holds_from_the_next_segment_on(daemon: Daemon) -> None:
    daemon.served[0].lanes.open(1, 0)
    daemon.tune(memory_limit=1)
    assert daemon.memory.used_bytes == 4 * PAGE
    with pytest.raises(MemoryLimitError):
        daemon.served[0].lanes.open(2, 1000)
    daemon.tune(memory_limit=0)
    daemon.served[0].lanes.open(2, 1000)


# --- what is refused as a whole ----------------------------------------------------------------------------


@pytest.mark.parametrize(("hold", "prefetch"), [(2, 2), (3, 2), (3, 3), (7, 4)])
def test_a_ring_too_small_for_what_consumers_may_hold_is_refused(daemon: Daemon, hold: int, prefetch: int) -> None:
    """The first stream had followed by then; it is as it was, with its ring."""
    daemon.served[0].lanes.open(1, 0, ConsumerOptions(max_leases=1))
    daemon.served[1].lanes.open(1, 0, ConsumerOptions(max_leases=hold))
    told = daemon.refused(
        ArgumentError, prefetch=prefetch, workers=9, memory_limit="1GiB", evict_after_s=1, max_lanes=1
    )
    assert told == f"prefetch is {prefetch}; for what open consumers may hold it must be at least {hold + 1}"
    daemon.tune(prefetch=hold + 1)
    assert [stream.lanes.prefetch for stream in daemon.served] == [hold + 1] * 2


def test_a_larger_ring_than_memory_allows_is_refused(daemon: Daemon) -> None:
    for stream in daemon.served:
        stream.lanes.open(1, 0)
    told = daemon.refused(MemoryLimitError, prefetch=30, workers=9)
    assert told.startswith("prefetch 30 needs 22 more segments of 4096 bytes, and there is no room for them")
    assert daemon.refused(MemoryLimitError, "a", prefetch=8, memory_limit=15 * PAGE)
    daemon.tune("a", prefetch=8, memory_limit=16 * PAGE)
    assert daemon.memory.used_bytes == 16 * PAGE


def test_what_a_closed_consumer_held_binds_no_setting_and_status_still_tells_of_it(daemon: Daemon) -> None:
    stream = daemon.served[0]
    stream.lanes.open(1, 0, ConsumerOptions(max_leases=3))
    stream.lanes.ask(1, 0)
    claim = stream.lanes.rings.claim(demanded=False)
    assert claim is not None
    stream.lanes.built(claim, "content")
    stream.lanes.close(1)
    daemon.tune("a", prefetch=2)
    assert stream.consumer(1)["hold"] == 3
    assert stream.consumer(1)["leases"] == 1
