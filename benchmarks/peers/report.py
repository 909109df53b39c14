"""Figures of several runs as one table.

Owns `medians` and `markdown`. Pure.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from benchmarks.peers.measure import Figures

__all__ = ["markdown", "medians"]

_COLUMNS = (
    ("batches/s per consumer", "slowest", ",.0f"),
    ("of M", "of_m", ".2f"),
    ("of N", "of_n", ".2f"),
    ("CPU ms per delivered batch", "cpu_ms", ".2f"),
    ("PSS MB", "pss_mb", ".0f"),
    ("first batch s", "first_batch_s", ".2f"),
    ("built step p50 us", "wait_us_p50", ".0f"),
    ("p99 us", "wait_us_p99", ".0f"),
)


def medians(runs: Iterable[Figures]) -> list[Figures]:
    """Take the median of each figure over the runs of each case, in the order in which the cases first came."""
    by_case: dict[str, list[Figures]] = {}
    for run in runs:
        by_case.setdefault(run.case, []).append(run)
    return [_median(found) for found in by_case.values()]


def _median(runs: list[Figures]) -> Figures:
    middle: dict[str, Any] = {}
    for name in (one.name for one in fields(Figures)):
        values = [getattr(run, name) for run in runs if isinstance(getattr(run, name), float)]
        if values:
            middle[name] = statistics.median(values)
    return replace(runs[0], **middle)


def markdown(results: list[Figures]) -> str:
    """Write one row a case. What was not measured is left empty.

    Returns:
        A table in Markdown, without a newline at its end.
    """
    rows = [["case", *(title for title, _, _ in _COLUMNS)], ["---", *("---:" for _ in _COLUMNS)]]
    rows += [[one.title, *(_cell(getattr(one, name), how) for _, name, how in _COLUMNS)] for one in results]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(value: float | None, how: str) -> str:
    return "" if value is None else format(value, how)
