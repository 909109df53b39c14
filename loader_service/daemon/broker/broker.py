"""The broker: requests in, replies out, and time.

Owns `Broker`. Invariant: it alone changes the state of lanes; it neither opens sockets nor starts processes, it is
handed ports for both. A message is dispatched once, by its type; a message that does not fit is answered by an error,
in one place, and changes nothing. Before each event the time that has passed is accounted for, so that whoever blocks
others too long has left its lane by then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

from loader_service.daemon.broker.build_queue import BuildQueue
from loader_service.daemon.broker.clients import Client, Clients
from loader_service.daemon.broker.stream_state import StreamState
from loader_service.daemon.ports import TaskMessage, Timer, Workers
from loader_service.daemon.workers.crashes import Crash
from loader_service.daemon.workers.messages import Built
from loader_service.errors import (
    ConsumerClosedError,
    EvictedError,
    LoaderServiceError,
    ProtocolError,
    UnknownStreamError,
)
from loader_service.sharing.consumer import Consumer, ConsumerOptions, Grant, SlowConsumerPolicy
from loader_service.sharing.scheduler import Answers
from loader_service.wire.messages import (
    Bye,
    Close,
    Closing,
    Demand,
    Done,
    Error,
    Get,
    Message,
    Open,
    Opened,
    Ready,
    Release,
)

__all__ = ["Broker", "ConsumerRoute", "Handler"]

_log = logging.getLogger("loader_service.broker")

_MOMENT_S = 0.001
"""Times shorter than this are accounted for together, unless somebody waits for somebody else."""

Send = Callable[[bytes, Message], bool]
"""Sends a message to a client's socket, by identity; false where there is no such connection any more."""
Handler = Callable[[bytes, Any], Message | None]
"""Acts on one message from the socket of that identity; its reply, if it has one now. Raises LoaderServiceError."""


@dataclass(slots=True, eq=False)
class ConsumerRoute:
    """The way from a consumer to its client; its state is that of the lanes.

    Args:
        client: whose it is.
        number: what its client calls it.
        stream: the stream that it reads.
        shard: (rank, world), for `status`.
        consumer: its record.
        reply_to: (socket identity, request number) of its Get, while that is not answered by an error.
    """

    client: Client
    number: int
    stream: StreamState
    shard: tuple[int, int]
    consumer: Consumer
    reply_to: tuple[bytes, int] | None = None


