"""The broker: requests in, replies out, and time.

Owns `Broker`. Invariant: it alone changes the state of lanes; it neither opens sockets nor starts processes, it is
handed ports for both. A message that does not fit is answered by an error and changes nothing. Before each event the
time that has passed is accounted for, so that whoever is overdue has left its lane by then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from loader_service.daemon.broker.build_queue import Builds, WorkerPort, Workers
from loader_service.daemon.broker.clients import Client, Clients
from loader_service.daemon.broker.replies import opened, ready
from loader_service.daemon.broker.stream_state import StreamState
from loader_service.daemon.workers.crashes import Crash
from loader_service.daemon.workers.messages import FromWorker
from loader_service.errors import (
    ConsumerClosedError,
    EvictedError,
    LoaderServiceError,
    ProtocolError,
    ServiceClosedError,
    UnknownStreamError,
)
from loader_service.sharing.consumer import Answer, Grant
from loader_service.sharing.pace import ConsumerOptions, Pace
from loader_service.wire.messages import Bye, Close, Closing, Demand, Done, Error, Get, Message, Open, Opened, Release

__all__ = ["Broker", "Timer"]

_log = logging.getLogger("loader_service.broker")

_MOMENT_S = 0.001

Send = Callable[[bytes, Message], bool]
"""Sends a message to a client's socket, by identity; false where there is no such connection any more."""


class Timer(Protocol):
    """The daemon's loop, as far as the broker cares."""

    def clock(self) -> float: ...
    def after(self, delay_s: float, handler: Callable[[], None]) -> None: ...


@dataclass(slots=True)
class _Consumer:
    """Where a consumer belongs, what its client calls it, which rows it reads, and what it waits for.

    credit: leases that it may have at once; waiting: (socket, request) of its Get; next_step, left: what of that has
    not been asked of the lanes yet; demanded: the step without which it said that it cannot go on.
    """

    client: Client
    name: int
    stream: StreamState
    shard: tuple[int, int]
    credit: int
    waiting: tuple[bytes, int] | None = None
    next_step: int = 0
    left: int = 0
    demanded: int = -1


