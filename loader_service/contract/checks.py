"""Global steps: g = 0, 1, 2, … below 2^63 (section 1).

Owns the checks that everything which takes a step shares.
"""

from __future__ import annotations

from operator import index
from typing import Any

from loader_service.errors import ArgumentError

__all__ = ["checked_span", "checked_step"]


def checked_step(step: Any, name: str = "step") -> int:
    """`step` as an int in [0, 2^63). Raises ArgumentError.

    >>> checked_step(7)
    7
    """
    try:
        number = int(index(step))
    except TypeError:
        raise ArgumentError(f"{name} is {step!r}; a global step is an integer") from None
    if not 0 <= number < 2**63:
        raise ArgumentError(f"{name} is {number}; global steps count from 0 and lie below 2^63")
    return number


def checked_span(start_step: Any, stop_step: Any) -> tuple[int, int | None]:
    """The first step and the step before which to end (None: never), as ints. Raises ArgumentError."""
    start = checked_step(start_step, "start_step")
    if stop_step is None:
        return start, None
    stop = checked_step(stop_step, "stop_step")
    if stop < start:
        raise ArgumentError(f"stop_step is {stop} and start_step {start}; it must not lie before it")
    return start, stop
