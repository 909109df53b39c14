"""A daemon that a test writes by hand: a ROUTER socket that answers by script, with segments of its own.

A message is answered by the script's function for its class, else as a daemon would that serves one stream of any
length: step g is {"x": int64 [2]}, both of them g. Its process cannot be seen, so that its end is that of the
connection.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.shared_memory import SharedMemory
from queue import Empty, SimpleQueue
from typing import Any, Self, TypeVar

import numpy as np
import zmq

from loader_service.contract.layout import Layout
from loader_service.sharing.placement import Placement
from loader_service.wire import messages
from loader_service.wire.layouts import pack_layout
from loader_service.wire.messages import CLIENT_MESSAGES, Close, Get, Hello, Message, Open, Ready, Release
from loader_service.wire.protocol import decode, encode
from loader_service.wire.segment import HEADER_BYTES, Segment

__all__ = ["LAYOUT", "Answer", "FakeDaemon", "eventually"]

LAYOUT = Layout.plan([("x", "int64", [2])])
_DEADLINE_S = 20.0
_TICK_MS = 5

Answer = Callable[[Any], Message | None]
_T = TypeVar("_T", bound=Message)


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Wait until `holds()`; fail after a generous deadline."""
    deadline = time.monotonic() + _DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {_DEADLINE_S} s: {what}"
        time.sleep(0.002)


def _remove(memory: SharedMemory) -> None:
    memory.close()
    memory.unlink()


@dataclass
class _Run:
    """The steps of one Get that are to be sent, as long as few enough are leased."""

    identity: bytes
    request: int
    step: int
    left: int
    leases: set[int] = field(default_factory=set)


class FakeDaemon:
    """Serves stream "s" at `endpoint` from `start` until `stop`; may be started again, as its successor.

    script: answers by class of message, None for no answer; received: all messages so far, in order; hold, prefetch,
    fingerprint: what an Open is told; withheld: steps that are not sent; lane: in which all steps are.
    """

    def __init__(self, endpoint: str, *, prefetch: int = 4, pid: int = 1, pid_namespace: int = 0) -> None:
        self.endpoint, self.prefetch = endpoint, prefetch
        self.pid, self.pid_namespace = pid, pid_namespace
        self.script: dict[type[Message], Answer] = {}
        self.hold, self.fingerprint, self.lane = 2, "f" * 64, 0
        self.blocked = False
        self.incarnation = 0
        self.received: list[Message] = []
        self.withheld: set[int] = set()
        self._runs: dict[int, _Run] = {}
        self._segments: dict[tuple[int, int], SharedMemory] = {}
        self._uses = 0
        self._said: SimpleQueue[Message] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    def start(self) -> Self:
        self.incarnation += 1
        self._ending.clear()
        bound = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(bound,))
        self._thread.start()
        assert bound.wait(_DEADLINE_S)
        return self

    def stop(self) -> None:
        """End without a word: its connections break. Idempotent."""
        if self._thread is not None:
            self._ending.set()
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop, and remove the segments."""
        self.stop()
        for memory in self._segments.values():
            _remove(memory)

    def say(self, message: Message) -> None:
        """Send to every socket that has ever said something."""
        self._said.put(message)

    def got(self, cls: type[_T]) -> list[_T]:
        """The messages of one class so far."""
        return [message for message in list(self.received) if isinstance(message, cls)]

    # --- in its thread -----------------------------------------------------------------------------------

    def _serve(self, bound: threading.Event) -> None:
        context = zmq.Context()
        socket = context.socket(zmq.ROUTER)
        socket.linger = 0
        socket.bind(self.endpoint)
        bound.set()
        self._runs.clear()
        peers: dict[bytes, None] = {}
        while not self._ending.is_set():
            while socket.poll(_TICK_MS):
                identity, frame = socket.recv_multipart()
                peers[identity] = None
                self._handle(socket, identity, decode([frame], CLIENT_MESSAGES))
            try:
                message = self._said.get_nowait()
            except Empty:
                continue
            for identity in peers:
                socket.send_multipart([identity, *encode(message)])
        context.destroy(linger=0)

    def _handle(self, socket: zmq.Socket[bytes], identity: bytes, message: Message) -> None:
        self.received.append(message)
        scripted = self.script.get(type(message))
        answer = self._answer(identity, message) if scripted is None else scripted(message)
        if answer is not None:
            socket.send_multipart([identity, *encode(answer)])
        for consumer_id in list(self._runs):
            self._go_on(socket, consumer_id)

    def _answer(self, identity: bytes, message: Message) -> Message | None:
        if isinstance(message, Hello):
            return messages.Welcome(message.request, self.pid, self.pid_namespace, ["s"], self.incarnation)
        if isinstance(message, Open):
            told = {"seed": 3, "fingerprint": self.fingerprint}
            start = 100 if message.live else message.start_step
            return messages.Opened(message.request, start, self.prefetch, self.hold, 10, self.fingerprint, told)
        if isinstance(message, Get):
            run = _Run(identity, message.request, message.step, message.steps)
            run.leases.update(message.holds)
            self._runs[message.consumer] = run
        elif isinstance(message, Release) and message.consumer in self._runs:
            self._runs[message.consumer].leases.difference_update(message.leases)
        elif isinstance(message, Close):
            self._runs.pop(message.consumer, None)
            for place in [place for place in self._segments if place[0] == message.consumer]:
                _remove(self._segments.pop(place))
            return messages.Done(message.request)
        elif isinstance(message, messages.Status):
            return messages.Report(message.request, {"pid": self.pid, "builds": message.builds})
        elif isinstance(message, messages.Tune | messages.Stop):
            return messages.Done(message.request)
        return None

    def _go_on(self, socket: zmq.Socket[bytes], consumer_id: int) -> None:
        """Send the steps that follow, one more than may be held at once."""
        run = self._runs[consumer_id]
        while run.left and len(run.leases) <= self.hold and run.step not in self.withheld:
            ready = self._build(consumer_id, run)
            socket.send_multipart([run.identity, *encode(ready)])
            run.leases.add(ready.lease)
            run.step, run.left = run.step + 1, run.left - 1

    def _segment(self, consumer_id: int, step: int) -> SharedMemory:
        """A slot of the ring of one consumer."""
        place = consumer_id, step % self.prefetch
        if place not in self._segments:
            self._segments[place] = SharedMemory(create=True, size=HEADER_BYTES + 64)
        return self._segments[place]

    def _build(self, consumer_id: int, run: _Run) -> Ready:
        self._uses += 1
        step, memory = run.step, self._segment(consumer_id, run.step)
        target = Segment(memory.name, np.ndarray(memory.size, np.uint8, memory.buf))
        target.begin(step, self._uses)
        LAYOUT.views(target.payload)["x"][:] = step
        target.commit(step, self._uses, LAYOUT.nbytes)
        return Ready(
            request=run.request,
            lease=self._uses,
            lane=self.lane,
            step=step,
            epoch=step // 10,
            step_in_epoch=step % 10,
            slot=step % self.prefetch,
            placement=Placement(memory.name, self._uses, memory.size),
            nbytes=LAYOUT.nbytes,
            rows=2,
            layout=pack_layout(LAYOUT),
            prefetch=self.prefetch,
            blocked=self.blocked,
        )
