"""A daemon that comes back is found again, and each consumer goes on at its step with the same bytes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import loader_client
from loader_client import Client, Consumer
from loader_service import LocalService
from loader_service.errors import ConsumerClosedError, ServiceClosedError, StreamChangedError
from loader_service.wire.endpoint import runtime_directory
from loader_service.wire.messages import DAEMON_MESSAGES, Error, Open, Stop, Tune
from loader_service.wire.protocol import decode, encode
from tests.e2e.harness import digests, eventually
from tests.e2e.streams import small


class _Restartable:
    """A daemon under an endpoint of its own that can be killed and started again."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.daemon = self._new(3).start()

    def _new(self, seed: int) -> LocalService:
        streams = {"s": {"factory": "tests.e2e.streams:small", "args": {"seed": seed}, "prefetch": 4}}
        return LocalService({"server": {"endpoint": self.endpoint, "workers": 1}, "streams": streams})

    def restart(self, how: signal.Signals = signal.SIGKILL, seed: int = 3) -> None:
        self.end(how)
        self.daemon = self._new(seed).start()

    def end(self, how: signal.Signals) -> None:
        if self.daemon.pid is not None:
            os.kill(self.daemon.pid, how)
            self.daemon.stop()


@pytest.fixture
def restartable() -> Iterator[_Restartable]:
    runtime_directory().mkdir(mode=0o700, exist_ok=True)
    found = _Restartable(f"ipc://{runtime_directory() / 'again.sock'}")
    try:
        yield found
    finally:
        found.daemon.stop()
        (runtime_directory() / "again.sock.lock").unlink(missing_ok=True)
        (runtime_directory() / "again.sock").unlink(missing_ok=True)


