"""A daemon is started from whatever process its owner is, and a factory that it cannot have is told at once."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

import loader_client
from loader_service import LocalService, Stream
from loader_service.errors import ConfigurationError
from tests.e2e.harness import digests
from tests.e2e.streams import small


def test_it_starts_while_other_threads_hold_locks_that_a_forked_child_would_wait_for() -> None:
    """Locks of logging, of imports and of their own, at the moment of the start."""
    held, ending, own = threading.Barrier(4), threading.Event(), threading.Lock()

    def hold(lock: Any) -> None:
        with lock:
            held.wait(60)
            ending.wait(60)

    handler = logging.StreamHandler()
    assert handler.lock is not None
    threads = [threading.Thread(target=hold, args=(lock,)) for lock in (handler.lock, own, threading.RLock())]
    for thread in threads:
        thread.start()
    held.wait(60)
    try:
        with (
            LocalService({"server": {"workers": 2}, "streams": {"s": {"factory": small}}}) as service,
            loader_client.connect(service.endpoint) as client,
            client.open("s", 0, 5) as consumer,
        ):
            assert [batch.digest() for batch in consumer] == digests(small(), 0, 5)
    finally:
        ending.set()
        for thread in threads:
            thread.join()


def closure(seed: int) -> Callable[[], Stream]:
    def make() -> Stream:
        return small(seed)

    return make


@pytest.mark.parametrize(
    ("factory", "name"),
    [
        (lambda: small(), "<lambda>"),
        (closure(3), "closure.<locals>.make"),
        (functools.partial(small, 3), "functools.partial"),
    ],
)
def test_a_factory_that_no_worker_can_import_is_named_before_anything_is_started(factory: Any, name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"\[streams.s\] factory is .*which a worker process cannot") as told:
        LocalService({"streams": {"s": {"factory": factory}}})
    assert name in str(told.value)
