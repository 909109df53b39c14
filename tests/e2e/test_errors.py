"""Errors come where they belong: a build's at its step, a start's at the start, each with its story."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import loader_client
from loader_client import Batch, Consumer
from loader_service import LocalService
from loader_service.errors import (
    BuildError,
    ConfigurationError,
    ConsumerClosedError,
    FactoryError,
    LoaderServiceError,
    MemoryLimitError,
    ServiceUnavailableError,
    SharedMemoryError,
    UnknownStreamError,
)
from tests.e2e.harness import digests, service
from tests.e2e.streams import growing, slow, two_arguments


def _read(consumer: Consumer, see: Callable[[Batch], None]) -> None:
    for batch in consumer:
        with batch:
            see(batch)


def _check_growing(batch: Batch) -> None:
    assert batch.digest() == growing(64).build(batch.step).digest()


@pytest.mark.parametrize(
    ("factory", "text"),
    [("two_arguments", "TwoArgumentError: bad record in corpus.bin at 1234"), ("corrupt", "Truncated File Read")],
)
@pytest.mark.parametrize("prefetch", [1, 4, 16])
def test_a_build_error_comes_at_its_step_with_its_story_and_ends_the_stream(
    factory: str, text: str, prefetch: int
) -> None:
    with (
        service(factory, prefetch=prefetch) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s") as consumer,
    ):
        seen: list[int] = []
        with pytest.raises(BuildError) as raised:
            _read(consumer, lambda batch: seen.append(int(batch["indices"][0])))
        assert seen == list(range(0, 36, 4)), "the steps before it are delivered"
        error = raised.value
        assert (error.step, error.slot, error.index) == (9, 1, 37)
        assert text in str(error)
        assert "Traceback" in error.remote_traceback
        assert "__getitem__" in error.remote_traceback
        with pytest.raises(ConsumerClosedError, match="step 9"):
            next(consumer)
        with client.open("s", 10, 12) as beyond:
            later: list[int] = []
            _read(beyond, lambda batch: later.append(batch.step))
            assert later == [10, 11]


@pytest.mark.parametrize(("kind", "text"), [("shape", r"\[3, 3\]"), ("dtype", "float64"), ("type", "str")])
def test_a_sample_of_another_shape_dtype_or_type_is_named_with_its_place(kind: str, text: str) -> None:
    with (
        service("odd_ones", kind=kind) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", 8) as consumer,
    ):
        assert next(consumer).step == 8
        with pytest.raises(BuildError, match=rf"step 9 .* slot 1 \(dataset index 37\).*{text}"):
            next(consumer)


def test_every_consumer_of_a_lane_meets_the_error_at_the_step() -> None:
    with (
        service("two_arguments", prefetch=8) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", 6) as one,
        client.open("s", 6) as two,
    ):
        for consumer in (one, two):
            for step in (6, 7, 8):
                with consumer.get(step, timeout_s=30) as batch:
                    assert batch.digest() == two_arguments().build(step).digest()
            with pytest.raises(BuildError, match="step 9"):
                consumer.get(9, timeout_s=30)


def test_an_error_in_the_very_first_batch_does_not_keep_the_daemon_from_starting() -> None:
    with (
        service("two_arguments", bad=1) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s") as consumer,
    ):
        with pytest.raises(BuildError, match=r"step 0 .* slot 1 \(dataset index 1\)"):
            next(consumer)
        with client.open("s", 1, 9) as other:
            assert [batch.digest() for batch in other] == digests(two_arguments(1), 1, 9)


def test_batches_that_outgrow_their_slots_get_larger_segments() -> None:
    with service("growing", prefetch=3, unit=200) as daemon, loader_client.connect(daemon.endpoint) as client:
        with client.open("s", 0, 30) as consumer:
            assert [batch.digest() for batch in consumer] == digests(growing(200), 0, 30)
        assert client.status()["streams"][0]["segments"] <= 3 + 1


def test_a_batch_that_the_memory_limit_forbids_fails_at_its_step() -> None:
    config = {
        "server": {"memory_limit": "64KiB", "workers": 1},
        "streams": {"s": {"factory": "tests.e2e.streams:growing", "args": {"unit": 64}, "prefetch": 2}},
    }
    with (
        LocalService(config) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s") as consumer,
        pytest.raises(LoaderServiceError, match="memory_limit = 65536") as raised,
    ):
        _read(consumer, _check_growing)
    assert isinstance(raised.value, MemoryLimitError | BuildError)


def test_a_second_lane_beyond_the_memory_limit_is_refused_and_the_first_goes_on() -> None:
    stream = {"factory": "tests.e2e.streams:slow", "prefetch": 4, "slot_bytes": 8000}
    config = {"server": {"memory_limit": 4 * 8192, "workers": 1}, "streams": {"s": stream}}
    with LocalService(config) as daemon, loader_client.connect(daemon.endpoint) as client:
        with client.open("s") as consumer:
            with pytest.raises(MemoryLimitError, match="raise the limit"):
                client.open("s", 1000)
            with next(consumer) as batch:
                assert batch.digest() == slow().build(0).digest()
            with consumer.get(5000) as batch:
                assert batch.digest() == slow().build(5000).digest(), "a lone consumer takes its ring along"
        with client.open("s", 1000, 1010) as other:
            assert [batch.digest() for batch in other] == digests(slow(), 1000, 1010)


def test_a_ring_larger_than_the_shared_memory_is_refused_at_start_with_both_numbers() -> None:
    stream = {"factory": "tests.e2e.streams:slow", "prefetch": 1024, "slot_bytes": "1TiB"}
    daemon = LocalService({"streams": {"s": stream}})
    with pytest.raises(SharedMemoryError, match=r"\d+ bytes of shared memory are needed, .* has \d+ bytes free; lower"):
        daemon.start()
    assert not [path for path in Path("/dev/shm").glob("lsv-*") if not _lives(path)]


def _lives(segment: Path) -> bool:
    """Return whether the daemon that a segment is named by is still there."""
    return Path(f"/proc/{int(segment.name.split('-')[1], 36)}").exists()


@pytest.mark.parametrize(
    ("factory", "args", "text"),
    [
        ("no.such.module:make", {}, "there is no module 'no'"),
        ("tests.e2e.streams:smal", {}, "did you mean 'small'"),
        ("tests.e2e.streams:TwoArgumentError", {"path": "x", "offset": 1}, "returned TwoArgumentError"),
        ("tests.e2e.streams:small", {"colour": 1}, "colour"),
        ("tests.e2e.streams:small", {"batch_size": 0}, "batch_size is 0"),
    ],
)
def test_a_factory_that_cannot_be_used_is_an_error_at_start_that_names_the_stream(
    factory: str, args: dict[str, object], text: str
) -> None:
    config = {"streams": {"train": {"factory": factory, "args": args}}}
    with pytest.raises(FactoryError, match="stream 'train'") as raised:
        LocalService(config).start()
    assert text in str(raised.value)


def test_arguments_that_no_file_could_hold_are_a_configuration_error() -> None:
    config = {"streams": {"s": {"factory": "tests.e2e.streams:small", "args": {"seed": object()}}}}
    with pytest.raises(ConfigurationError, match="args"):
        LocalService(config).start()


def test_unknown_streams_and_absent_daemons_are_clear_errors(tmp_path: Path) -> None:
    with service("small") as daemon, loader_client.connect(daemon.endpoint) as client:
        with pytest.raises(UnknownStreamError, match=r"'t'; this daemon serves 's'"):
            client.open("t")
        with pytest.raises(ValueError, match="start_step is -1"):
            client.open("s", -1)
        with client.open("s") as consumer, pytest.raises(ValueError, match="count from 0"):
            consumer.get(-1)
        for step in (2**63, 2**64):
            with pytest.raises(ValueError, match=r"below 2\^63"):
                client.open("s", step)
    with pytest.raises(ServiceUnavailableError, match="no daemon answered"):
        loader_client.connect(f"ipc://{tmp_path}/none.sock", timeout_s=0.1)