@contextmanager
def _meanwhile(act: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        thread.join(60)


def _drain(consumer: Consumer) -> None:
    for batch in consumer:
        batch.release()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_consumers_go_on_at_their_steps_when_the_daemon_comes_back(
    restartable: _Restartable, how: signal.Signals
) -> None:
    with loader_client.connect(restartable.endpoint, reconnect_s=60) as client:
        with client.open("s", 0, 30) as one, client.open("s", 500, 530, shard=(1, 2)) as other:
            first = next(one).digest()
            parts = [next(other).digest() for _ in range(3)]
            with _meanwhile(lambda: restartable.restart(how)):
                seen = [batch.digest() for batch in one]
            parts += [batch.digest() for batch in other]
            assert [first, *seen] == digests(small(), 0, 30)
            assert len(parts) == 30
            assert len(set(parts)) == 30
        assert client.daemon_pid == restartable.daemon.pid
        eventually(lambda: client.status()["consumers"] == [], "the last leases have ended")


def test_a_request_that_waits_when_the_daemon_dies_is_answered_by_the_next_one(restartable: _Restartable) -> None:
    with loader_client.connect(restartable.endpoint, reconnect_s=60) as client, client.open("s", 0, 200) as consumer:
        kill = threading.Timer(0.2, restartable.restart)
        kill.start()
        seen = [batch.digest() for batch in consumer]
        kill.join(60)
        assert seen == digests(small(), 0, 200)


def test_an_async_consumer_goes_on_too_and_the_loop_with_it(restartable: _Restartable) -> None:
    with loader_client.connect(restartable.endpoint, reconnect_s=60) as client, client.open("s", 0, 20) as consumer:

        async def read() -> list[str]:
            seen = [(await consumer.aget(0)).digest()]
            again = asyncio.create_task(asyncio.to_thread(restartable.restart))
            seen += [batch.digest() async for batch in consumer]
            await again
            return seen

        assert asyncio.run(read()) == digests(small(), 0, 20)


def test_other_bytes_under_the_same_name_are_refused(restartable: _Restartable) -> None:
    with loader_client.connect(restartable.endpoint, reconnect_s=60) as client, client.open("s") as consumer:
        next(consumer).release()
        restartable.restart(seed=4)
        with pytest.raises(StreamChangedError, match="seed: 4 here, 3 there"):
            _drain(consumer)
        assert consumer.closed


def test_nobody_comes_back_within_the_deadline(restartable: _Restartable) -> None:
    with loader_client.connect(restartable.endpoint, reconnect_s=0.3) as client, client.open("s") as consumer:
        next(consumer).release()
        restartable.end(signal.SIGKILL)
        with pytest.raises(ServiceClosedError, match="none came back"):
            _drain(consumer)
        step = consumer.next_step
        restartable.restart()
        with consumer.get(step) as batch:
            assert batch.digest() == small().build(step).digest()


def test_closing_ends_the_wait_for_a_daemon(restartable: _Restartable) -> None:
    with loader_client.connect(restartable.endpoint, reconnect_s=600) as client, client.open("s") as consumer:
        ended: list[str] = []

        def read(of: Consumer) -> None:
            try:
                while True:
                    next(of).release()
            except ConsumerClosedError as error:
                ended.append(str(error))

        thread = threading.Thread(target=read, args=(consumer,))
        thread.start()
        restartable.end(signal.SIGKILL)
        consumer.close()
        thread.join(30)
        assert not thread.is_alive()
        assert len(ended) == 1


def test_what_was_on_its_way_to_a_daemon_that_died_does_nothing_at_the_next_one(restartable: _Restartable) -> None:
    """ZeroMQ keeps what it could not deliver; the client has long repeated it under the same number."""
    with loader_client.connect(restartable.endpoint, reconnect_s=60) as client:
        connection = client._connection
        late, before = connection.sockets.new(), connection._daemon.incarnation
        late.rcvtimeo = 20_000
        restartable.end(signal.SIGKILL)
        opens = [Open(request, request, "s", 0, False, "wait", 0, 0, 0, 1, before) for request in (1, 2, 3)]
        for message in (*opens, Tune(4, "s", {"prefetch": 9}, before), Stop(5, before)):
            late.send(encode(message)[0])
        restartable.restart()
        with client.open("s", 0, 20, pace="wait") as consumer:  # under number 1
            replies = [decode(late.recv_multipart(), DAEMON_MESSAGES) for _ in range(5)]
            assert [isinstance(reply, Error) for reply in replies] == [True] * 5
            assert consumer.prefetch == 4
            assert [batch.digest() for batch in consumer] == digests(small(), 0, 20)
        eventually(lambda: client.status()["consumers"] == [], "the last leases have ended")
        late.close()


@pytest.mark.parametrize("act", [Client.stop_service, lambda client: client.tune("s", prefetch=9)])
def test_who_is_told_that_the_daemon_is_gone_changes_nothing_at_the_next_one(
    restartable: _Restartable, act: Callable[[Client], None]
) -> None:
    with loader_client.connect(restartable.endpoint, reconnect_s=60) as client:
        restartable.end(signal.SIGKILL)
        with pytest.raises(ServiceClosedError):
            act(client)
        restartable.restart()
        with client.open("s", 0, 20) as consumer:
            assert [batch.digest() for batch in consumer] == digests(small(), 0, 20)
            assert consumer.prefetch == 4


def test_a_daemon_whose_process_cannot_be_seen_is_missed_by_its_connection(
    restartable: _Restartable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loader_client.daemon_connection.pid_namespace", lambda: 1)  # as in another container
    with loader_client.connect(restartable.endpoint, reconnect_s=60) as client, client.open("s", 0, 20) as consumer:
        seen = [next(consumer).digest()]
        assert client.status()["clients"] == 1
        with _meanwhile(restartable.restart):
            seen += [batch.digest() for batch in consumer]
        assert seen == digests(small(), 0, 20)
        eventually(lambda: client.status()["clients"] == 1, "one client is known")


def test_many_kills_at_random_moments_change_no_byte(restartable: _Restartable) -> None:
    rng = random.Random(5)
    with (
        loader_client.connect(restartable.endpoint, reconnect_s=60) as client,
        client.open("s", 0, 400) as one,
        client.open("s", 100, 500) as other,
    ):
        seen: dict[str, list[str]] = {"one": [], "other": []}

        def read(name: str, consumer: Consumer) -> None:
            seen[name].extend(batch.digest() for batch in consumer)

        threads = [threading.Thread(target=read, args=pair) for pair in (("one", one), ("other", other))]
        for thread in threads:
            thread.start()
        for _ in range(3):
            threads[0].join(rng.uniform(0.0, 0.4))
            restartable.restart(rng.choice([signal.SIGKILL, signal.SIGTERM]))
        for thread in threads:
            thread.join(100)
        assert seen == {"one": digests(small(), 0, 400), "other": digests(small(), 100, 500)}
