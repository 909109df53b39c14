"""The broker's builds: who gets what to do, and what comes of steps that fail, kill or need more memory."""

from __future__ import annotations

from collections import defaultdict
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_service.daemon.workers.crashes import Crash
from loader_service.daemon.workers.messages import Denied, Failed, Larger, Need, Retire, Verify
from loader_service.errors import BuildError, MemoryLimitError
from loader_service.sharing.fairness import Limits
from loader_service.wire.messages import Bye, Close, Demand, Error, Get, Hello, Message, Open, Ready, Release
from tests.daemon.broker.broker_harness import KILLED, PAGE, BrokerHarness, FakeWorker, identity


def test_streams_take_turns() -> None:
    harness = BrokerHarness(workers=4, prefetch=16)
    harness.open(1, "a")
    harness.open(1, "b")
    while len(harness.workers.given) < 24:
        for worker in range(4):
            harness.build(worker)
    assert [build.stream for build in harness.workers.given[:8]] == [0] * 8
    assert [build.stream for build in harness.workers.given[8:24]] in ([0, 1] * 8, [1, 0] * 8)


def test_what_a_consumer_waits_for_is_built_before_what_is_only_near() -> None:
    harness = BrokerHarness(prefetch=8)
    consumer = harness.open()
    harness.get(consumer, 6)
    harness.build()
    harness.build()
    assert harness.steps()[0] == 6


def test_what_is_demanded_of_any_stream_is_built_before_all_that_is_built_ahead() -> None:
    """Turns count among demanded steps, and among the others."""
    harness = BrokerHarness(workers=0, prefetch=4, streams="abc")
    consumers = {stream: harness.open(1, stream) for stream in "abc"}
    harness.get(consumers["c"], 2)
    harness.get(consumers["b"], 3)
    harness.workers.all = [FakeWorker(number) for number in range(6)]
    harness.broker.pump()
    given = [(build.stream, build.step) for build in harness.workers.given]
    assert sorted(given[:2]) == [(1, 3), (2, 2)]
    built = {stream: [step for of, step in given if of == stream] for stream in range(3)}
    assert built == {0: [0, 1, 2, 3], 1: [3, 4, 5, 6], 2: [2, 3, 4, 5]}


def test_what_is_only_asked_for_ahead_is_not_built_first_until_it_is_demanded() -> None:
    harness = BrokerHarness(workers=0, prefetch=4)
    asking = harness.open(1, "b")
    harness.open(2, "a")
    harness.say(1, Get(99, asking, 0, 1, [], False))
    harness.workers.all = [FakeWorker(0)]
    harness.broker.pump()
    assert [build.stream for build in harness.workers.given] == [0, 1]
    harness.say(1, Get(100, asking, 3, 1, [], False))
    harness.say(1, Demand(asking, 3))
    harness.build()
    assert [(build.stream, build.step) for build in harness.workers.given[2:]] == [(1, 3)]


def test_a_step_that_cannot_be_built_is_told_to_those_who_come_to_it_and_ends_nothing_else() -> None:
    """It is the client that ends the iteration; one that asks for another step gets it."""
    harness = BrokerHarness()
    waiting, later = harness.open(1), harness.open(2)
    harness.get(waiting, 0, socket=4)
    [(socket, reply)] = harness.fail()
    assert socket == identity(1, 4)
    error = harness.error([reply])
    assert isinstance(error, BuildError)
    assert (error.step, error.cause_type, error.cause_message) == (0, "ValueError", "no data")
    assert isinstance(harness.error(harness.get(later, 0, client=2)), BuildError)
    harness.build()
    assert harness.ready(harness.get(later, 1, client=2)).step == 1
    assert harness.ready(harness.get(waiting, 1)).step == 1
    assert harness.broker.streams["a"].metrics.failed == 1
    assert list(harness.broker.consumers) == [waiting, later]


def test_a_lost_step_is_built_again_for_those_who_wait() -> None:
    harness = BrokerHarness()
    consumer = harness.open()
    harness.get(consumer, 0)
    assert harness.die() == []
    assert sorted(harness.steps()) == [0, 1]
    while harness.steps()[0] != 0:
        harness.build()
    [(_, reply)] = harness.build()
    assert harness.ready([reply]).step == 0
    assert harness.broker.streams["a"].metrics.lost == 2


