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
    desk = BrokerHarness(workers=4, prefetch=16)
    desk.open(1, "a")
    desk.open(1, "b")
    while len(desk.workers.given) < 24:
        for worker in range(4):
            desk.build(worker)
    assert [build.stream for build in desk.workers.given[:8]] == [0] * 8
    assert [build.stream for build in desk.workers.given[8:24]] in ([0, 1] * 8, [1, 0] * 8)


def test_what_a_consumer_waits_for_is_built_before_what_is_only_near() -> None:
    desk = BrokerHarness(prefetch=8)
    consumer = desk.open()
    desk.get(consumer, 6)
    desk.build()
    desk.build()
    assert desk.steps()[0] == 6


def test_what_is_demanded_of_any_stream_is_built_before_all_that_is_built_ahead() -> None:
    """Turns count among demanded steps, and among the others."""
    desk = BrokerHarness(workers=0, prefetch=4, streams="abc")
    consumers = {stream: desk.open(1, stream) for stream in "abc"}
    desk.get(consumers["c"], 2)
    desk.get(consumers["b"], 3)
    desk.workers.all = [FakeWorker(number) for number in range(6)]
    desk.broker.pump()
    given = [(build.stream, build.step) for build in desk.workers.given]
    assert sorted(given[:2]) == [(1, 3), (2, 2)]
    built = {stream: [step for of, step in given if of == stream] for stream in range(3)}
    assert built == {0: [0, 1, 2, 3], 1: [3, 4, 5, 6], 2: [2, 3, 4, 5]}


def test_what_is_only_asked_for_ahead_is_not_built_first_until_it_is_demanded() -> None:
    desk = BrokerHarness(workers=0, prefetch=4)
    asking = desk.open(1, "b")
    desk.open(2, "a")
    desk.say(1, Get(99, asking, 0, 1, [], False))
    desk.workers.all = [FakeWorker(0)]
    desk.broker.pump()
    assert [build.stream for build in desk.workers.given] == [0, 1]
    desk.say(1, Get(100, asking, 3, 1, [], False))
    desk.say(1, Demand(asking, 3))
    desk.build()
    assert [(build.stream, build.step) for build in desk.workers.given[2:]] == [(1, 3)]


def test_a_step_that_cannot_be_built_is_told_to_those_who_come_to_it_and_ends_nothing_else() -> None:
    """It is the client that ends the iteration; one that asks for another step gets it."""
    desk = BrokerHarness()
    waiting, later = desk.open(1), desk.open(2)
    desk.get(waiting, 0, socket=4)
    [(socket, reply)] = desk.fail()
    assert socket == identity(1, 4)
    error = desk.error([reply])
    assert isinstance(error, BuildError)
    assert (error.step, error.cause_type, error.cause_message) == (0, "ValueError", "no data")
    assert isinstance(desk.error(desk.get(later, 0, client=2)), BuildError)
    desk.build()
    assert desk.ready(desk.get(later, 1, client=2)).step == 1
    assert desk.ready(desk.get(waiting, 1)).step == 1
    assert desk.broker.streams["a"].metrics.failed == 1
    assert list(desk.broker.consumers) == [waiting, later]


def test_a_lost_step_is_built_again_for_those_who_wait() -> None:
    desk = BrokerHarness()
    consumer = desk.open()
    desk.get(consumer, 0)
    assert desk.die() == []
    assert sorted(desk.steps()) == [0, 1]
    while desk.steps()[0] != 0:
        desk.build()
    [(_, reply)] = desk.build()
    assert desk.ready([reply]).step == 0
    assert desk.broker.streams["a"].metrics.lost == 2


def test_a_step_that_kills_three_workers_fails_with_the_story() -> None:
    desk = BrokerHarness(prefetch=1)
    consumer = desk.open()
    desk.get(consumer, 0)
    assert desk.die() == desk.die() == []
    [(_, reply)] = desk.die()
    error = desk.error([reply])
    assert isinstance(error, BuildError)
    assert (error.step, error.cause_type) == (0, "WorkerDied")
    assert "worker 0 (pid 1) was killed by SIGKILL; 3 workers died while they built this step" in error.message
    assert desk.steps() == []


