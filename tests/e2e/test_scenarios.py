"""One table of scenarios over every way to read a stream: the same batches, the same errors, the same end.

They compare all that a trainer sees: batches with their places and digests, errors with all their fields, ends. The
right batches and errors are those of the stream's own `build`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from loader_service.contract.batch import Batch
from loader_service.errors import BuildError, ConsumerClosedError, LoaderServiceError
from tests.e2e.backends import BACKENDS, Backend, Reader, Served

STREAMS = {
    "small": Served("small"),
    "one_slot": Served("small", prefetch=1),
    "short_last": Served("short_last"),
    "padded": Served("padded"),
    "growing": Served("growing"),
    "fails_at_9": Served("two_arguments"),
    "fails_at_0": Served("two_arguments", {"bad": 1}),
    "corrupt": Served("corrupt"),
    "odd_shape": Served("odd_ones", {"kind": "shape"}),
    "odd_dtype": Served("odd_ones", {"kind": "dtype"}),
    "odd_type": Served("odd_ones", {"kind": "type"}),
    "bad_transform": Served("bad_transform"),
}
MADE = {name: one.make() for name, one in STREAMS.items()}
FAR = 10**9


def _seen(batch: Batch) -> tuple[Any, ...]:
    with batch:
        shapes = {name: (array.dtype.str, array.shape) for name, array in batch.items()}
        return ("batch", batch.step, batch.epoch, batch.step_in_epoch, batch.rows, shapes, batch.digest())


def _told(error: LoaderServiceError) -> tuple[Any, ...]:
    details = {key: value for key, value in error.details().items() if key != "remote_traceback"}
    return ("error", type(error).__name__, error.code, str(error), details)


def _right(stream: str, step: int, shard: tuple[int, int] = (0, 1)) -> tuple[Any, ...]:
    return _seen(MADE[stream].build(step, shard))


def _attempt(read: Callable[[], Batch]) -> tuple[Any, ...]:
    try:
        return _seen(read())
    except StopIteration:
        return ("end",)
    except LoaderServiceError as error:
        return _told(error)


def _until_it_ends(reader: Reader, limit: int = 100) -> list[tuple[Any, ...]]:
    """All that `next` gives, up to the first end or error."""
    seen = []
    for _ in range(limit):
        seen.append(_attempt(partial(next, reader)))
        if seen[-1][0] != "batch":
            break
    return seen


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    with BACKENDS[request.param](STREAMS) as opened:
        yield opened


@pytest.mark.parametrize("start", [0, 1, 7, 11, 12, 13, 31, 1000, FAR, 2**62])
def test_iteration_begins_anywhere_and_ends_before_its_stop(backend: Backend, start: int) -> None:
    with backend.open("small", start, start + 4) as reader:
        assert _until_it_ends(reader) == [*(_right("small", start + k) for k in range(4)), ("end",)]
        assert _until_it_ends(reader) == [("end",)], "an end is final"


@pytest.mark.parametrize("stream", ["small", "one_slot", "short_last", "padded", "growing"])
def test_two_epochs_are_the_same_everywhere(backend: Backend, stream: str) -> None:
    stop = 2 * MADE[stream].steps_per_epoch + 1
    with backend.open(stream, 0, stop) as reader:
        assert _until_it_ends(reader) == [*(_right(stream, step) for step in range(stop)), ("end",)]


def test_nothing_is_read_where_nothing_is_asked_for(backend: Backend) -> None:
    with backend.open("small", 5, 5) as reader:
        assert _until_it_ends(reader) == [("end",)]


@pytest.mark.parametrize("steps", [[5, 0, 3, 4, 200, 1, 2, FAR, 11, 11, 12], [7], [0, 0, 0], [3, 2, 1, 0], [2**62, 1]])
def test_any_step_can_be_got_and_iteration_goes_on_behind_it(backend: Backend, steps: list[int]) -> None:
    with backend.open("small", 5) as reader:
        for step in steps:
            assert _attempt(partial(reader.get, step)) == _right("small", step)
            assert reader.next_step == step + 1
        assert _attempt(partial(next, reader)) == _right("small", steps[-1] + 1)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_ranks_read_their_rows_of_the_global_batch(backend: Backend, world: int) -> None:
    for step in (0, 11, 25):
        parts = []
        for rank in range(world):
            with backend.open("small", step, step + 1, shard=(rank, world)) as reader:
                parts.append(next(reader).copy())
        assert [part.rows for part in parts] == [4 * (r + 1) // world - 4 * r // world for r in range(world)]
        whole = MADE["small"].build(step)
        for name in whole:
            assert np.array_equal(np.concatenate([part[name] for part in parts]), whole[name])


@pytest.mark.parametrize("world", [(1, 2, 3), (3, 1, 2)])
def test_a_run_that_stops_and_goes_on_reads_what_an_uninterrupted_one_does(
    backend: Backend, world: tuple[int, ...]
) -> None:
    step, seen = 0, []
    for size in world:
        with backend.open("small", step, shard=(size - 1, size)) as reader:
            seen += [_attempt(partial(next, reader)) for _ in range(5)]  # called at once
            step = reader.next_step
    assert step == 15
    assert seen == [
        _right("small", g, (size - 1, size)) for g, size in zip(range(15), np.repeat(world, 5), strict=True)
    ]


def _failure(stream: str, step: int) -> tuple[Any, ...]:
    with pytest.raises(BuildError) as raised:
        MADE[stream].build(step)
    return _told(raised.value)


@pytest.mark.parametrize(
    ("stream", "step", "slot", "index", "cause"),
    [
        ("fails_at_9", 9, 1, 37, "tests.e2e.streams.TwoArgumentError"),
        ("fails_at_0", 0, 1, 1, "tests.e2e.streams.TwoArgumentError"),
        ("corrupt", 9, 1, 37, "OSError"),
        ("odd_shape", 9, 1, 37, None),
        ("odd_dtype", 9, 1, 37, None),
        ("odd_type", 9, 1, 37, None),
        ("bad_transform", 0, 2, 2, "ZeroDivisionError"),
    ],
)
def test_an_error_comes_at_its_step_with_its_story(
    backend: Backend, stream: str, step: int, slot: int, index: int, cause: str | None
) -> None:
    first = max(0, step - 3)
    with backend.open(stream, first) as reader:
        *before, last = _until_it_ends(reader)
    assert before == [_right(stream, g) for g in range(first, step)], "the steps before it are delivered"
    assert last == _failure(stream, step)
    details = last[-1]
    assert (details["step"], details["slot"], details["index"]) == (step, slot, index)
    assert cause is None or details["cause_type"] == cause


def test_after_an_error_the_reader_takes_no_more_steps(backend: Backend) -> None:
    reader = backend.open("fails_at_9", 8, 20)
    assert [seen[0] for seen in _until_it_ends(reader)] == ["batch", "error"]
    for ask in (partial(next, reader), partial(reader.get, 12), partial(next, reader)):
        with pytest.raises(ConsumerClosedError, match="ended at step 9, whose build failed"):
            ask()
    assert reader.closed
    assert reader.next_step == 9
    reader.close()


def test_a_reader_that_is_opened_again_after_an_error_goes_on_elsewhere(backend: Backend) -> None:
    with backend.open("fails_at_9", 9, 13) as reader:
        assert _until_it_ends(reader) == [_failure("fails_at_9", 9)]
        reader.reopen()
        assert _attempt(partial(reader.get, 11)) == _right("fails_at_9", 11)
        assert _until_it_ends(reader) == [_right("fails_at_9", 12), ("end",)]


def test_a_reader_that_meets_its_end_or_is_closed_takes_no_more_steps(backend: Backend) -> None:
    with backend.open("small", 3, 4) as ended:
        assert _until_it_ends(ended) == [_right("small", 3), ("end",)]
        assert ended.closed
        assert _until_it_ends(ended) == [("end",)]
    with backend.open("small", 3) as closed:
        assert _attempt(partial(next, closed)) == _right("small", 3)
    for _ in range(2):
        closed.close()
        for ask in (partial(next, closed), partial(closed.get, 12)):
            with pytest.raises(ConsumerClosedError, match="it was closed"):
                ask()


def test_a_batch_outlives_its_reader_and_cannot_be_written(backend: Backend) -> None:
    with backend.open("small", 7) as reader:
        batch = next(reader)
        images = batch["images"]
        with pytest.raises(ValueError, match="read-only"):
            images[0] = 0
        next(reader).release()
    assert batch.digest() == _right("small", 7)[-1]
    assert images.sum() == MADE["small"].build(7)["images"].sum()


def test_the_steps_behind_a_failed_one_can_be_read_by_another_reader(backend: Backend) -> None:
    with backend.open("fails_at_9", 10, 12) as reader:
        assert _until_it_ends(reader) == [_right("fails_at_9", 10), _right("fails_at_9", 11), ("end",)]


def test_a_failed_step_that_is_got_fails_in_the_same_way(backend: Backend) -> None:
    with backend.open("fails_at_9", 3) as reader:
        assert _attempt(partial(reader.get, 9)) == _failure("fails_at_9", 9)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((-1,), "start_step is -1; global steps count from 0"),
        ((1.5,), "start_step is 1.5; it must be an integer"),
        ((True,), "start_step is True; it must be an integer"),
        ((2**63,), f"start_step is {2**63}; global steps"),
        ((5, 3), "stop_step is 3 and start_step 5; it must not lie before it"),
        ((0, -1), "stop_step is -1; global steps"),
    ],
)
def test_a_span_that_there_is_not_is_refused_in_the_same_words(
    backend: Backend, arguments: tuple[Any, ...], told: str
) -> None:
    with pytest.raises(LoaderServiceError) as raised:
        backend.open("small", *arguments)
    assert raised.value.code == "E1101"
    assert raised.value.message.startswith(told)


@pytest.mark.parametrize("shard", [(2, 2), (-1, 2), (0, 0), (0.5, 2), (True, 2), (0,), None, "01"])
def test_a_shard_that_there_is_not_is_refused(backend: Backend, shard: Any) -> None:
    with pytest.raises(LoaderServiceError) as raised:
        backend.open("small", shard=shard)
    assert raised.value.code == "E1101"
    assert re.match("shard|rank|world", raised.value.message)


@pytest.mark.parametrize("step", [-1, 2**63, 1.5, True, None, "3"])
def test_a_step_that_there_is_not_is_refused_and_the_reader_goes_on(backend: Backend, step: Any) -> None:
    with backend.open("small", 3) as reader:
        with pytest.raises(LoaderServiceError, match="step is") as raised:
            reader.get(step)
        assert raised.value.code == "E1101"
        assert _attempt(partial(next, reader)) == _right("small", 3)
