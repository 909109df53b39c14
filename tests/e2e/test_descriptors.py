"""A trainer with few descriptors: what can be opened can be read, and what cannot is refused with the limit."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from loader_service import LocalService
from tests.e2e.harness import python, service

_TRAINER = """
import collections, json, resource, sys, threading
import loader_client

resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]),) * 2)
seen, kept = collections.Counter(), []

def work():
    try:
        client = loader_client.connect(sys.argv[1], timeout_s=30)
        kept.append(client)
        for step in range(50):
            consumer = client.open("s", step)
            seen["opened"] += 1
            kept.append(consumer)
            with consumer.get(step, timeout_s=60) as batch:
                seen["read"] += batch.step == step
    except loader_client.ServiceUnavailableError as error:
        seen["refused"] += "ulimit -n" in str(error) and f"may have {sys.argv[2]} open files" in str(error)

threads = [threading.Thread(target=work) for _ in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps(seen))
for client in kept:
    client.close()
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[LocalService]:
    with service("small", prefetch=3) as running:
        yield running


@pytest.mark.parametrize("limit", [12, 20, 24, 28, 32, 48, 64, 128, 256])
def test_twelve_threads_that_connect_read_what_they_opened_and_are_refused_the_rest(
    daemon: LocalService, limit: int
) -> None:
    with python(_TRAINER, daemon.endpoint, str(limit)) as trainer:
        out, err = trainer.communicate(timeout=100)
    assert (trainer.returncode, err) == (0, "")
    seen = json.loads(out)
    assert seen["refused"] == 12
    assert seen.get("read", 0) == seen.get("opened", 0)
