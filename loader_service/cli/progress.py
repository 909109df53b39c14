"""Progress of long work on a terminal: bars where rich is installed, one line of text where it is not.

Owns `progress`. Invariant: it may be told of progress from any thread, and it writes at most ten times a second.
Nothing is written where the output is no terminal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["AddBar", "Tick", "progress"]

Tick = Callable[[int, int | None], None]
"""Tells how many are done, and of how many, if that is known."""
AddBar = Callable[[str], Tick]
"""Begins a bar with a name."""
_PAUSE_S = 0.1


@contextmanager
def progress(output: TextIO, *, transient: bool = False) -> Iterator[AddBar]:
    """Show the progress of some works until the block ends.

    Args:
        output: where it is shown, if that is a terminal.
        transient: remove what was shown at the end.
    """
    if not output.isatty():
        yield lambda name: lambda done, total: None
        return
    bars = _rich_bars(output, transient)
    if bars is None:
        line = _Line(output, transient)
        yield line.add
        line.end()
        return
    with bars:
        yield lambda name: _rich_tick(bars, name)


def _rich_bars(output: TextIO, transient: bool) -> Progress | None:
    """None where rich, of the extra `terminal`, is not installed."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ModuleNotFoundError:
        return None
    columns = (TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(file=output), transient=transient)


def _rich_tick(bars: Progress, name: str) -> Tick:
    task = bars.add_task(name, total=None)
    return lambda done, total: bars.update(task, completed=done, total=total)


class _Line:
    """All works in one line, written over itself."""

    def __init__(self, output: TextIO, transient: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._output, self._transient, self._clock = output, transient, clock
        self._lock = Lock()
        self._works: dict[str, tuple[int, int | None]] = {}
        self._shown_s = -_PAUSE_S
        self._width = 0

    def add(self, name: str) -> Tick:
        self._works[name] = (0, None)
        return lambda done, total: self._tick(name, done, total)

    def end(self) -> None:
        with self._lock:
            self._show("" if self._transient else self._text(), "\r" if self._transient else "\n")

    def _tick(self, name: str, done: int, total: int | None) -> None:
        with self._lock:
            self._works[name] = (done, total)
            if self._clock() - self._shown_s >= _PAUSE_S:
                self._shown_s = self._clock()
                self._show(self._text(), "")

    def _text(self) -> str:
        texts = [f"{name} {done}" + (f"/{total}" if total else "") for name, (done, total) in self._works.items()]
        return "   ".join(texts)

    def _show(self, text: str, end: str) -> None:
        encoding = self._output.encoding or sys.getdefaultencoding()
        text = text.encode(encoding, "backslashreplace").decode(encoding)
        self._output.write(f"\r{text:<{self._width}}{end}")
        self._output.flush()
        self._width = len(text)