class Broker:
    """All streams and clients of one daemon. retired: see `Builds`."""

    def __init__(
        self,
        streams: list[StreamState],
        clients: Clients,
        workers: Workers,
        send: Send,
        retired: list[str],
        timer: Timer,
    ) -> None:
        self.streams = {stream.name: stream for stream in streams}
        self.consumers: dict[int, _Consumer] = {}
        self._builds = Builds(streams, workers, retired, self._answer)
        self._clients, self._send, self._timer = clients, send, timer
        self._numbers = count(1)
        self._now = timer.clock()
        self._wakes_at: float | None = None

    # --- events ------------------------------------------------------------------------------------------

    def handle(self, identity: bytes, message: Message) -> None:
        """Act on one message of a client; an error is its reply. After the last of a burst, `pump`."""
        self._pass_time()
        try:
            self._dispatch(identity, message)
        except LoaderServiceError as error:
            self._send(identity, Error(getattr(message, "request", 0), error.to_record()))

    def worker_said(self, worker: WorkerPort, message: FromWorker) -> None:
        """A task ended, or needs a larger segment."""
        self._pass_time()
        self._builds.worker_said(worker, message)
        self.pump()

    def tasks_lost(self, tasks: list[int], death: Crash) -> None:
        """Their worker died."""
        self._pass_time()
        self._builds.lost(tasks, death)
        self.pump()

    def client_gone(self, client: Client) -> None:
        """The client said Bye or its process has ended: its consumers and leases end."""
        self._pass_time()
        for number in client.consumers.values():
            self.consumers[number].stream.lanes.drop(number)
            del self.consumers[number]
        client.consumers.clear()
        self.pump()

    def pump(self) -> None:
        """Let the workers build what can be built, and wake up when somebody will be overdue."""
        self._builds.pump()
        dues = [due for stream in self.streams.values() if (due := stream.lanes.due_s()) is not None]
        if dues and (self._wakes_at is None or self._now + min(dues) < self._wakes_at):
            self._wakes_at = at = self._now + min(dues)
            self._timer.after(min(dues), lambda: self._wake(at))

    def catch_up(self) -> None:
        """Account for the time until now: who is overdue leaves its lane, and `status` tells of this moment."""
        self._pass_time(due=True)
        self.pump()

    def say_closing(self, reason: str) -> None:
        """Tell every client, on each of its connections that waits and on the one that said Hello."""
        waiting = {consumer.waiting[0] for consumer in self.consumers.values() if consumer.waiting}
        for identity in waiting | {client.identity for client in self._clients}:
            self._send(identity, Closing(reason))

    # --- time --------------------------------------------------------------------------------------------

    def _wake(self, at: float) -> None:
        if at == self._wakes_at:  # else an earlier one was wanted meanwhile, and has seen to what is next
            self._wakes_at = None
            self.catch_up()

    def _pass_time(self, *, due: bool = False) -> None:
        """The time since the last event has passed in the state of now; that of a burst is accounted for in one go."""
        now = self._timer.clock()
        if not due and now - self._now < _MOMENT_S:
            return
        elapsed_s, self._now = now - self._now, now
        for stream in self.streams.values():
            known = len(stream.lanes.consumers)
            passed = stream.lanes.pass_time(elapsed_s)
            for number, answer in passed.answers:
                self._answer(number, answer)
            for number in passed.evicted:
                error = EvictedError(stream.lanes.consumers[number].evicted)
                pid = self.consumers[number].client.pid
                fields = {"stream": stream.name, "consumer": number, "pid": pid}
                _log.warning("consumer %d of stream %s: %s", number, stream.name, error.message, extra=fields)
                self._refuse(number, error)
            if len(stream.lanes.consumers) < known:  # one that was closed lost its last leases
                for number in list(self.consumers):
                    self._forget_if_done(number)

    # --- requests ----------------------------------------------------------------------------------------

    def _dispatch(self, identity: bytes, message: Message) -> None:
        client = self._clients.of(identity)
        if client is None:
            raise ServiceClosedError(
                "this daemon does not know the client (it was started after the client connected); connect again"
            )
        if isinstance(message, Get):
            self._get(identity, client, message)
        elif isinstance(message, Demand):
            self._demand(client, message)
        elif isinstance(message, Release):
            self._release(client, message)
        elif isinstance(message, Open):
            self._send(identity, self._open(client, message))
        elif isinstance(message, Close):
            self._close(client, message)
            self._send(identity, Done(message.request))
        elif isinstance(message, Bye):
            if self._clients.forget(client):
                self.client_gone(client)
        else:
            raise ProtocolError(f"a {message.kind} message is not the broker's")

    def _open(self, client: Client, message: Open) -> Opened:
        self._clients.check_meant(message)
        client.check_new(message.consumer)
        stream = self.streams.get(message.stream)
        if stream is None:
            raise UnknownStreamError(
                f"there is no stream {message.stream!r}; this daemon serves {', '.join(map(repr, self.streams))}"
            )
        terms = ConsumerOptions(Pace(message.pace, message.patience_us / 1e6), message.hold or None)
        number = next(self._numbers)
        start_step = stream.lanes.open(number, None if message.live else message.start_step, terms)
        credit, shard = terms.hold_in(stream.lanes.prefetch) + 1, (message.rank, message.world)
        self.consumers[number] = _Consumer(client, message.consumer, stream, shard, credit)
        client.consumers[message.consumer] = number
        return opened(message.request, stream, start_step, credit - 1)

    def _get(self, identity: bytes, client: Client, message: Get) -> None:
        number = client.consumers.get(message.consumer)
        if number is None:
            raise ConsumerClosedError(f"consumer {message.consumer} is not open; open the stream again at your step")
        if message.steps < 1:
            raise ProtocolError(f"a get message asks for {message.steps} steps; it must ask for at least 1")
        consumer = self.consumers[number]
        self._end_leases(number, keep=message.holds)
        self._forget_if_done(number)
        consumer.waiting = None
        answer = consumer.stream.lanes.ask(number, message.step, demanded=message.demanded, jumps=True)
        consumer.waiting = (identity, message.request)
        consumer.next_step, consumer.left = message.step + 1, message.steps - 1
        if answer is not None:
            self._answer(number, answer)

    def _demand(self, client: Client, message: Demand) -> None:
        number = client.consumers.get(message.consumer)
        if number is not None:
            self.consumers[number].demanded = message.step  # it may come before the release that lets it be asked for
            self.consumers[number].stream.lanes.demand(number, message.step)

    def _release(self, client: Client, message: Release) -> None:
        number = client.consumers.get(message.consumer)
        if number is None:
            return  # it ended with its last lease, and the client says so again
        for lease in message.leases:
            self.consumers[number].stream.lanes.release(number, lease)
        self._forget_if_done(number)
        self._go_on(number)

    def _go_on(self, number: int) -> None:
        """Ask for the steps that follow, as far as the consumer's credit reaches."""
        consumer = self.consumers.get(number)
        while consumer is not None and consumer.waiting is not None and consumer.left:
            lanes = consumer.stream.lanes
            if lanes.waits(number) or len(lanes.consumers[number].leases) >= consumer.credit:
                return
            step, consumer.next_step, consumer.left = consumer.next_step, consumer.next_step + 1, consumer.left - 1
            try:
                answer = lanes.ask(number, step, demanded=step == consumer.demanded)
            except LoaderServiceError as error:
                self._refuse(number, error)
                return
            if answer is None:
                return
            self._deliver(number, answer)

    def _close(self, client: Client, message: Close) -> None:
        number = client.consumers.get(message.consumer)
        if number is None:
            client.give_up(message.consumer)
        else:
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

    # --- replies -----------------------------------------------------------------------------------------

    def _answer(self, number: int, answer: Answer) -> None:
        self._deliver(number, answer)
        self._go_on(number)

    def _deliver(self, number: int, answer: Answer) -> None:
        consumer = self.consumers[number]
        if not isinstance(answer, Grant):
            self._refuse(number, answer.error)
        elif consumer.waiting is not None:
            consumer.stream.metrics.delivered += 1
            self._send(consumer.waiting[0], ready(consumer.waiting[1], answer, consumer.stream.lanes.prefetch))

    def _refuse(self, number: int, error: LoaderServiceError | dict[str, Any]) -> None:
        consumer = self.consumers[number]
        if consumer.waiting is not None:
            (identity, request), consumer.waiting = consumer.waiting, None
            record = error if isinstance(error, dict) else error.to_record()
            self._send(identity, Error(request, record))
