"""A stream's report and its counts: plain values, of this moment, of bounded size."""

from __future__ import annotations

import msgpack

from loader_service.daemon.broker.stream_state import StreamMetrics
from loader_service.wire.messages import Get
from tests.daemon.broker.broker_harness import PAGE, BrokerHarness


def test_a_report_is_plain_values() -> None:
    harness = BrokerHarness(prefetch=2, streams="a")
    harness.get(harness.open(), 0)
    harness.build()
    report = harness.broker.streams["a"].report(builds=True)
    assert msgpack.unpackb(msgpack.packb(report)) == report


def test_a_report_tells_of_the_lanes_and_their_slots() -> None:
    harness = BrokerHarness(prefetch=2, streams="a")
    consumer = harness.open(step=6)
    harness.get(consumer, 6)
    harness.build()
    [lane] = harness.broker.streams["a"].report(builds=False)["lanes"]
    assert (lane["lane"], lane["base"], lane["waits_for_consumers"]) == (0, 6, [consumer])
    told = [(slot["slot"], slot["step"], slot["state"], slot["generation"], slot["leased"]) for slot in lane["slots"]]
    assert told == [(0, 6, "ready", 1, True), (1, 7, "building", 1, False)]
    assert {slot["bytes"] for slot in lane["slots"]} == {PAGE}


def test_builds_are_told_only_where_they_are_asked_for() -> None:
    harness = BrokerHarness(prefetch=2, streams="a")
    harness.get(harness.open(), 0)
    harness.build()
    stream = harness.broker.streams["a"]
    assert "builds" not in stream.report(builds=False)
    assert stream.report(builds=True)["builds"] == [[0, 1]]


def test_a_consumer_is_told_with_what_it_waits_for_and_holds() -> None:
    harness = BrokerHarness(prefetch=4, streams="a")
    consumer = harness.open(step=3, hold=2)
    harness.get(consumer, 3)
    harness.build()
    harness.say(1, Get(99, consumer, 4, 1, harness.holds(consumer), True))
    told = harness.broker.streams["a"].consumer(consumer)
    assert told == {
        "consumer": consumer,
        "stream": "a",
        "position": 4,
        "lane": 0,
        "pace": "split",
        "hold": 2,
        "waits_for": 4,
        "holds": [3],
        "leases": 1,
        "held_others_up_s": 0.0,
        "evicted": "",
    }


def test_the_latest_builds_are_counted_by_step_in_bounded_memory() -> None:
    metrics = StreamMetrics()
    metrics.latest.extend([5, 3, 5])
    assert metrics.builds() == [[3, 1], [5, 2]]
    metrics.latest.extend(range(10, 10 + 2**16))
    assert len(metrics.latest) == 2**16
    assert metrics.builds()[0] == [10, 1]
