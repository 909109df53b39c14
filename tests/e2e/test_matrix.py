"""The contract over workers, prefetch and start step: always the digests of the in-process Loader."""

from __future__ import annotations

import pytest

import loader_client
from loader_service import LocalService
from tests.e2e.harness import digests
from tests.e2e.streams import small

_PREFETCH = (1, 2, 8)
_STARTS = (0, 1, 7, 11, 12, 13, 31, 1000)
_STEPS = 15


def _config(workers: int) -> dict[str, object]:
    table = {f"p{p}": {"factory": "tests.e2e.streams:small", "prefetch": p} for p in _PREFETCH}
    return {"server": {"workers": workers}, "streams": table}


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_every_prefetch_and_start_step_gives_the_bytes_of_the_loader(workers: int) -> None:
    expected = {start: digests(small(), start, start + _STEPS) for start in _STARTS}
    with LocalService(_config(workers)) as service, loader_client.connect(service.endpoint) as client:
        for prefetch in _PREFETCH:
            for start in _STARTS:
                with client.open(f"p{prefetch}", start, start + _STEPS) as consumer:
                    seen = []
                    for batch in consumer:
                        with batch:
                            seen.append(batch.digest())
                assert seen == expected[start], f"workers {workers}, prefetch {prefetch}, start {start}"


def test_a_plain_loop_needs_no_release_from_prefetch_2_on() -> None:
    with LocalService(_config(2)) as service, loader_client.connect(service.endpoint) as client:
        for prefetch in (2, 8):
            with client.open(f"p{prefetch}", 0, _STEPS) as consumer:
                assert [batch.digest() for batch in consumer] == digests(small(), 0, _STEPS)


def test_any_step_can_be_got_at_any_time() -> None:
    steps = [5, 0, 3, 4, 200, 1, 2, 10**9, 11, 11, 12]
    with (
        LocalService(_config(2)) as service,
        loader_client.connect(service.endpoint) as client,
        client.open("p8", 5) as consumer,
    ):
        for step in steps:
            with consumer.get(step) as batch:
                assert (batch.step, batch.digest()) == (step, small().build(step).digest())
            assert consumer.next_step == step + 1
