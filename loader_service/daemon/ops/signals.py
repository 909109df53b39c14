"""Signals: what a process of the daemon inherits is undone, and none but the ending ones ends it.

Owns `restore_defaults`, `ENDING`, `IGNORED` and `do_nothing_at`. Invariant: a process that is started from here, by the
daemon or by a dataset, has the default dispositions. An ignored signal would be inherited by it, and then `terminate()`
of a child of a dataset does nothing; a handler is not inherited across exec (signal(7)), and is taken away after fork.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

__all__ = ["ENDING", "IGNORED", "do_nothing_at", "ending_signals", "ignored_by_children", "restore_defaults"]

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""They end the daemon; SIGHUP does not where it was ignored at start, as nohup(1) does."""
_NAMES = ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR", "SIGXCPU")
IGNORED = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
"""Schedulers and profilers send them; their default would end the process."""


def restore_defaults() -> None:
    """Unblock all signals, and hear of children that end, whatever this process was started with."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def ending_signals() -> list[signal.Signals]:
    """Return the signals that end this daemon."""
    return [number for number in ENDING if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]


def do_nothing_at(numbers: Iterable[signal.Signals]) -> None:
    """Let this process, and no process that it starts, go on at these signals. Main thread only."""
    handled = list(numbers)
    for number in handled:
        signal.signal(number, _nothing)
        signal.siginterrupt(number, False)
    os.register_at_fork(after_in_child=partial(_to_defaults, handled))


@contextmanager
def ignored_by_children(numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Start a process in this block, and it ignores these signals until it handles them itself. Main thread only."""
    previous = [(number, signal.signal(number, signal.SIG_IGN)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in previous:
            signal.signal(number, handler)


def _nothing(number: int, frame: FrameType | None) -> None:
    """A handler, since SIG_IGN would be inherited."""


def _to_defaults(numbers: list[signal.Signals]) -> None:
    for number in numbers:
        if signal.getsignal(number) is _nothing:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
