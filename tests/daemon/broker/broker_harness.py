"""A broker with all that its tests put around it: clients that say, workers that build, memory that ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from loader_service.daemon.broker.broker import Broker
from loader_service.daemon.broker.clients import Client, Clients
from loader_service.daemon.broker.stream_state import StreamState
from loader_service.daemon.ports import TaskMessage
from loader_service.daemon.server.event_loop import Loop
from loader_service.daemon.workers.crashes import Crash
from loader_service.daemon.workers.messages import (
    Build,
    Built,
    Explained,
    Failed,
    ToWorker,
    Verified,
    Verify,
)
from loader_service.errors import BuildError, LoaderServiceError, MemoryLimitError, from_record
from loader_service.sharing.fairness import Limits
from loader_service.sharing.scheduler import RingScheduler
from loader_service.sharing.segment_pool import SegmentPool
from loader_service.wire.messages import Close, Error, Get, Hello, Message, Open, Opened, Ready

__all__ = ["KILLED", "PAGE", "BrokerHarness", "FakeWorker", "identity"]

PAGE = 4096
KILLED = "was killed by SIGKILL"


def identity(client: int, socket: int = 0) -> bytes:
    """The identity of one socket of a client."""
    return client.to_bytes(16, "big") + socket.to_bytes(4, "big")


@dataclass(eq=False)
class FakeWorker:
    """A worker as the broker sees it, with what it was given to do."""

    number: int
    tasks: list[Build | Verify] = field(default_factory=list)
    told: list[ToWorker] = field(default_factory=list)


class FakeWorkers:
    """The supervisor's side: every worker takes two tasks. away: the numbers of those that are not ready."""

    def __init__(self, number: int) -> None:
        self.all = [FakeWorker(place) for place in range(number)]
        self.broadcasts: list[ToWorker] = []
        self.given: list[Build] = []
        self.away: set[int] = set()

    def ready(self) -> list[FakeWorker]:
        return [one for one in self.all if one.number not in self.away]

    def next_free(self, but: int | None = None) -> int | None:
        free = [one for one in self.ready() if one.number != but and len(one.tasks) < 2]
        first = min(free, key=lambda one: len(one.tasks), default=None)
        return None if first is None else first.number

    def has_others(self, worker_id: int) -> bool:
        return any(one.number != worker_id for one in self.ready())

    def assign(self, worker_id: int, task: Build | Verify) -> None:
        self.all[worker_id].tasks.append(task)
        if isinstance(task, Build):
            self.given.append(task)

    def send(self, worker_id: int, message: ToWorker) -> None:
        self.all[worker_id].told.append(message)

    def broadcast(self, message: ToWorker) -> None:
        self.broadcasts.append(message)