class Broker:
    """All streams and clients of one daemon.

    Args:
        streams: those that it serves.
        clients: who is connected.
        workers: who builds.
        send: the way to the clients' sockets.
        retired: see `BuildQueue`.
        timer: the daemon's loop.
    """

    def __init__(
        self,
        streams: list[StreamState],
        clients: Clients,
        workers: Workers,
        send: Send,
        retired: list[str],
        timer: Timer,
    ) -> None:
        self.streams: dict[str, StreamState] = {}
        self.consumers: dict[int, ConsumerRoute] = {}
        self.queue = BuildQueue(workers, retired)
        for stream in streams:
            self.add_stream(stream)
        self._clients, self._send, self._timer = clients, send, timer
        self._consumer_ids = count(1)
        self._now = timer.clock()
        self._wakes_at: float | None = None
        self._someone_waits = False
        self._handlers: dict[type[Message], Handler] = {
            Bye: self._bye,
            Close: self._close,
            Demand: self._demand,
            Get: self._get,
            Open: self._open,
            Release: self._release,
        }

    def add_stream(self, stream: StreamState) -> None:
        """Serve one more stream."""
        self.streams[stream.name] = stream
        self.queue.streams.append(stream)

    def add_handlers(self, handlers: dict[type[Message], Handler]) -> None:
        """Let messages of other classes be answered, by whoever knows the answer."""
        self._handlers |= handlers

    # --- events ------------------------------------------------------------------------------------------

    def handle(self, identity: bytes, message: Message) -> None:
        """Act on one message of a client; an error is its reply. After the last of a burst, `pump`."""
        self._pass_time()
        handler = self._handlers.get(type(message), _refuse_kind)
        try:
            reply = handler(identity, message)
        except LoaderServiceError as error:
            reply = _error(getattr(message, "request", 0), error)
        if reply is not None:
            self._send(identity, reply)

    def worker_said(self, worker_id: int, message: TaskMessage) -> None:
        """Take a worker's word on one of its tasks: it ended, needs a larger segment, or tells what it is about."""
        self._pass_time()
        self._deliver(self.queue.worker_said(worker_id, message))
        self.pump()

    def worker_died(self, worker_id: int, task_ids: list[int], crash: Crash) -> None:
        """Take note that a worker ended with these tasks: they are built again, or fail."""
        self._pass_time()
        self._deliver(self.queue.worker_died(task_ids, crash))
        self.pump()

    def worker_ready(self, worker_id: int) -> None:
        """Take note that one more worker can be given tasks."""
        self.pump()

    def client_gone(self, client: Client) -> None:
        """Take note that the client said Bye or its process has ended: its consumers and leases end."""
        self._pass_time()
        for consumer_id in client.consumers.values():
            self.consumers.pop(consumer_id).stream.lanes.drop(consumer_id)
        client.consumers.clear()
        self.pump()

    def pump(self) -> None:
        """Let the workers build what can be built, and wake up when somebody is to leave its lane."""
        self.queue.pump()
        dues = [due for stream in self.streams.values() if (due := stream.lanes.due_s()) is not None]
        self._someone_waits = bool(dues)
        if dues and (self._wakes_at is None or self._now + min(dues) < self._wakes_at):
            self._wakes_at = at = self._now + min(dues)
            self._timer.after(min(dues), lambda: self._wake(at))

    def catch_up(self) -> None:
        """Account for the time until now: who is to leave its lane leaves, and `status` tells of this moment."""
        self._pass_time(due=True)
        self.pump()

    def say_closing(self, reason: str) -> None:
        """Tell every client, on each of its connections that waits and on the one that said Hello."""
        waiting = {route.reply_to[0] for route in self.consumers.values() if route.reply_to}
        for identity in waiting | {client.identity for client in self._clients}:
            self._send(identity, Closing(reason))

    # --- time --------------------------------------------------------------------------------------------

    def _wake(self, at: float) -> None:
        if at == self._wakes_at:  # else an earlier one was wanted meanwhile, and has seen to what is next
            self._wakes_at = None
            self.catch_up()

    def _pass_time(self, *, due: bool = False) -> None:
        """Account for the time since the last event, which has passed in the state of now."""
        now = self._timer.clock()
        if now - self._now < _MOMENT_S and not due and not self._someone_waits:
            return
        elapsed_s, self._now = now - self._now, now
        for stream in self.streams.values():
            passed = stream.lanes.pass_time(elapsed_s)
            self._deliver(passed.answers)
            for consumer_id, why in passed.left:
                self._tell_left(self.consumers[consumer_id], why)

    def _tell_left(self, route: ConsumerRoute, why: str) -> None:
        """Log who was split off, or evicted; the latter hears of it too."""
        consumer_id, stream = route.consumer.consumer_id, route.stream.name
        fields = {"stream": stream, "consumer": consumer_id, "pid": route.client.pid}
        if why:
            _log.warning("consumer %d of stream %s: %s", consumer_id, stream, why, extra=fields)
            self._refuse(route, EvictedError(why))
            self._forget_if_done(route)
        else:
            _log.info("consumer %d of %s goes on by itself; others waited for it", consumer_id, stream, extra=fields)

    # --- messages of clients -----------------------------------------------------------------------------

    def _open(self, identity: bytes, message: Open) -> Opened:
        client = self._clients.of(identity)
        self._clients.check_meant(message)
        client.check_new(message.consumer)
        stream = self.streams.get(message.stream)
        if stream is None:
            raise UnknownStreamError(
                f"there is no stream {message.stream!r}; this daemon serves {', '.join(map(repr, self.streams))}"
            )
        policy = SlowConsumerPolicy(message.pace, message.patience_us / 1e6)
        options, consumer_id = ConsumerOptions(policy, message.hold or None), next(self._consumer_ids)
        consumer = stream.lanes.open(consumer_id, None if message.live else message.start_step, options)
        shard = (message.rank, message.world)
        self.consumers[consumer_id] = ConsumerRoute(client, message.consumer, stream, shard, consumer)
        client.consumers[message.consumer] = consumer_id
        return Opened(
            request=message.request,
            start_step=consumer.position,
            prefetch=stream.lanes.prefetch,
            hold=consumer.max_leases,
            steps_per_epoch=stream.steps_per_epoch,
            fingerprint=stream.fingerprint,
            description=stream.description,
        )

    def _get(self, identity: bytes, message: Get) -> None:
        client = self._clients.of(identity)
        consumer_id = client.consumers.get(message.consumer)
        if consumer_id is None:
            raise ConsumerClosedError(f"consumer {message.consumer} is not open; open the stream again at your step")
        if message.steps < 1:
            raise ProtocolError(f"a get message asks for {message.steps} steps; it must ask for at least 1")
        route = self.consumers[consumer_id]
        route.reply_to, lanes = None, route.stream.lanes
        if route.consumer.closed:
            lanes.end_run(consumer_id, message.holds)
            self._forget_if_done(route)
        answers = lanes.ask(
            consumer_id, message.step, steps=message.steps, kept=message.holds, demanded=message.demanded, jumps=True
        )
        route.reply_to = identity, message.request
        self._deliver(answers)

    def _demand(self, identity: bytes, message: Demand) -> None:
        consumer_id = self._clients.of(identity).consumers.get(message.consumer)
        if consumer_id is not None:
            self.consumers[consumer_id].stream.lanes.demand(consumer_id, message.step)

    def _release(self, identity: bytes, message: Release) -> None:
        consumer_id = self._clients.of(identity).consumers.get(message.consumer)
        if consumer_id is not None:  # else it ended with its last lease, and the client says so again
            route = self.consumers[consumer_id]
            self._deliver(route.stream.lanes.release(consumer_id, *message.leases))
            if route.consumer.closed:
                self._forget_if_done(route)

    def _close(self, identity: bytes, message: Close) -> Done:
        client = self._clients.of(identity)
        consumer_id = client.consumers.get(message.consumer)
        if consumer_id is None:
            client.give_up(message.consumer)
        else:
            route = self.consumers[consumer_id]
            route.reply_to = None
            route.stream.lanes.close(consumer_id)
            route.stream.lanes.end_run(consumer_id, message.holds)
            self._forget_if_done(route)
        return Done(message.request)

    def _bye(self, identity: bytes, _message: Bye) -> None:
        client = self._clients.of(identity)
        if self._clients.forget(client):
            self.client_gone(client)

    def _forget_if_done(self, route: ConsumerRoute) -> None:
        """Forget a consumer that the lanes have forgotten: it was closed, and its last lease has ended."""
        consumer_id = route.consumer.consumer_id
        if consumer_id not in route.stream.lanes.consumers:
            del self.consumers[consumer_id]
            del route.client.consumers[route.number]

    # --- replies -----------------------------------------------------------------------------------------

    def _deliver(self, answers: Answers) -> None:
        """Tell consumers what they are answered; nobody is told who has not asked since its last error."""
        for consumer_id, answer in answers:
            route = self.consumers[consumer_id]
            if not isinstance(answer, Grant):
                self._refuse(route, answer.error)
            elif route.reply_to is not None:
                identity, request = route.reply_to
                route.stream.metrics.delivered += 1
                self._send(identity, _ready(request, answer, route.stream.lanes.prefetch))

    def _refuse(self, route: ConsumerRoute, error: LoaderServiceError | dict[str, Any]) -> None:
        if route.reply_to is not None:
            (identity, request), route.reply_to = route.reply_to, None
            self._send(identity, _error(request, error))


def _refuse_kind(_identity: bytes, message: Message) -> None:
    raise ProtocolError(f"a {message.kind} message is not answered here")


def _error(request: int, error: LoaderServiceError | dict[str, Any]) -> Error:
    """Return the reply that carries an error, or the record of one."""
    return Error(request, error if isinstance(error, dict) else error.to_record())


def _ready(request: int, grant: Grant, prefetch: int) -> Ready:
    """Return the answer to a Get, for a step that stands in its slot."""
    built: Built = grant.content
    return Ready(
        request=request,
        lease=grant.lease_id,
        lane=grant.lane_id,
        step=grant.step,
        epoch=built.epoch,
        step_in_epoch=built.step_in_epoch,
        slot=grant.slot,
        placement=grant.placement,
        nbytes=built.nbytes,
        rows=built.rows,
        layout=built.layout,
        prefetch=prefetch,
        blocked=grant.blocked,
    )
