"""The ends of leases are told at once, whatever ends them; and what nobody reads does not pile up."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from loader_client import Client, ServiceUnavailableError, connect
from loader_client.leases import Lease, LeaseBook
from loader_client.sockets import SocketFactory
from loader_service.wire.messages import Bye, Close, Ping, Release
from tests.client.fake_daemon import FakeDaemon, eventually


class Memory:
    """Memory under a lease."""


class Reader:
    """A consumer, as far as the book knows it."""


@pytest.fixture
def book(daemon: FakeDaemon) -> Iterator[LeaseBook]:
    made = LeaseBook(SocketFactory(daemon.endpoint), lambda: None)
    yield made
    made.close()


def keep(book: LeaseBook, leases: dict[int, Lease], consumer_id: int, lease_id: int) -> Memory:
    """Book a lease that lasts as long as what is returned."""
    memory = Memory()
    lease = Lease(memory, book.put)
    lease.consumer_id, lease.lease_id, lease.lane_id, lease.step = consumer_id, lease_id, 0, 12
    leases[lease_id] = lease
    return memory


def test_the_end_of_each_lease_is_told_once(book: LeaseBook, daemon: FakeDaemon) -> None:
    reader = Reader()
    leases = book.enlist(3, reader)
    memories = [keep(book, leases, 3, lease_id) for lease_id in range(5)]
    assert book.holds(3) == [0, 1, 2, 3, 4]
    del memories[1:4]
    eventually(lambda: len(daemon.got(Release)) == 3, "three are told")
    assert sorted(message.leases[0] for message in daemon.got(Release)) == [1, 2, 3]
    assert {message.consumer for message in daemon.got(Release)} == {3}
    assert book.holds(3) == [0, 4]
    eventually(lambda: sorted(leases) == [0, 4], "the others are forgotten")


def test_an_end_in_a_garbage_collection_or_another_thread_is_told(book: LeaseBook, daemon: FakeDaemon) -> None:
    reader = Reader()
    leases = book.enlist(3, reader)
    cycle: list[Any] = [keep(book, leases, 3, 0)]
    cycle.append(cycle)
    box = [keep(book, leases, 3, 1)]
    del cycle
    gc.collect()
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    eventually(lambda: {message.leases[0] for message in daemon.got(Release)} == {0, 1}, "both are told")


def test_a_consumer_that_is_dropped_is_closed_with_what_it_holds(book: LeaseBook, daemon: FakeDaemon) -> None:
    reader = Reader()
    memory = keep(book, book.enlist(3, reader), 3, 8)
    del reader
    eventually(lambda: daemon.got(Close) == [Close(0, 3, [8])], "it is closed")
    del memory
    eventually(lambda: daemon.got(Release) == [Release(3, [8])], "its lease ends later")


def test_a_dismissed_consumer_is_closed_once(book: LeaseBook, daemon: FakeDaemon) -> None:
    reader = Reader()
    book.enlist(3, reader)
    book.dismiss(3)
    del reader
    other = Reader()
    book.enlist(4, other)
    book.dismiss(4)
    eventually(lambda: len(daemon.got(Close)) == 2, "both are closed")
    assert [message.consumer for message in daemon.got(Close)] == [3, 4]


def test_a_lease_that_died_before_it_was_booked_does_no_harm(book: LeaseBook, daemon: FakeDaemon) -> None:
    """As where a Ctrl-C comes between the two."""
    reader = Reader()
    leases = book.enlist(3, reader)
    memory = Memory()
    lease = Lease(memory, book.put)
    del memory
    assert lease() is None
    later = keep(book, leases, 3, 1)
    del later
    eventually(lambda: daemon.got(Release) == [Release(3, [1])], "the book goes on")


def test_bye_is_said_when_the_last_memory_dies(daemon: FakeDaemon) -> None:
    book = LeaseBook(SocketFactory(daemon.endpoint), lambda: None)
    reader = Reader()
    memory = keep(book, book.enlist(3, reader), 3, 1)
    book.close()
    eventually(lambda: book._thread.is_alive(), "it waits")
    assert daemon.got(Bye) == []
    del memory
    eventually(lambda: daemon.got(Bye) == [Bye()], "now")
    assert daemon.received.index(Release(3, [1])) < daemon.received.index(Bye())


def test_where_no_thread_can_be_started_the_client_is_unavailable(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with pytest.raises(ServiceUnavailableError, match=r"no thread can be started .*; end some, or raise the limit"):
        connect(endpoint)


def test_the_book_throws_away_what_comes_now_and_then(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loader_client.leases._REST_S", 0.01)
    calls: list[None] = []
    book = LeaseBook(SocketFactory(daemon.endpoint), lambda: calls.append(None))
    daemon.say(Ping())
    eventually(lambda: len(calls) >= 3, "it looks again and again")
    book.close()


def test_consumers_one_after_the_other_leave_nothing_in_the_book_and_no_unread_answer(
    client: Client, daemon: FakeDaemon
) -> None:
    for step in range(20):
        with client.open("s", step) as consumer, consumer.get(step) as batch:
            assert batch.step == step
    book = client._connection.leases
    eventually(lambda: not book._leases and not book._consumers, "nothing is left of them")
    eventually(lambda: len(daemon.got(Close)) == 40, "each is closed by the book and by itself, which waits")
