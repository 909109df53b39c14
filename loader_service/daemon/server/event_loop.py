"""The daemon's one loop: descriptors and timers in, handlers called one at a time.

Owns `Loop`. Invariant: handlers run in the loop's thread only, so nothing of the daemon needs a lock. Signal
handlers only record (a byte in a socket pair); the loop acts.
"""

from __future__ import annotations

import heapq
import math
import signal
import socket
from collections.abc import Callable
from itertools import count
from typing import Any

import zmq

__all__ = ["Loop"]

Handler = Callable[[], None]


class Loop:
    """Waits for descriptors, zmq sockets, signals and timers; clock gives seconds, monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._poller = zmq.Poller()
        self._handlers: dict[int | zmq.Socket[bytes], Handler] = {}
        self._timers: list[tuple[float, int, Handler]] = []
        self._order = count()
        self._wakeup: tuple[socket.socket, socket.socket] | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def watch(self, source: int | zmq.Socket[bytes], handler: Handler) -> None:
        """Call `handler` whenever `source` is readable."""
        self._handlers[source] = handler
        self._poller.register(source, zmq.POLLIN)

    def unwatch(self, source: int | zmq.Socket[bytes]) -> None:
        """Forget `source`; do so before it is closed. Idempotent."""
        if self._handlers.pop(source, None) is not None:
            self._poller.unregister(source)

    def after(self, delay_s: float, handler: Handler) -> None:
        """Call `handler` once, `delay_s` seconds from now."""
        heapq.heappush(self._timers, (self.clock() + delay_s, next(self._order), handler))

    def on_signals(self, numbers: list[signal.Signals], handler: Callable[[signal.Signals], None]) -> None:
        """Call `handler` in the loop after one of these signals; main thread only."""
        receiver, sender = self._wakeup = socket.socketpair()
        receiver.setblocking(False)
        sender.setblocking(False)
        for number in numbers:
            self._previous[number] = signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)

        def deliver() -> None:
            for byte in receiver.recv(64):
                handler(signal.Signals(byte))

        self.watch(receiver.fileno(), deliver)

    def turn(self) -> None:
        """Wait for the next event, or timer, and handle what is due."""
        events = [(source, self._handlers[source]) for source, _ in self._poller.poll(self._wait_ms())]
        for source, handler in events:
            if self._handlers.get(source) is handler:  # else an earlier one unwatched it; its number may be reused
                handler()
        while self._timers and self._timers[0][0] <= self.clock():
            heapq.heappop(self._timers)[2]()

    def close(self) -> None:
        """Give the signals back. Idempotent."""
        if self._wakeup is not None:
            for number, handler in self._previous.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(-1)
            for end in self._wakeup:
                end.close()
            self._wakeup = None

    def _wait_ms(self) -> int | None:
        if not self._timers:
            return None
        return max(0, math.ceil((self._timers[0][0] - self.clock()) * 1000))
