"""Tracebacks of the user's code, short enough for a message.

Owns `shortened` and the signal that asks a worker for its stack. Invariant: the end, where the cause stands, is kept,
and every line's beginning.
"""

from __future__ import annotations

import signal

__all__ = ["MAX_TEXT", "STACK_SIGNAL", "shortened"]

STACK_SIGNAL = signal.SIGUSR1
"""At it a worker writes its Python stack into the file that it was given for that."""

MAX_TEXT = 16_000
"""Characters of any text of the user's that travels."""
_MAX_LINE = 500


def shortened(trace: str) -> str:
    """The last 16,000 characters of `trace`, its lines cut to 500 each.

    >>> len(shortened("x" * 10**6))
    500
    """
    return "\n".join(line[:_MAX_LINE] for line in trace.rstrip().splitlines())[-MAX_TEXT:]
