"""`loader-service status` and `explain` for people.

Owns `print_status` and `print_explanation`, which lay out what the daemon, or a stream, tells. Needs rich, of the extra
`server`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["print_explanation", "print_status"]

_UNITS = ["B", "KiB", "MiB", "GiB", "TiB"]
_SLOT_SIGNS = {"free": ".", "building": "b", "ready": "R", "failed": "!"}


def _size(nbytes: int) -> str:
    size, unit = float(nbytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.4g} {_UNITS[unit]}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column)
    return table


def _slots(lanes: list[dict[str, Any]]) -> str:
    """One line for each lane: its base, a sign for each slot (* where leased), whom it waits for."""
    lines = []
    for lane in lanes:
        signs = "".join(_SLOT_SIGNS[slot["state"]] + ("*" if slot["leased"] else "") for slot in lane["slots"])
        lines.append(f"{lane['lane']}: base {lane['base']} [{signs}] waits for {lane['waits_for_consumers']}")
    return "\n".join(lines) or "none"


def _notes(status: dict[str, Any]) -> Iterator[str]:
    """What has gone wrong, or was looked at."""
    for one in status["workers"]:
        if one["last_death"]:
            yield f"last death of worker {one['worker']}: {one['last_death']}"
    for one in status["streams"]:
        if one["verify"]:
            every = "every step" if one["verify"] == 1 else f"1 in {one['verify']} steps"
            counts = f"{one['verified']} compared, {one['impure']} differed, {one['unverified']} could not be compared"
            yield f"stream {one['name']}: {every} built twice: {counts}"


def print_status(status: dict[str, Any]) -> None:
    """Print the tables of streams, workers and consumers."""
    console = Console(highlight=False)
    limit = status["memory_limit_bytes"]
    of_limit = f" of {_size(limit)}" if limit else ""
    console.print(
        f"daemon pid {status['pid']} at {status['endpoint']}, memory {_size(status['memory_bytes'])}{of_limit}"
    )
    streams = _table(
        "Streams (slots: . free, b building, R ready, ! failed, * leased)",
        *("stream", "steps/epoch", "prefetch", "slot", "built", "failed", "delivered", "lanes"),
    )
    for one in status["streams"]:
        counts = [str(one[key]) for key in ("built", "failed", "delivered")]
        sizes = [str(one["steps_per_epoch"]), str(one["prefetch"]), _size(one["segment_bytes"])]
        streams.add_row(one["name"], *sizes, *counts, _slots(one["lanes"]), style=None)
    workers = _table("Workers", "worker", "pid", "state", "tasks", "built", "deaths")
    for one in status["workers"]:
        workers.add_row(*(str(one[key]) for key in ("worker", "pid", "state", "tasks", "built", "deaths")))
    keys = ("consumer", "pid", "stream", "shard", "lane", "pace", "position", "waits_for", "holds", "held_others_up_s")
    consumers = _table("Consumers", *keys)
    for one in status["consumers"]:
        consumers.add_row(*("-" if one[key] is None else str(one[key]) for key in keys))
    for table in (streams, workers, consumers):
        console.print()
        console.print(table, markup=False) if table.row_count else console.print(f"{table.title}: none")
    for note in _notes(status):
        console.print(note, markup=False, soft_wrap=True)


def print_explanation(place: dict[str, int], slots: list[dict[str, int | None]]) -> None:
    """Print where a batch stands and one line for each of its slots."""
    console = Console(highlight=False)
    console.print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in place.items()))
    columns = [name for name in slots[0] if any(slot[name] is not None for slot in slots)]
    table = _table("Slots", *columns)
    for slot in slots:
        table.add_row(*(str(slot[name]) for name in columns))
    console.print(table)
