"""The work of a worker over its connection: steps built ahead of the next message, and errors that are answers."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any

import pytest

from loader_service import Stream
from loader_service.contract.rng import SampleRng
from loader_service.daemon.server.shared_memory import SharedMemoryAllocator
from loader_service.daemon.workers.messages import (
    Build,
    Built,
    Denied,
    Explained,
    Failed,
    FromWorker,
    Larger,
    Need,
    Retire,
    ToWorker,
    Verified,
    Verify,
    decode_from_worker,
    encode,
)
from loader_service.daemon.workers.worker_loop import WorkerLoop
from loader_service.errors import MemoryLimitError
from loader_service.sharing.placement import Placement
from loader_service.wire.segment import Segment
from tests.daemon.streams import small

NBYTES = 1 << 20


class Bench:
    """A loop in a thread of this process, and the daemon's end of its connection."""

    def __init__(self, stream: Stream) -> None:
        ours, theirs = socket.socketpair()
        self.connection, self._end = Connection(ours.detach()), Connection(theirs.detach())
        self.memory = SharedMemoryAllocator()
        self._thread = Thread(target=self._run, args=(stream,))
        self._thread.start()

    def _run(self, stream: Stream) -> None:
        with self._end, pytest.raises(EOFError):
            WorkerLoop(self._end, [stream]).run()

    def send(self, *messages: ToWorker) -> None:
        for message in messages:
            self.connection.send_bytes(encode(message))

    def read(self) -> FromWorker:
        assert self.connection.poll(30)
        return decode_from_worker(self.connection.recv_bytes())

    def place(self, generation: int, nbytes: int = NBYTES) -> Placement:
        return Placement(self.memory.create(nbytes), generation, nbytes)

    def end(self) -> None:
        self.connection.close()
        self._thread.join(30)
        self.memory.close()
        assert not self._thread.is_alive()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(small())
    yield made
    made.end()


def test_steps_are_built_in_order_into_their_segments(bench: Bench) -> None:
    places = [bench.place(1), bench.place(2)]
    bench.send(*(Build(number, 0, number + 5, place) for number, place in enumerate(places)))
    for number, place in enumerate(places):
        built = bench.read()
        assert isinstance(built, Built)
        assert (built.task, built.epoch * 10 + built.step_in_epoch) == (number, number + 5)
        Segment.open(place.segment, os.geteuid()).check(number + 5, place.generation, built.nbytes)


def test_a_batch_that_outgrows_its_segment_asks_and_what_comes_meanwhile_is_not_lost(bench: Bench) -> None:
    bench.send(Build(1, 0, 0, bench.place(1, 128)))
    need = bench.read()
    assert isinstance(need, Need)
    larger = bench.place(7)
    bench.send(Build(2, 0, 1, bench.place(2)), Retire("lsv-gone"), Larger(1, larger))
    first, second = bench.read(), bench.read()
    assert isinstance(first, Built)
    assert isinstance(second, Built)
    assert (first.task, second.task) == (1, 2)
    Segment.open(larger.segment, os.geteuid()).check(0, 7, first.nbytes)


def test_a_refusal_is_the_error_of_the_step_and_the_next_one_is_built(bench: Bench) -> None:
    bench.send(Build(1, 0, 0, bench.place(1, 128)))
    assert isinstance(bench.read(), Need)
    bench.send(Denied(1, MemoryLimitError("there is no more").to_record()), Build(2, 0, 1, bench.place(2)))
    failed = bench.read()
    assert isinstance(failed, Failed)
    assert (failed.task, failed.error["code"]) == (1, "E2001")
    assert isinstance(bench.read(), Built)


def test_a_step_that_others_died_of_is_explained_first(bench: Bench) -> None:
    bench.send(Build(1, 0, 3, bench.place(1), explain=True))
    explained = bench.read()
    assert explained == Explained(1, small().explain(3).rows.indices.tolist(), 4)
    assert isinstance(bench.read(), Built)


def test_a_step_is_verified_against_what_stands_in_its_segment(bench: Bench) -> None:
    place = bench.place(1)
    bench.send(Build(1, 0, 3, place))
    built = bench.read()
    assert isinstance(built, Built)
    bench.send(Verify(2, 0, 3, place, built.nbytes, built.layout))
    assert bench.read() == Verified(2, [])


def _raise(sample: Any, rng: SampleRng) -> Any:
    raise ValueError("no such picture " + "x" * 100_000)


def test_what_the_users_code_raises_is_an_answer_of_bounded_length() -> None:
    stream = small()
    stream.transform = _raise
    bench = Bench(stream)
    bench.send(Build(1, 0, 0, bench.place(1)))
    failed = bench.read()
    assert isinstance(failed, Failed)
    details = failed.error["details"]
    assert (details["cause_type"], details["slot"]) == ("ValueError", 0)
    assert len(details["cause_message"]) <= 16_000
    bench.end()
