"""The broker: requests and builds in, replies and assignments out.

Owns `Broker`. Invariant: it alone changes the state of lanes; it neither opens sockets nor starts processes, it is
handed ports for both. A message that does not fit is answered by an error and changes nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from loader_service.core.lanes import Answer, Claim, Grant
from loader_service.daemon.clients import Client, Clients
from loader_service.daemon.messages import Build, Built, Denied, Failed, FromWorker, Larger, Need, Retire, ToWorker
from loader_service.daemon.served import ServedStream
from loader_service.errors import (
    BuildError,
    ConsumerClosedError,
    LoaderServiceError,
    MemoryLimitError,
    ProtocolError,
    ServiceClosedError,
    SharedMemoryError,
    UnknownStreamError,
)
from loader_service.wire import protocol
from loader_service.wire.protocol import Bye, Close, Done, Error, Get, Message, Open, Opened, Ready, Release

__all__ = ["Broker", "WorkerPort", "Workers"]

_log = logging.getLogger("loader_service.broker")
_MAX_DEATHS = 3
"""So many workers may die of one step; then the step has failed."""


class WorkerPort(Protocol):
    """One worker, as far as the broker cares."""

    @property
    def number(self) -> int: ...


class Workers(Protocol):
    """The workers, as far as the broker cares: the supervisor's side of it."""

    def next_free(self) -> Any: ...
    def assign(self, worker: Any, build: Build) -> None: ...
    def send(self, worker: Any, message: ToWorker) -> None: ...
    def broadcast(self, message: ToWorker) -> None: ...


Send = Callable[[bytes, Message], bool]
"""Sends a message to a client's socket, by identity; false where there is no such connection any more."""


@dataclass(slots=True)
class _Consumer:
    """Where a consumer belongs, what its client calls it, and the request that it waits with."""

    client: Client
    name: int
    stream: ServedStream
    waiting: tuple[bytes, int] | None = None


@dataclass(slots=True)
class _Task:
    stream: ServedStream
    claim: Claim


