"""`verify = N`: every Nth step is built twice, and a difference is told and never served."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import loader_client
from loader_client import Client
from loader_service import LocalService
from loader_service.errors import BuildError
from tests.e2e.harness import digests, stream_status
from tests.e2e.streams import impure


def counts(client: Client, name: str = "s") -> tuple[int, int, int]:
    told = stream_status(client, name)
    return told["verified"], told["impure"], told["unverified"]


def stream(verify: int, journal: str = "", **others: Any) -> dict[str, Any]:
    args = {"journal": journal}
    return {"factory": "tests.e2e.streams:impure", "args": args, "prefetch": 4, "verify": verify} | others


def test_a_dataset_that_is_not_deterministic_fails_where_it_is_verified_with_the_tensors_that_differ(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Samples 12 and 14, of step 3, tell the process that read them; sample 21, of step 5, can be read only once."""
    config = {"server": {"workers": 2}, "streams": {"s": stream(1, str(tmp_path / "read"))}}
    with LocalService(config) as daemon, loader_client.connect(daemon.endpoint) as client:
        expected = impure()
        for first, last in ((0, 2), (4, 4), (6, 14)):
            with client.open("s", first, last + 1) as consumer:
                assert [batch.digest() for batch in consumer] == digests(expected, first, last + 1)
        with client.open("s", 3) as consumer, pytest.raises(BuildError) as raised:
            next(consumer)
        assert raised.value.cause_type == "PurityViolation"
        told = r"worker (\d) built it, and worker (\d) other bytes: tensor 'images': 2 of \d+ elements differ, "
        match = re.search(told + r"the first at \[0, 0, 1, 2\]: \d+\.0, then \d+\.0$", str(raised.value))
        assert match is not None, str(raised.value)
        assert match[1] != match[2]
        with client.open("s", 5) as consumer, pytest.raises(BuildError) as raised:
            next(consumer)
        assert (raised.value.slot, raised.value.index) == (1, 21)
        assert "FileExistsError" in str(raised.value)
        verified, different, skipped = counts(client)
        assert verified >= 15
        assert different >= 1
        assert skipped == 0
    log = capfd.readouterr().err
    assert re.search(r"stream s step 3: step 3 could not be built: PurityViolation: .*tensor 'images'", log)


def test_a_pure_dataset_loses_nothing_with_one_worker_or_without_memory_to_spare() -> None:
    streams = {"one": stream(1), "two": stream(3, slot_bytes=4000), "three": stream(0)}
    config = {"server": {"workers": 1, "memory_limit": "64KiB"}, "streams": streams}
    with LocalService(config) as daemon, loader_client.connect(daemon.endpoint) as client:
        for name in streams:
            with client.open(name, 0, 30) as consumer:
                assert [batch.digest() for batch in consumer] == digests(impure(), 0, 30)
            assert all(times == 1 for _, times in stream_status(client, name)["builds"])
        assert counts(client, "one")[1:] == counts(client, "two")[1:] == (0, 0)
        assert counts(client, "one")[0] >= 30
        assert 10 <= counts(client, "two")[0] <= 12
        assert counts(client, "three") == (0, 0, 0)