class FakeMemory:
    """Segments that are names; `limit_bytes` of them together."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.sizes: dict[str, int] = {}
        self.retired: list[str] = []
        self.unlinked: set[str] = set()
        self._numbers = count()

    def create(self, nbytes: int) -> str:
        if sum(self.sizes.values()) + nbytes > self.limit_bytes:
            raise MemoryLimitError(f"{nbytes} bytes are too much")
        name = f"m{next(self._numbers)}"
        self.sizes[name] = nbytes
        return name

    def retire(self, segment: str, *, may_be_read: bool) -> None:
        del self.sizes[segment]
        self.retired.append(segment)

    def fits(self, nbytes: int) -> bool:
        return sum(self.sizes.values()) + nbytes <= self.limit_bytes

    def exists(self, segment: str) -> bool:
        return segment not in self.unlinked


class FakeTimer:
    """A clock that the test sets, and what the broker wants to be called for; armed: how often it wanted it."""

    def __init__(self) -> None:
        self.now, self.armed = 1000.0, 0
        self.wanted: list[tuple[float, Callable[[], None]]] = []

    def clock(self) -> float:
        return self.now

    def after(self, delay_s: float, handler: Callable[[], None]) -> None:
        self.wanted.append((self.now + delay_s, handler))
        self.armed += 1

    def pass_time(self, seconds: float) -> None:
        """Let the clock go on, and call what is due, in order."""
        end = self.now + seconds
        while due := [place for place, (at, _) in enumerate(self.wanted) if at <= end]:
            self.now, handler = self.wanted.pop(min(due, key=lambda place: self.wanted[place][0]))
            handler()
        self.now = end


class BrokerHarness:
    """A broker of streams "a" and "b", 10 steps an epoch, with clients 1 and 2.

    reads_on: builds go on for every open consumer, as if it had asked for all steps that follow.
    """

    def __init__(
        self,
        workers: int = 1,
        prefetch: int = 2,
        limit_bytes: int = 2**30,
        streams: str = "ab",
        limits: Limits | None = None,
        verify: int = 0,
        *,
        reads_on: bool = True,
    ) -> None:
        self.reads_on = reads_on
        self.sent: list[tuple[bytes, Message]] = []
        self.limits, self.verify = limits, verify
        self.unreachable: set[bytes] = set()
        self.workers, self.memory = FakeWorkers(workers), FakeMemory(limit_bytes)
        self.clients = Clients(Loop(time.monotonic), self._gone)
        served = [self._stream(number, name, prefetch) for number, name in enumerate(streams)]
        self.timer = FakeTimer()
        self.broker = Broker(served, self.clients, self.workers, self._send, self.memory.retired, self.timer)
        self._requests, self._names = count(1), count(1)
        for client in (1, 2):
            self.clients.handshake(identity(client), Hello(0, 0, 0))

    def _stream(self, number: int, name: str, prefetch: int) -> StreamState:
        lanes = RingScheduler(prefetch, SegmentPool(self.memory, prefetch, PAGE), count(number + 1, 2), self.limits)
        return StreamState(name, number, 10, f"fingerprint of {name}", {"name": name}, lanes, self.verify)

    def _send(self, socket: bytes, message: Message) -> bool:
        if socket in self.unreachable:
            return False
        self.sent.append((socket, message))
        return True

    def _gone(self, client: Client) -> None:
        self.broker.client_gone(client)

    # --- clients -----------------------------------------------------------------------------------------

    def say(self, client: int, message: Message, socket: int = 0) -> list[Message]:
        """Hand a message of a client to the broker; what was sent to that socket because of it."""
        before = len(self.sent)
        self.broker.handle(identity(client, socket), message)
        self.broker.pump()
        return [reply for to, reply in self.sent[before:] if to == identity(client, socket)]

    def open(self, client: int = 1, stream: str = "a", step: int = 0, **others: Any) -> int:
        """Open a stream; the consumer's number, to its client as to the broker. others: fields of the message."""
        name = next(self._names)
        [reply] = self.say(client, replace(self.opening(name, stream, step), **others))
        assert isinstance(reply, Opened), reply
        self._reads_on(client, name)
        return name

    def _reads_on(self, client: int, name: int) -> None:
        """Let what is built for a consumer not end where its requests do, unless they are of several steps."""
        consumer_id = self.clients.of(identity(client)).consumers.get(name)
        if consumer_id is not None and self.reads_on:
            self.broker.consumers[consumer_id].consumer.asked_until = 2**63
            self.broker.pump()

    def opening(self, name: int, stream: str = "a", step: int = 0, hold: int = 0) -> Open:
        """The message that opens a stream, to be split after a second."""
        daemon = self.clients.incarnation
        return Open(next(self._requests), name, stream, step, False, "split", 1_000_000, hold, 0, 1, daemon)

    def holds(self, consumer: int) -> list[int]:
        """All leases of a consumer: what its client says that it holds, if nothing was lost or dropped."""
        known = self.broker.consumers.get(consumer)
        return list(known.consumer.leases) if known else []

    def get(self, consumer: int, step: int, client: int = 1, socket: int = 0, steps: int = 1) -> list[Message]:
        replies = self.say(client, Get(next(self._requests), consumer, step, steps, self.holds(consumer), True), socket)
        if steps == 1:
            self._reads_on(client, consumer)
        return replies

    def close(self, consumer: int, client: int = 1) -> list[Message]:
        return self.say(client, Close(next(self._requests), consumer, self.holds(consumer)))

    def error(self, replies: list[Message]) -> LoaderServiceError:
        """The error that is the only reply."""
        [reply] = replies
        assert isinstance(reply, Error), reply
        return from_record(reply.error)

    def ready(self, replies: list[Message]) -> Ready:
        """The batch that is the only reply."""
        [reply] = replies
        assert isinstance(reply, Ready), reply
        return reply

    # --- workers -----------------------------------------------------------------------------------------

    def build(self, worker: int = 0, *differences: str, skipped: str = "") -> list[tuple[bytes, Message]]:
        """The worker finishes its first task; what was sent because of it. differences, skipped: of a verification."""

        def built(task: Build | Verify) -> TaskMessage:
            if isinstance(task, Verify):
                return Verified(task.task, list(differences), skipped)
            epoch, step_in_epoch = divmod(task.step, 10)
            return Built(task.task, epoch, step_in_epoch, 128, 4, b"a layout")

        return self._finish(worker, built)

    def fail(self, worker: int = 0) -> list[tuple[bytes, Message]]:
        """The first task of the worker fails."""
        return self._finish(
            worker,
            lambda task: Failed(
                task.task, BuildError(step=task.step, cause_type="ValueError", cause_message="no data").to_record()
            ),
        )

    def _finish(self, worker: int, make: Callable[[Build | Verify], TaskMessage]) -> list[tuple[bytes, Message]]:
        before = len(self.sent)
        one = self.workers.all[worker]
        self.broker.worker_said(worker, make(one.tasks.pop(0)))
        return self.sent[before:]

    def die(self, worker: int = 0, death: Crash | None = None) -> list[tuple[bytes, Message]]:
        """The worker ends; another takes its place at once."""
        before = len(self.sent)
        lost, self.workers.all[worker].tasks = self.workers.all[worker].tasks, []
        crash = death or Crash(f"worker {worker} (pid 1) {KILLED}")
        self.broker.worker_died(worker, [task.task for task in lost], crash)
        return self.sent[before:]

    def explain(self, *indices: int, rows: int, worker: int = 0) -> None:
        """The worker tells what it is about to build."""
        one = self.workers.all[worker]
        self.broker.worker_said(worker, Explained(one.tasks[0].task, list(indices), rows))

    def verifying(self, worker: int = 0) -> list[int]:
        """The steps that the worker has to verify."""
        return [task.step for task in self.workers.all[worker].tasks if isinstance(task, Verify)]

    def steps(self, worker: int = 0) -> list[int]:
        """The steps that the worker has to do."""
        return [task.step for task in self.workers.all[worker].tasks]

    def leased(self) -> list[str]:
        pools = [stream.lanes.pool for stream in self.broker.streams.values()]
        return [name for pool in pools for name in pool._segments if pool.is_kept(name)]