def test_a_step_that_kills_three_workers_fails_with_the_story() -> None:
    harness = BrokerHarness(prefetch=1)
    consumer = harness.open()
    harness.get(consumer, 0)
    assert harness.die() == harness.die() == []
    [(_, reply)] = harness.die()
    error = harness.error([reply])
    assert isinstance(error, BuildError)
    assert (error.step, error.cause_type) == (0, "WorkerDied")
    assert "worker 0 (pid 1) was killed by SIGKILL; 3 workers died while they built this step" in error.message
    assert harness.steps() == []


def test_a_death_is_told_with_stream_step_and_what_the_next_worker_says_of_the_samples(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness = BrokerHarness(prefetch=1)
    consumer = harness.open()
    harness.get(consumer, 0)
    assert not harness.workers.given[-1].explain, "a build that nobody died of costs no message"
    harness.die()
    assert harness.workers.given[-1].explain
    harness.explain(7, 9, rows=2)
    harness.die(death=Crash("worker 0 (pid 2) hung", "the stack", hung=True))
    harness.explain(7, 9, rows=2)
    death, told, second, again = [record.getMessage() for record in caplog.records]
    assert death == "stream a step 0 was built when worker 0 (pid 1) was killed by SIGKILL"
    assert told == "stream a step 0 has dataset indices 7, 9: of them worker 0 (pid 1) was killed by SIGKILL"
    assert (second, again) == (
        death.replace(f"(pid 1) {KILLED}", "(pid 2) hung"),
        told.replace(f"(pid 1) {KILLED}", "(pid 2) hung"),
    )
    [(_, reply)] = harness.die()
    error = harness.error([reply])
    assert isinstance(error, BuildError)
    assert "; worker 0 (pid 2) hung; " in error.message
    assert error.message.endswith("3 workers died while they built this step (dataset indices 7, 9)")
    assert (error.cause_type, error.remote_traceback) == ("WorkerDied", "the stack")


def test_a_step_that_failed_of_deaths_and_is_wanted_again_gets_as_many_tries_again() -> None:
    harness = BrokerHarness(prefetch=1)
    for _ in range(2):
        consumer = harness.open()
        harness.get(consumer, 0)
        assert harness.die() == harness.die() == []
        assert len(harness.die()) == 1
        harness.close(consumer)


def test_a_step_that_only_waited_behind_another_is_not_to_blame() -> None:
    harness = BrokerHarness()
    consumer = harness.open()
    for _ in range(2):
        assert harness.steps() == [0, 1]
        harness.die()
    harness.build()
    harness.get(consumer, 1)
    assert harness.steps()[0] == 1
    assert harness.die() == []
    assert 1 in harness.steps()


def test_a_batch_that_needs_more_gets_a_larger_segment() -> None:
    harness = BrokerHarness()
    consumer = harness.open()
    harness.get(consumer, 0)
    worker = harness.workers.all[0]
    task = worker.tasks[0]
    harness.broker.worker_said(worker.number, Need(task.task, 3 * PAGE))
    [larger] = worker.told
    assert isinstance(larger, Larger)
    assert larger.task == task.task
    assert larger.placement.nbytes == harness.memory.sizes[larger.placement.segment] >= 3 * PAGE
    assert larger.placement.segment != task.placement.segment
    [(_, reply)] = harness.build()
    ready = harness.ready([reply])
    assert ready.placement == larger.placement
    assert Retire(task.placement.segment) in harness.workers.broadcasts


def test_a_batch_for_which_there_is_no_memory_fails_with_that_error() -> None:
    harness = BrokerHarness(limit_bytes=4 * PAGE)
    consumer = harness.open()
    harness.get(consumer, 0)
    worker = harness.workers.all[0]
    task = worker.tasks.pop(0)
    harness.broker.worker_said(worker.number, Need(task.task, 30 * PAGE))
    [denied] = worker.told
    assert isinstance(denied, Denied)
    assert denied.error["code"] == MemoryLimitError.code
    before = len(harness.sent)
    harness.broker.worker_said(worker.number, Failed(task.task, denied.error))
    [(_, reply)] = harness.sent[before:]
    assert type(harness.error([reply])) is MemoryLimitError


def test_workers_are_told_of_segments_that_went() -> None:
    harness = BrokerHarness()
    consumers = [harness.open(step=step) for step in (0, 100)]
    while any(harness.steps()):
        harness.build()
    assert harness.workers.broadcasts == []
    harness.close(consumers[0])
    assert len(harness.workers.broadcasts) == 2
    assert harness.memory.retired == []


# --- anything, in any order ------------------------------------------------------------------------------


class AnyOrder:
    """Does whatever it is told to a broker that has little memory, and checks what must hold after each event."""

    def __init__(self) -> None:
        self.harness = BrokerHarness(
            workers=2, prefetch=2, limit_bytes=14 * PAGE, limits=Limits(evict_after_s=4.0), verify=3
        )
        self.requests = count(1)
        self.asked: dict[int, range] = {}

    def happen(self, event: str, client: int, n: int, m: int) -> None:
        request = next(self.requests)
        pace, daemon = ("split", "wait")[m % 2], self.harness.clients.incarnation + (m == 9)
        messages: dict[str, Message] = {
            "open": Open(request, n, "abc"[n % 3], m, m == 0, pace, m * 500_000, m % 3, 0, 1, daemon),
            "get": Get(request, n, m, 1 + m % 4, [m, m + 1], n % 2 == 0),
            "demand": Demand(n, m),
            "release": Release(n, [m, m + 1]),
            "close": Close(request, n, [m]),
            "bye": Bye(),
        }
        if event == "time":
            self.harness.timer.pass_time(m / 4)
        elif event in messages:
            self.asked[request] = range(m, m + 1 + m % 4)
            self.harness.say(client, messages[event])
        elif event == "hello":
            self.harness.clients.handshake(identity(client), Hello(0, 0, 0))
        elif self.harness.workers.all[n % 2].tasks:
            self.work(event, n % 2, m)

    def work(self, event: str, worker: int, m: int) -> None:
        verifying = isinstance(self.harness.workers.all[worker].tasks[0], Verify)
        if event == "build" or (event == "need" and verifying):
            self.harness.build(worker, *(["other bytes"] if m == 1 else []), skipped="no memory" if m == 2 else "")
        elif event == "die":
            self.harness.die(worker)
        elif event == "fail":
            self.harness.fail(worker)
        else:
            one = self.harness.workers.all[worker]
            self.harness.broker.worker_said(worker, Need(one.tasks[0].task, m * PAGE))
            if isinstance(one.told[-1], Denied):
                self.harness.fail(worker)

    def check(self) -> None:
        """The answers to a request are its steps in order, or one error after them, in memory that nobody writes."""
        answers: dict[int, list[Message]] = defaultdict(list)
        for _, message in self.harness.sent:
            answers[getattr(message, "request", 0)].append(message)
        answers.pop(0, None)
        for request, told in answers.items():
            steps = [message.step for message in told if isinstance(message, Ready)]
            assert steps == list(self.asked[request])[: len(steps)]
            assert len(told) - len(steps) <= 1
            assert not any(isinstance(message, Error) for message in told[:-1])
        builds = self.harness.broker.queue
        written = {task.claim.placement.segment for task in [*builds._tasks.values(), *builds._to_verify]}
        assert not written & set(self.harness.leased())
        for number, consumer in self.harness.broker.consumers.items():
            assert consumer.stream.consumer(number)["leases"] <= consumer.consumer.max_leases + 1, "what `status` tells"
        assert len(self.harness.timer.wanted) <= 50

    def end(self) -> None:
        """All clients go and all builds end: nothing is kept but one ring of each stream."""
        for client in self.harness.clients:
            self.harness.clients.lose(client)
        while any(self.harness.steps(worker) for worker in range(2)):
            for worker in range(2):
                if self.harness.steps(worker):
                    self.harness.build(worker)
        assert not self.harness.broker.consumers
        assert self.harness.leased() == []
        assert all(not stream.lanes.lanes for stream in self.harness.broker.streams.values())
        assert all(len(stream.lanes.pool) <= 2 for stream in self.harness.broker.streams.values())


kinds = st.sampled_from(
    [
        *("open", "get", "get", "get", "demand", "release", "close", "bye", "hello"),
        *("build", "build", "build", "fail", "die", "need", "time"),
    ]
)
events = st.lists(st.tuples(kinds, st.integers(1, 3), st.integers(0, 6), st.integers(0, 9)), min_size=5, max_size=80)


@given(events)
@settings(max_examples=150)
def test_any_messages_in_any_order_leave_the_broker_whole(events: list[tuple[str, int, int, int]]) -> None:
    world = AnyOrder()
    for event in events:
        world.happen(*event)
        world.check()
    world.end()