class Broker:
    """All streams, clients and tasks of one daemon.

    retired: names of unlinked segments that the workers have not been told of yet; the allocator adds to it.
    """

    def __init__(
        self, streams: list[ServedStream], clients: Clients, workers: Workers, send: Send, retired: list[str]
    ) -> None:
        self.streams = {stream.name: stream for stream in streams}
        self.consumers: dict[int, _Consumer] = {}
        self._clients, self._workers, self._send, self._retired = clients, workers, send, retired
        self._tasks: dict[int, _Task] = {}
        self._numbers, self._task_numbers = count(1), count(1)
        self._turn = 0
        self._deaths: Counter[tuple[str, int]] = Counter()

    # --- from clients ------------------------------------------------------------------------------------

    def handle(self, identity: bytes, message: Message) -> None:
        """Act on one message of a client; an error is its reply."""
        try:
            self._dispatch(identity, message)
        except LoaderServiceError as error:
            self._send(identity, Error(getattr(message, "request", 0), error.to_record()))
        self.pump()

    def _dispatch(self, identity: bytes, message: Message) -> None:
        client = self._clients.of(identity)
        if client is None:
            raise ServiceClosedError(
                "this daemon does not know the client (it was started after the client connected); connect again"
            )
        if isinstance(message, Get):
            self._get(identity, client, message)
        elif isinstance(message, Release):
            self._release(client, message)
        elif isinstance(message, Open):
            self._open(identity, client, message)
        elif isinstance(message, Close):
            self._close(client, message)
            self._send(identity, Done(message.request))
        elif isinstance(message, Bye):
            if self._clients.forget(client):
                self.client_gone(client)
        else:
            raise ProtocolError(f"a {message.kind} message is not the broker's")

    def _open(self, identity: bytes, client: Client, message: Open) -> None:
        stream = self.streams.get(message.stream)
        if stream is None:
            raise UnknownStreamError(
                f"there is no stream {message.stream!r}; this daemon serves {', '.join(map(repr, self.streams))}"
            )
        if message.consumer in client.consumers:
            raise ProtocolError(f"consumer {message.consumer} of this client is open; give each a number of its own")
        number = next(self._numbers)
        stream.lanes.open(number, message.start_step)
        self.consumers[number] = _Consumer(client, message.consumer, stream)
        client.consumers[message.consumer] = number
        opened = Opened(message.request, stream.lanes.prefetch, stream.steps_per_epoch, stream.fingerprint)
        self._send(identity, opened)

    def _get(self, identity: bytes, client: Client, message: Get) -> None:
        number = client.consumers.get(message.consumer)
        if number is None:
            raise ConsumerClosedError(f"consumer {message.consumer} is not open; open the stream again at your step")
        consumer = self.consumers[number]
        self._end_leases(number, keep=message.holds)
        answer = consumer.stream.lanes.ask(number, message.step)
        consumer.waiting = (identity, message.request)
        if answer is not None:
            self._answer(number, answer)

    def _release(self, client: Client, message: Release) -> None:
        number = client.consumers.get(message.consumer)
        if number is None:
            return  # it ended with its last lease, and the client says so again
        for lease in message.leases:
            self.consumers[number].stream.lanes.release(number, lease)
        self._forget_if_done(number)

    def _close(self, client: Client, message: Close) -> None:
        number = client.consumers.get(message.consumer)
        if number is not None:
            self.consumers[number].waiting = None
            self.consumers[number].stream.lanes.close(number)
            self._end_leases(number, keep=message.holds)
            self._forget_if_done(number)

    def _end_leases(self, number: int, keep: list[int]) -> None:
        """End all leases but those that the client says it holds: whatever was lost on the way is put right."""
        lanes = self.consumers[number].stream.lanes
        known = lanes.consumers.get(number)
        for lease in set(known.leases).difference(keep) if known else ():
            lanes.release(number, lease)

    def _forget_if_done(self, number: int) -> None:
        consumer = self.consumers.get(number)
        if consumer is not None and number not in consumer.stream.lanes.consumers:
            del self.consumers[number]
            del consumer.client.consumers[consumer.name]

    def client_gone(self, client: Client) -> None:
        """The client said Bye or its process has ended: its consumers and leases end."""
        for number in client.consumers.values():
            self.consumers[number].stream.lanes.drop(number)
            del self.consumers[number]
        client.consumers.clear()
        self.pump()

    def _answer(self, number: int, answer: Answer) -> None:
        consumer = self.consumers[number]
        if consumer.waiting is None:
            return
        (identity, request), consumer.waiting = consumer.waiting, None
        if isinstance(answer, Grant):
            consumer.stream.metrics.delivered += 1
            self._send(identity, _ready(request, answer))
        else:
            self._send(identity, Error(request, answer.error))
            self._forget_if_done(number)

    # --- builds ------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Give every free worker the next step that can be built; tell all of the segments that went."""
        while (worker := self._workers.next_free()) is not None:
            task = self._next_task()
            if task is None:
                break
            number = next(self._task_numbers)
            self._tasks[number] = task
            claim = task.claim
            self._workers.assign(
                worker,
                Build(number, task.stream.number, claim.step, claim.segment, claim.generation, claim.segment_bytes),
            )
        while self._retired:
            self._workers.broadcast(Retire(self._retired.pop()))

    def _next_task(self) -> _Task | None:
        """The streams take turns."""
        streams = list(self.streams.values())
        for offset in range(len(streams)):
            stream = streams[(self._turn + offset) % len(streams)]
            claim = stream.lanes.claim()
            if claim is not None:
                self._turn += offset + 1
                return _Task(stream, claim)
        return None

    def worker_said(self, worker: WorkerPort, message: FromWorker) -> None:
        """A build ended, or needs a larger segment."""
        if isinstance(message, Need):
            self._enlarge(worker, message)
        elif isinstance(message, Built):
            task = self._tasks.pop(message.task)
            task.stream.metrics.count_build(task.claim.step)
            self._deaths.pop((task.stream.name, task.claim.step), None)
            self._answer_all(task.stream.lanes.built(task.claim, message))
        elif isinstance(message, Failed):
            self._fail(self._tasks.pop(message.task), message.error)
        self.pump()

    def tasks_lost(self, tasks: list[int], how: str) -> None:
        """Their worker died: the first was under build, the others only waited."""
        for place, number in enumerate(tasks):
            task = self._tasks.pop(number)
            task.stream.metrics.lost += 1
            key = (task.stream.name, task.claim.step)
            self._deaths[key] += place == 0
            if self._deaths[key] >= _MAX_DEATHS:
                story = f"{how}; {_MAX_DEATHS} workers died while they built this step"
                self._fail(task, BuildError(task.claim.step, "WorkerDied", story).to_record())
            else:
                task.stream.lanes.aborted(task.claim)
        self.pump()

    def _enlarge(self, worker: WorkerPort, need: Need) -> None:
        task = self._tasks[need.task]
        try:
            task.claim = claim = task.stream.lanes.larger(task.claim, need.nbytes)
        except (MemoryLimitError, SharedMemoryError) as error:
            self._workers.send(worker, Denied(need.task, error.to_record()))
        else:
            larger = Larger(need.task, claim.segment, claim.generation, claim.segment_bytes)
            self._workers.send(worker, larger)

    def _fail(self, task: _Task, error: dict[str, Any]) -> None:
        _log.error("stream %s step %d: %s", task.stream.name, task.claim.step, error.get("message"))
        task.stream.metrics.failed += 1
        self._answer_all(task.stream.lanes.failed(task.claim, error))

    def _answer_all(self, answers: list[tuple[int, Answer]]) -> None:
        for number, answer in answers:
            self._answer(number, answer)

    # --- the end -----------------------------------------------------------------------------------------

    def say_closing(self, reason: str) -> None:
        """Tell every client, on each of its connections that waits and on the one that said Hello."""
        waiting = {consumer.waiting[0] for consumer in self.consumers.values() if consumer.waiting}
        for identity in waiting | {client.identity for client in self._clients}:
            self._send(identity, protocol.Closing(reason))


def _ready(request: int, grant: Grant) -> Ready:
    built: Built = grant.content
    return Ready(
        request=request,
        lease=grant.lease,
        lane=grant.lane,
        step=grant.step,
        epoch=built.epoch,
        step_in_epoch=built.step_in_epoch,
        slot=grant.place,
        segment=grant.segment,
        generation=grant.generation,
        nbytes=built.nbytes,
        layout=built.layout,
    )
