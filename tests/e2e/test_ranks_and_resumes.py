"""Ranks read their rows of each global batch; a run resumes anywhere, with another world size, or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import loader_client
from loader_client import Batch, Client
from loader_service.errors import ArgumentError, StreamChangedError
from tests.e2e.harness import digests, eventually, service, stream_status
from tests.e2e.streams import small


def _joined(parts: list[Batch]) -> dict[str, NDArray[Any]]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _same(left: Mapping[str, NDArray[Any]], right: Mapping[str, NDArray[Any]]) -> bool:
    return list(left) == list(right) and all(np.array_equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("world", [1, 2, 3, 5, 8])
def test_the_ranks_of_a_job_share_one_lane_and_their_rows_are_the_global_batch(world: int) -> None:
    with (
        service("small", batch_size=5) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        ExitStack() as stack,
    ):
        ranks = [
            stack.enter_context(client.open("s", 3, 23, pace="wait", shard=(rank, world))) for rank in range(world)
        ]
        for step in range(3, 23):
            parts = [next(rank) for rank in ranks]
            assert [part.rows for part in parts] == [(r + 1) * 5 // world - r * 5 // world for r in range(world)]
            assert _same(_joined(parts), small(batch_size=5).build(step))
            assert all(not array.flags.owndata and not array.flags.writeable for p in parts for array in p.values())
            del parts
        assert len(stream_status(client)["lanes"]) == 1
        assert {count for _, count in stream_status(client)["builds"]} == {1}
        with pytest.raises(StopIteration):
            next(ranks[0])


def _run(client: Client, world: int, state: dict[str, Any] | None, steps: int) -> tuple[list[dict[str, Any]], Any]:
    """A job of `world` ranks that goes on from `state` for some steps: the global batches, and its state."""
    batches = []
    with ExitStack() as stack:
        ranks = [stack.enter_context(client.open("s", shard=(rank, world))) for rank in range(world)]
        for rank in ranks if state is not None else ():
            rank.load_state_dict(state or {})
        for _ in range(steps):
            batches.append(_joined([next(rank) for rank in ranks]))
        states = [rank.state_dict() for rank in ranks]
    assert all(one == states[0] for one in states)
    return batches, json.loads(json.dumps(states[0]))


def test_one_rank_then_two_then_three_across_resumes_read_the_same_global_batches() -> None:
    with service("small") as daemon, loader_client.connect(daemon.endpoint) as client:
        seen: list[dict[str, Any]] = []
        state: dict[str, Any] | None = None
        for world in (1, 2, 3):
            batches, state = _run(client, world, state, 7)
            seen += batches
        assert state is not None
        assert state["step"] == 21
        assert all(_same(batch, small().build(step)) for step, batch in enumerate(seen))


def test_a_state_of_another_stream_is_refused_and_the_part_that_differs_is_named() -> None:
    with service("small", seed=3) as daemon, loader_client.connect(daemon.endpoint) as client:
        with client.open("s", 17) as consumer:
            state = consumer.state_dict()
        assert state["step"] == 17
        assert state["fingerprint"] == small(seed=3).fingerprint
    with (
        service("small", seed=4) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", 5) as consumer,
    ):
        with pytest.raises(StreamChangedError, match=r"seed: 4 here, 3 there.*strict=False"):
            consumer.load_state_dict(state)
        assert next(consumer).step == 5
        consumer.load_state_dict(state, strict=False)
        batch = next(consumer)
        assert (batch.step, batch.digest()) == (17, small(seed=4).build(17).digest())
        del batch
        with pytest.raises(ArgumentError, match="no step"):
            consumer.load_state_dict({"fingerprint": consumer.fingerprint})


def test_any_step_at_any_time_and_seeks_while_iterating() -> None:
    with (
        service("small") as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", 0, 50) as consumer,
    ):
        reference = digests(small(), 0, 50)
        for step in (49, 0, 48, 7, 7, 6, 8, 31):
            with consumer.get(step) as batch:
                assert (batch.step, batch.digest()) == (step, reference[step])
        assert consumer.next_step == 32
        consumer.seek(40)
        with next(consumer) as batch:
            assert batch.digest() == reference[40]
        consumer.seek(3)
        assert [batch.digest() for batch in consumer] == reference[3:]


@pytest.mark.parametrize("step", [10_000, 10**9, 2**62])
def test_a_late_joiner_begins_as_one_at_step_zero_does(step: int) -> None:
    with service("small") as daemon, loader_client.connect(daemon.endpoint) as client:
        with client.open("s", step) as consumer, consumer.get(step) as batch:
            assert batch.digest() == small().build(step).digest()
        assert stream_status(client)["built"] <= 5


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"shard": (2, 2)}, r"rank is 2; it must lie in \[0, 1\]"),
        ({"hold": 4}, "hold is 4 and prefetch 4"),
        ({"hold": 0}, "hold is 0"),
        ({"pace": "run"}, "pace is 'run'"),
        ({"patience_s": -1.0}, "patience_s is -1.0"),
        ({"patience_s": float("nan")}, "patience_s is nan"),
        ({"start_step": "alive"}, "start_step is 'alive'"),
    ],
)
def test_what_a_consumer_cannot_be_opened_with_is_named(options: dict[str, Any], told: str) -> None:
    with service("small") as daemon, loader_client.connect(daemon.endpoint) as client:
        with pytest.raises(ArgumentError, match=told):
            client.open("s", **options)
        eventually(lambda: client.status()["consumers"] == [], "the last leases have ended")
