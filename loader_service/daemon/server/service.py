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
from loader_service.daemon.ops.signals import IGNORED, ending_signals, restore_defaults
from loader_service.daemon.server.bound_endpoint import BoundEndpoint
from loader_service.daemon.server.connection_limiter import raise_limit
from loader_service.daemon.server.event_loop import Loop
from loader_service.daemon.server.permissions import Permissions
from loader_service.daemon.server.retuning import apply_settings, ring_limits
from loader_service.daemon.server.server_socket import ServerSocket
from loader_service.daemon.server.shared_memory import SharedMemoryAllocator, identity, start_resource_tracker, sweep
from loader_service.daemon.server.stream_catalog import StreamCatalog
from loader_service.daemon.workers.messages import StreamFacts
from loader_service.daemon.workers.orphans import end_orphans, reap_orphans
from loader_service.daemon.workers.supervisor import Supervisor
from loader_service.daemon.workers.watchdog import Timeouts
from loader_service.errors import LoaderServiceError, WorkerStartError, from_record
from loader_service.sharing.scheduler import RingScheduler
from loader_service.sharing.segment_pool import SegmentPool
from loader_service.wire.endpoint import default_endpoint
from loader_service.wire.messages import (
    Closing,
    Done,
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
from loader_service.wire.segment import HEADER_BYTES

__all__ = ["Service"]

_log = logging.getLogger("loader_service.service")
_STOP_WORKERS_S = 2.0


class Service:
    """One daemon.

    Args:
        config: what to serve, and how.
        ready: called with the endpoint once it serves.
    """

    def __init__(self, config: Config, ready: Callable[[str], None]) -> None:
        self._config, self._ready = config, ready
        self.endpoint = config.server.endpoint or default_endpoint()
        self.loop = Loop(time.monotonic)
        self._catalog = StreamCatalog(config)
        self._permissions = Permissions.of(config.server.group)
        self._allocator = SharedMemoryAllocator(config.server.memory_limit_bytes, self._permissions)
        timeouts = Timeouts(config.server.build_timeout_s, config.server.start_timeout_s)
        start = self._catalog.start_message
        self._supervisor = Supervisor(self.loop, self, config.server.workers, start, timeouts)
        self._clients = Clients(self.loop, self._client_gone)
        self._server_socket = ServerSocket(self.loop, self._handle, self._handled, self._clients.knows)
        send, retired = self._server_socket.send, self._allocator.retired
        self._broker = Broker([], self._clients, self._supervisor, send, retired, self.loop)
        self._broker.add_handlers({Hello: self._hello, Status: self._status, Stop: self._stop, Tune: self._tune})
        self._supervisor.events = self._broker
        self._place: BoundEndpoint | None = None
        self._lease_ids = count(1)
        self._serving = False
        self._end: str | None = None
        self._failure: LoaderServiceError | None = None
        self._unrecoverable = False

    def run(self) -> int:
        """Serve until told to end; 0 unless the workers are gone for good. Raises what keeps it from starting."""
        restore_defaults()
        raise_limit(self._config.server.workers)
        self._place = place = BoundEndpoint(self.endpoint, identity(os.getpid()), self._permissions)
        try:
            self.loop.on_signals([*ending_signals(), *IGNORED], self._signalled)
            start_resource_tracker()
            for name in sweep(place.predecessor):
                _log.info("removed segment %s of a dead daemon", name)
            self._start_up()
            while self._end is None:
                self.loop.turn()
        finally:
            self._shut_down()
            place.release()
            self.loop.close()  # until here a second signal changes nothing
        return 1 if self._unrecoverable else 0

    def _signalled(self, number: signal.Signals) -> None:
        if number in IGNORED:
            _log.info("%s was ignored; SIGTERM ends the daemon", number.name)
        else:
            self.stop(number.name)

    def stop(self, reason: str) -> None:
        """End after the current turn of the loop."""
        self._end = self._end or reason

    # --- start -------------------------------------------------------------------------------------------

    def _start_up(self) -> None:
        if not self._config.server.workers and self._config.server.build_timeout_s:
            _log.warning("build_timeout_s has no effect with workers = 0: a thread cannot be ended")
        self._supervisor.spawn_all()
        self._await_workers(self._config.server.start_timeout_s)
        if self._end is None:
            for stream_id, facts in enumerate(self._catalog.facts):
                self._broker.add_stream(self._serve(stream_id, facts.name))
            self._bind()
            self._serving = True
            self._beat()
            _log.info("serving %s at %s", ", ".join(self._broker.streams), self.endpoint)
            self._ready(self.endpoint)

    def _await_workers(self, timeout_s: float) -> None:
        """Until all are READY or the daemon is told to end. Raises FactoryError, WorkerStartError."""
        deadline = self.loop.clock() + timeout_s
        self.loop.after(timeout_s, lambda: None)  # so that a turn ends by then
        while self._end is None and not all(worker.ready for worker in self._supervisor.workers):
            self.loop.turn()
            if self._failure is not None and not isinstance(self._failure, WorkerStartError):
                raise self._failure
            self._check_given_up()
            if self.loop.clock() >= deadline:
                raise WorkerStartError(
                    f"the workers were not ready within {timeout_s} s: a factory, or the reading of a stream's first "
                    "batch, takes that long; raise [server] start_timeout_s, or set the stream's slot_bytes, and no "
                    "batch is read at start"
                )

    def _check_given_up(self) -> None:
        """Raise WorkerStartError, with how its processes ended, if a worker is never going to be ready."""
        for worker in self._supervisor.workers:
            if worker.given_up:
                ends = list(worker.crashes)
                stack = next((f"\n{crash.stack}" for crash in reversed(ends) if crash.stack), "")
                raise WorkerStartError(
                    f"{'; '.join(crash.how for crash in ends)}: {len(ends)} processes ended before they were ready; a "
                    f"factory, or a stream's first batch (which is built at start where slot_bytes is not set), ends "
                    f"its process{stack}"
                )

    def _serve(self, stream_id: int, name: str) -> StreamState:
        """Return a stream with its ring reserved. Raises SharedMemoryError, MemoryLimitError."""
        facts, config = self._catalog.facts[stream_id], self._config.streams[name]
        prefetch, least_bytes = config.prefetch, HEADER_BYTES + config.initial_slot_bytes
        pool = SegmentPool(self._allocator, prefetch, self._catalog.slot_bytes(name), least_bytes)
        try:
            self._allocator.check_ring(prefetch, pool.segment_bytes)
            pool.fill()
        except LoaderServiceError as error:
            raise type(error)(f"stream {name!r} with prefetch {prefetch}: {error.message}") from error
        lanes = RingScheduler(prefetch, pool, self._lease_ids, ring_limits(self._config, config))
        told = (facts.steps_per_epoch, facts.fingerprint, facts.description)
        return StreamState(name, stream_id, *told, lanes, config.verify)

    # --- messages of clients -------------------------------------------------------------------------------

    def _handle(self, identity_: bytes, message: Message) -> None:
        self._broker.handle(identity_, message)

    def _handled(self) -> None:
        self._broker.pump()

    def _hello(self, identity_: bytes, message: Hello) -> Welcome:
        self._clients.handshake(identity_, message)
        names = list(self._broker.streams)
        return Welcome(message.request, os.getpid(), pid_namespace(), names, self._clients.incarnation)

    def _status(self, _identity: bytes, message: Status) -> Report:
        return Report(message.request, self.report(message.builds))

    def _stop(self, _identity: bytes, message: Stop) -> Done:
        self._clients.check_meant(message)
        self.stop("`loader-service stop`")
        return Done(message.request)

    def _tune(self, _identity: bytes, message: Tune) -> Done:
        self._clients.check_meant(message)
        config = changed_config(self._config, message.stream, message.settings)
        apply_settings(config, self._broker.streams.values(), self._supervisor, self._allocator)
        self._config = config
        of_stream = f" of stream {message.stream}" if message.stream else ""
        _log.info("set %s%s", message.settings, of_stream, extra={"stream": message.stream or None})
        return Done(message.request)

    def _bind(self) -> None:
        self._server_socket.bind(self.endpoint, self._permissions)

    def _beat(self) -> None:
        """Look after what changes without a word: the endpoint, clients that cannot be seen, orphans."""
        try:
            if self._place is not None:
                self._place.keep(lambda: self._server_socket.is_bound_at(self.endpoint), self._bind)
        except LoaderServiceError as error:
            _log.error(
                "the endpoint %s was removed by somebody else, and cannot be taken again: %s", self.endpoint, error
            )
            self._unrecoverable = True
            self.stop(f"the endpoint was removed, and cannot be taken again: {error.message}")
        self._ping()
        reap_orphans(worker.pid for worker in self._supervisor.workers if worker.pid is not None)
        self.loop.after(self._config.server.heartbeat_s, self._beat)

    def _ping(self) -> None:
        for client in self._clients.unsure():
            if not any(self._server_socket.send(identity_, Ping()) for identity_ in client.sockets):
                self._clients.lose(client)

    def _client_gone(self, client: Client) -> None:
        ending = len(client.consumers)
        _log.info("client with pid %d is gone; its %d consumers end", client.pid, ending, extra={"pid": client.pid})
        self._broker.client_gone(client)

    # --- the supervisor's start events -----------------------------------------------------------------------

    def worker_started(self, worker_id: int, facts: list[StreamFacts]) -> None:
        """Compare what a worker made with what the others made. Raises FactoryError."""
        self._catalog.check(worker_id, facts)

    def start_failed(self, worker_id: int, error: dict[str, Any]) -> None:
        """Note why a worker could not start, or may not build: the daemon fails with that while it starts itself."""
        self._fail(from_record(error))

    def workers_gone(self, how: str) -> None:
        """End, for no worker is left and none can be started."""
        self._unrecoverable = True
        self._fail(WorkerStartError(f"{how}, and none can be started in its place"))
        self.stop(f"all workers are gone: {self._failure}")

    def _fail(self, error: LoaderServiceError) -> None:
        """Note an error of a worker's start; the first one is the cause, if the daemon cannot start (or go on)."""
        if self._serving:  # before, it is raised
            _log.error("%s", error)
        self._failure = self._failure or error

    # --- status and end --------------------------------------------------------------------------------------

    def report(self, builds: bool) -> dict[str, Any]:
        """Return what `status` tells, as plain values."""
        self._broker.catch_up()
        consumers = [
            route.stream.consumer(consumer_id) | {"pid": route.client.pid, "shard": list(route.shard)}
            for consumer_id, route in self._broker.consumers.items()
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
        if self._serving:
            _log.info("ending: %s", reason)
            self._broker.say_closing(reason)
        self._supervisor.stop(_STOP_WORKERS_S)
        end_orphans(own=[])
        self._server_socket.refuse(Closing(reason))
        self._clients.close()
        self._allocator.close()
        self._server_socket.close()