def test_a_death_is_told_with_stream_step_and_what_the_next_worker_says_of_the_samples(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = BrokerHarness(prefetch=1)
    consumer = desk.open()
    desk.get(consumer, 0)
    assert not desk.workers.given[-1].explain, "a build that nobody died of costs no message"
    desk.die()
    assert desk.workers.given[-1].explain
    desk.explain(7, 9, rows=2)
    desk.die(death=Crash("worker 0 (pid 2) hung", "the stack", hung=True))
    desk.explain(7, 9, rows=2)
    death, told, second, again = [record.getMessage() for record in caplog.records]
    assert death == "stream a step 0 was built when worker 0 (pid 1) was killed by SIGKILL"
    assert told == "stream a step 0 has dataset indices 7, 9: of them worker 0 (pid 1) was killed by SIGKILL"
    assert (second, again) == (
        death.replace(f"(pid 1) {KILLED}", "(pid 2) hung"),
        told.replace(f"(pid 1) {KILLED}", "(pid 2) hung"),
    )
    [(_, reply)] = desk.die()
    error = desk.error([reply])
    assert isinstance(error, BuildError)
    assert "; worker 0 (pid 2) hung; " in error.message
    assert error.message.endswith("3 workers died while they built this step (dataset indices 7, 9)")
    assert (error.cause_type, error.remote_traceback) == ("WorkerDied", "the stack")


def test_a_step_that_failed_of_deaths_and_is_wanted_again_gets_as_many_tries_again() -> None:
    desk = BrokerHarness(prefetch=1)
    for _ in range(2):
        consumer = desk.open()
        desk.get(consumer, 0)
        assert desk.die() == desk.die() == []
        assert len(desk.die()) == 1
        desk.close(consumer)


def test_a_step_that_only_waited_behind_another_is_not_to_blame() -> None:
    desk = BrokerHarness()
    consumer = desk.open()
    for _ in range(2):
        assert desk.steps() == [0, 1]
        desk.die()
    desk.build()
    desk.get(consumer, 1)
    assert desk.steps()[0] == 1
    assert desk.die() == []
    assert 1 in desk.steps()


def test_a_batch_that_needs_more_gets_a_larger_segment() -> None:
    desk = BrokerHarness()
    consumer = desk.open()
    desk.get(consumer, 0)
    worker = desk.workers.all[0]
    task = worker.tasks[0]
    desk.broker.worker_said(worker.number, Need(task.task, 3 * PAGE))
    [larger] = worker.told
    assert isinstance(larger, Larger)
    assert larger.task == task.task
    assert larger.placement.nbytes == desk.memory.sizes[larger.placement.segment] >= 3 * PAGE
    assert larger.placement.segment != task.placement.segment
    [(_, reply)] = desk.build()
    ready = desk.ready([reply])
    assert ready.placement == larger.placement
    assert Retire(task.placement.segment) in desk.workers.broadcasts


def test_a_batch_for_which_there_is_no_memory_fails_with_that_error() -> None:
    desk = BrokerHarness(limit_bytes=4 * PAGE)
    consumer = desk.open()
    desk.get(consumer, 0)
    worker = desk.workers.all[0]
    task = worker.tasks.pop(0)
    desk.broker.worker_said(worker.number, Need(task.task, 30 * PAGE))
    [denied] = worker.told
    assert isinstance(denied, Denied)
    assert denied.error["code"] == MemoryLimitError.code
    before = len(desk.sent)
    desk.broker.worker_said(worker.number, Failed(task.task, denied.error))
    [(_, reply)] = desk.sent[before:]
    assert type(desk.error([reply])) is MemoryLimitError


def test_workers_are_told_of_segments_that_went() -> None:
    desk = BrokerHarness()
    consumers = [desk.open(step=step) for step in (0, 100)]
    while any(desk.steps()):
        desk.build()
    assert desk.workers.broadcasts == []
    desk.close(consumers[0])
    assert len(desk.workers.broadcasts) == 2
    assert desk.memory.retired == []


# --- anything, in any order ------------------------------------------------------------------------------


class AnyOrder:
    """Does whatever it is told to a broker that has little memory, and checks what must hold after each event."""

    def __init__(self) -> None:
        self.desk = BrokerHarness(
            workers=2, prefetch=2, limit_bytes=14 * PAGE, limits=Limits(evict_after_s=4.0), verify=3
        )
        self.requests = count(1)
        self.asked: dict[int, range] = {}

    def happen(self, event: str, client: int, n: int, m: int) -> None:
        request = next(self.requests)
        pace, daemon = ("split", "wait")[m % 2], self.desk.clients.incarnation + (m == 9)
        messages: dict[str, Message] = {
            "open": Open(request, n, "abc"[n % 3], m, m == 0, pace, m * 500_000, m % 3, 0, 1, daemon),
            "get": Get(request, n, m, 1 + m % 4, [m, m + 1], n % 2 == 0),
            "demand": Demand(n, m),
            "release": Release(n, [m, m + 1]),
            "close": Close(request, n, [m]),
            "bye": Bye(),
        }
        if event == "time":
            self.desk.timer.pass_time(m / 4)
        elif event in messages:
            self.asked[request] = range(m, m + 1 + m % 4)
            self.desk.say(client, messages[event])
        elif event == "hello":
            self.desk.clients.handshake(identity(client), Hello(0, 0, 0))
        elif self.desk.workers.all[n % 2].tasks:
            self.work(event, n % 2, m)

    def work(self, event: str, worker: int, m: int) -> None:
        verifying = isinstance(self.desk.workers.all[worker].tasks[0], Verify)
        if event == "build" or (event == "need" and verifying):
            self.desk.build(worker, *(["other bytes"] if m == 1 else []), skipped="no memory" if m == 2 else "")
        elif event == "die":
            self.desk.die(worker)
        elif event == "fail":
            self.desk.fail(worker)
        else:
            one = self.desk.workers.all[worker]
            self.desk.broker.worker_said(worker, Need(one.tasks[0].task, m * PAGE))
            if isinstance(one.told[-1], Denied):
                self.desk.fail(worker)

    def check(self) -> None:
        """The answers to a request are its steps in order, or one error after them, in memory that nobody writes."""
        answers: dict[int, list[Message]] = defaultdict(list)
        for _, message in self.desk.sent:
            answers[getattr(message, "request", 0)].append(message)
        answers.pop(0, None)
        for request, told in answers.items():
            steps = [message.step for message in told if isinstance(message, Ready)]
            assert steps == list(self.asked[request])[: len(steps)]
            assert len(told) - len(steps) <= 1
            assert not any(isinstance(message, Error) for message in told[:-1])
        builds = self.desk.broker.queue
        written = {task.claim.placement.segment for task in [*builds._tasks.values(), *builds._to_verify]}
        assert not written & set(self.desk.leased())
        for number, consumer in self.desk.broker.consumers.items():
            assert consumer.stream.consumer(number)["leases"] <= consumer.consumer.max_leases + 1, "what `status` tells"
        assert len(self.desk.timer.wanted) <= 50

    def end(self) -> None:
        """All clients go and all builds end: nothing is kept but one ring of each stream."""
        for client in self.desk.clients:
            self.desk.clients.lose(client)
        while any(self.desk.steps(worker) for worker in range(2)):
            for worker in range(2):
                if self.desk.steps(worker):
                    self.desk.build(worker)
        assert not self.desk.broker.consumers
        assert self.desk.leased() == []
        assert all(not stream.lanes.lanes for stream in self.desk.broker.streams.values())
        assert all(len(stream.lanes.pool) <= 2 for stream in self.desk.broker.streams.values())


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
