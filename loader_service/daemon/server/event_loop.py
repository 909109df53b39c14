"""The daemon's one loop: descriptors and timers in, handlers called one at a time.

Owns `Loop`. Invariant: handlers run in the loop's thread only, so nothing of the daemon needs a lock. Signal
handlers only record (a byte in a socket pair); the loop acts.
"""

from __future__ import annotations

import heapq
import selectors
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

__all__ = ["Loop"]

Handler = Callable[[], None]


@dataclass(slots=True, eq=False)
class _Watch:
    """The handlers of a descriptor, for each direction."""

    read: Handler | None = None
    write: Handler | None = None


class Loop:
    """Waits for descriptors, signals and timers.

    Args:
        clock: gives seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._selector = selectors.DefaultSelector()
        self._watches: dict[int, _Watch] = {}
        self._timers: list[tuple[float, int, Handler]] = []
        self._order = count()
        self._wakeup: tuple[socket.socket, socket.socket] | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def watch(self, source: int, handler: Handler | None) -> None:
        """Call `handler` whenever the descriptor `source` is readable; None: pause that."""
        watch = self._watches.setdefault(source, _Watch())
        watch.read = handler
        self._register(source, watch)

    def watch_writeable(self, source: int, handler: Handler | None) -> None:
        """Call `handler` whenever the descriptor `source` can be written to; None: do so no more."""
        watch = self._watches.setdefault(source, _Watch())
        if watch.write is not handler:
            watch.write = handler
            self._register(source, watch)

    def unwatch(self, source: int) -> None:
        """Forget `source`; do so before it is closed. Idempotent."""
        if self._watches.pop(source, None) is not None and source in self._selector.get_map():
            self._selector.unregister(source)

    def _register(self, source: int, watch: _Watch) -> None:
        wanted = selectors.EVENT_READ * (watch.read is not None) | selectors.EVENT_WRITE * (watch.write is not None)
        is_known = source in self._selector.get_map()
        if not wanted:
            if is_known:
                self._selector.unregister(source)
        elif is_known:
            self._selector.modify(source, wanted, watch)
        else:
            self._selector.register(source, wanted, watch)

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
        for key, events in self._selector.select(self._wait_s()):
            for event, direction in ((selectors.EVENT_READ, "read"), (selectors.EVENT_WRITE, "write")):
                # an earlier handler may have unwatched it: its number may be reused by now
                handler = getattr(key.data, direction) if self._watches.get(key.fd) is key.data else None
                if events & event and handler is not None:
                    handler()
        while self._timers and self._timers[0][0] <= self.clock():
            heapq.heappop(self._timers)[2]()

    def close(self) -> None:
        """Give the signals back, and the selector. Idempotent."""
        if self._wakeup is not None:
            for number, handler in self._previous.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(-1)
            for end in self._wakeup:
                end.close()
            self._wakeup = None
        self._selector.close()

    def _wait_s(self) -> float | None:
        if not self._timers:
            return None
        return max(0.0, self._timers[0][0] - self.clock())
