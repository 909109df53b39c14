"""The daemon: starts the workers, reserves the rings, opens the socket, runs the loop, cleans up.

Owns `Service`, which wires broker, supervisor, clients and memory. Invariant: it is either ready (all workers READY,
all rings reserved, the socket bound) or it has failed with one error and left nothing; at its end no process,
socket or segment of its own is left.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from loader_service.daemon.broker.broker import Broker
from loader_service.daemon.broker.clients import Client, Clients
from loader_service.daemon.broker.stream_state import StreamState
from loader_service.daemon.config.load import Config
from loader_service.daemon.config.settings import changed_config
from loader_service.daemon.server.connection_limiter import raise_limit
from loader_service.daemon.server.event_loop import Loop
from loader_service.daemon.server.lock import EndpointLock
from loader_service.daemon.server.permissions import Permissions
from loader_service.daemon.server.retuning import apply_settings, ring_limits
from loader_service.daemon.server.server_socket import ServerSocket
from loader_service.daemon.server.shared_memory import SharedMemoryAllocator, identity, sweep
from loader_service.daemon.server.stream_catalog import StreamCatalog
from loader_service.daemon.workers.crashes import Crash
from loader_service.daemon.workers.messages import FromWorker, Started, StartFailed
from loader_service.daemon.workers.supervisor import Supervisor, Worker
from loader_service.daemon.workers.watchdog import Timeouts
from loader_service.errors import FactoryError, LoaderServiceError, WorkerStartError, from_record
from loader_service.sharing.scheduler import RingScheduler
from loader_service.sharing.segment_pool import SegmentPool
from loader_service.wire.endpoint import default_endpoint, socket_path
from loader_service.wire.messages import (
    Closing,
    Done,
    Error,
    Hello,
    Message,
    Ping,
    Report,
    Status,
    Stop,
    Tune,
    Welcome,
)
from loader_service.wire.process import pid_namespace

__all__ = ["Service"]

_log = logging.getLogger("loader_service.service")
_STOP_WORKERS_S = 2.0


class Service:
    """One daemon. `run` returns its exit code; `ready(endpoint)` is called once it serves."""

    def __init__(self, config: Config, ready: Callable[[str], None]) -> None:
        self._config, self._ready = config, ready
        self.endpoint = config.server.endpoint or default_endpoint()
        self.loop = Loop(time.monotonic)
        self._roster = StreamCatalog(config)
        self._access = Permissions.of(config.server.group)
        self._allocator = SharedMemoryAllocator(config.server.memory_limit_bytes, self._access)
        timeouts = Timeouts(config.server.build_timeout_s, config.server.start_timeout_s)
        self._supervisor = Supervisor(self.loop, self, config.server.workers, self._roster.start_message, timeouts)
        self._front = ServerSocket(self.loop, self._handle, self._handled, self._is_member)
        self._clients = Clients(self.loop, self._client_gone)
        self._lease_numbers = count(1)
        self._broker: Broker | None = None
        self._end: str | None = None
        self._failure: LoaderServiceError | None = None
        self._unrecoverable = False

    def run(self) -> int:
        """Serve until told to end; 0 unless the workers are gone for good. Raises what keeps it from starting."""
        raise_limit(self._config.server.workers)
        path = socket_path(self.endpoint)
        self._access.make_directory(path.parent)
        lock = EndpointLock(path, identity(os.getpid()))
        try:
            self.loop.on_signals([signal.SIGTERM, signal.SIGINT], lambda number: self.stop(number.name))
            for name in sweep(lock.predecessor):
                _log.info("removed segment %s of a dead daemon", name)
            self._start_up()
            while self._end is None:
                self.loop.turn()
        finally:
            self._shut_down()
            if lock.is_ours:  # else the socket of that name is another daemon's by now
                path.unlink(missing_ok=True)
            lock.release()
            self.loop.close()  # until here a second signal changes nothing
        return 1 if self._unrecoverable else 0

    def stop(self, reason: str) -> None:
        """End after the current turn of the loop."""
        self._end = self._end or reason

    # --- start -------------------------------------------------------------------------------------------

    def _start_up(self) -> None:
        self._supervisor.spawn_all()
        self._await_workers(self._config.server.start_timeout_s)
        if self._end is None:
            streams = [self._serve(number, facts.name) for number, facts in enumerate(self._roster.facts)]
            send, retired = self._front.send, self._allocator.retired
            self._broker = Broker(streams, self._clients, self._supervisor, send, retired, self.loop)
            self._front.bind(self.endpoint, self._access)
            self._ping()
            _log.info("serving %s at %s", ", ".join(self._broker.streams), self.endpoint)
            self._ready(self.endpoint)

    def _await_workers(self, timeout_s: float) -> None:
        """Until all are READY or the daemon is told to end. Raises FactoryError, WorkerStartError."""
        deadline = self.loop.clock() + timeout_s
        self.loop.after(timeout_s, lambda: None)  # so that a turn ends by then
        while self._end is None and not all(worker.ready for worker in self._supervisor.workers):
            self.loop.turn()
            if self._failure is not None:
                raise self._failure
            if self.loop.clock() >= deadline:
                raise WorkerStartError(
                    f"the workers were not ready within {timeout_s} s: a factory, or the reading of a stream's first "
                    "batch, takes that long; raise [server] start_timeout_s, or set the stream's slot_bytes, and no "
                    "batch is read at start"
                )

    def _serve(self, number: int, name: str) -> StreamState:
        """A stream with its ring reserved. Raises SharedMemoryError, MemoryLimitError."""
        facts, config = self._roster.facts[number], self._config.streams[name]
        prefetch = config.prefetch
        pool = SegmentPool(self._allocator, prefetch, self._roster.slot_bytes(name))
        try:
            self._allocator.check_ring(prefetch, pool.segment_bytes)
            pool.fill()
        except LoaderServiceError as error:
            raise type(error)(f"stream {name!r} with prefetch {prefetch}: {error.message}") from error
        lanes = RingScheduler(prefetch, pool, self._lease_numbers, ring_limits(self._config, config))
        told = (facts.steps_per_epoch, facts.fingerprint, facts.description)
        return StreamState(name, number, *told, lanes, config.verify)

    # --- messages of clients -------------------------------------------------------------------------------

    def _handle(self, identity_: bytes, message: Message) -> None:
        assert self._broker is not None  # the socket is bound after it exists
        if not isinstance(message, Hello | Status | Tune | Stop):
            self._broker.handle(identity_, message)
            return
        try:
            reply = self._reply(identity_, message)
        except LoaderServiceError as error:
            reply = Error(message.request, error.to_record())
        self._front.send(identity_, reply)

    def _is_member(self, identity_: bytes) -> bool:
        return self._clients.of(identity_) is not None

    def _handled(self) -> None:
        assert self._broker is not None  # the socket is bound after it exists
        self._broker.pump()

    def _reply(self, identity_: bytes, message: Hello | Status | Tune | Stop) -> Message:
        assert self._broker is not None  # the socket is bound after it exists
        if isinstance(message, Hello):
            self._clients.greet(identity_, message)
            names = list(self._broker.streams)
            return Welcome(message.request, os.getpid(), pid_namespace(), names, self._clients.incarnation)
        if isinstance(message, Status):
            return Report(message.request, self.report(message.builds))
        self._clients.check_meant(message)
        if isinstance(message, Tune):
            self._tune(message)
        else:
            self.stop("`loader-service stop`")
        return Done(message.request)

    def _tune(self, message: Tune) -> None:
        assert self._broker is not None  # the socket is bound after it exists
        config = changed_config(self._config, message.stream, message.settings)
        apply_settings(config, self._broker.streams.values(), self._supervisor, self._allocator)
        self._config = config
        of_stream = f" of stream {message.stream}" if message.stream else ""
        _log.info("set %s%s", message.settings, of_stream, extra={"stream": message.stream or None})

    def _ping(self) -> None:
        for client in self._clients.unsure():
            if not any(self._front.send(identity_, Ping()) for identity_ in client.sockets):
                self._clients.lose(client)
        self.loop.after(self._config.server.heartbeat_s, self._ping)

    def _client_gone(self, client: Client) -> None:
        ending = len(client.consumers)
        _log.info("client with pid %d is gone; its %d consumers end", client.pid, ending, extra={"pid": client.pid})
        if self._broker is not None:
            self._broker.client_gone(client)

    # --- the supervisor's Watcher ----------------------------------------------------------------------------

    def worker_said(self, worker: Worker, message: FromWorker) -> None:
        if isinstance(message, StartFailed):
            self._fail(from_record(message.error))
        elif isinstance(message, Started):
            self._check(worker, message)
        elif self._broker is not None:
            self._broker.worker_said(worker, message)

    def worker_died(self, worker: Worker, tasks: list[int], death: Crash) -> None:
        if self._broker is not None:
            self._broker.tasks_lost(tasks, death)

    def workers_gone(self, how: str) -> None:
        self._unrecoverable = True
        self._fail(WorkerStartError(f"{how}, and none can be started in its place"))
        self.stop(f"all workers are gone: {self._failure}")

    def _check(self, worker: Worker, started: Started) -> None:
        try:
            self._roster.check(worker.number, started.streams)
        except FactoryError as error:
            self._fail(error)
            self._supervisor.give_up(worker, error.message)
        if self._broker is not None:
            self._broker.pump()

    def _fail(self, error: LoaderServiceError) -> None:
        """An error of a worker's start; the first one is the cause, if the daemon cannot start (or go on)."""
        if self._broker is not None:  # before, it is raised
            _log.error("%s", error)
        self._failure = self._failure or error

    # --- status and end --------------------------------------------------------------------------------------

    def report(self, builds: bool) -> dict[str, Any]:
        """What `status` tells, as plain values."""
        assert self._broker is not None  # asked for over the socket
        self._broker.catch_up()
        consumers = [
            consumer.stream.consumer(number) | {"pid": consumer.client.pid, "shard": list(consumer.shard)}
            for number, consumer in self._broker.consumers.items()
        ]
        return {
            "endpoint": self.endpoint,
            "pid": os.getpid(),
            "memory_bytes": self._allocator.used_bytes,
            "memory_limit_bytes": self._allocator.limit_bytes,
            "clients": len(self._clients),
            "streams": [stream.report(builds) for stream in self._broker.streams.values()],
            "workers": [worker.report() for worker in self._supervisor.workers],
            "consumers": consumers,
        }

    def _shut_down(self) -> None:
        reason = self._end or "an error of the daemon"
        if self._broker is not None:
            _log.info("ending: %s", reason)
            self._broker.say_closing(reason)
        self._supervisor.stop(_STOP_WORKERS_S)
        self._front.refuse(Closing(reason))
        self._clients.close()
        self._allocator.close()
        self._front.close()
