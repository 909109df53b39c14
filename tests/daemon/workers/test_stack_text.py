"""Tracebacks for messages: short, and with what matters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loader_service.daemon.workers.stack_text import MAX_TEXT, shortened


def test_a_short_one_stays_as_it_is() -> None:
    trace = 'Traceback (most recent call last):\n  File "x.py", line 1\nValueError: no'
    assert shortened(trace + "\n\n") == trace


def test_of_many_lines_the_end_is_kept() -> None:
    trace = "\n".join(f"line {number}" for number in range(10_000))
    assert len(shortened(trace)) == MAX_TEXT
    assert shortened(trace).endswith("line 9999")


def test_of_a_long_line_the_beginning_is_kept() -> None:
    cause = "ValueError: " + "x" * 10**6
    assert shortened(f"Traceback:\n{cause}") == f"Traceback:\n{cause[:500]}"


@given(st.text(max_size=2000), st.integers(1, 40))
def test_it_is_never_longer_than_the_limit_and_its_lines_never_than_theirs(text: str, repeats: int) -> None:
    short = shortened(text * repeats)
    assert len(short) <= MAX_TEXT
    assert all(len(line) <= 500 for line in short.split("\n"))
