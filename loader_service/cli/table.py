"""`loader-service status` and `explain` for people: plain text in columns.

Owns `print_status` and `print_explanation`, which lay out what the daemon, or a stream, tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from loader_service.cli.output import say

__all__ = ["print_explanation", "print_status"]

_UNITS = ["B", "KiB", "MiB", "GiB", "TiB"]
_SLOT_SIGNS = {"free": ".", "building": "b", "ready": "R", "failed": "!"}
_STREAMS = ("stream", "steps/epoch", "prefetch", "slot", "built", "failed", "delivered", "lanes")
_WORKERS = ("worker", "pid", "state", "tasks", "built", "deaths")
_CONSUMERS = (
    "consumer",
    "pid",
    "stream",
    "shard",
    "lane",
    "pace",
    "position",
    "waits_for",
    "holds",
    "held_others_up_s",
)


def print_status(status: dict[str, Any]) -> None:
    """Print the tables of streams, workers and consumers, and a line for each thing that went wrong."""
    limit = status["memory_limit_bytes"]
    of_limit = f" of {_size(limit)}" if limit else ""
    say(f"daemon pid {status['pid']} at {status['endpoint']}, memory {_size(status['memory_bytes'])}{of_limit}")
    title = "Streams (slots: . free, b building, R ready, ! failed, * leased)"
    _print_table(title, _STREAMS, [row for one in status["streams"] for row in _stream_rows(one)])
    _print_table("Workers", _WORKERS, [[_cell(one[key]) for key in _WORKERS] for one in status["workers"]])
    _print_table("Consumers", _CONSUMERS, [[_cell(one[key]) for key in _CONSUMERS] for one in status["consumers"]])
    for note in _notes(status):
        say(note)


def print_explanation(place: dict[str, int], slots: list[dict[str, int | None]]) -> None:
    """Print where a batch stands and one line for each of its slots."""
    say(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in place.items()))
    columns = [name for name in slots[0] if any(slot[name] is not None for slot in slots)]
    _print_table("Slots", columns, [[_cell(slot[name]) for name in columns] for slot in slots])


def _print_table(title: str, columns: Sequence[str], rows: list[list[str]]) -> None:
    """Print columns as wide as their widest cell, with two blanks between."""
    say(f"\n{title}" if rows else f"\n{title}: none")
    if not rows:
        return
    lines = [list(columns), *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    for line in lines:
        say("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())


def _cell(value: object) -> str:
    return "-" if value is None else str(value)


def _size(nbytes: int) -> str:
    size, unit = float(nbytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.4g} {_UNITS[unit]}"


def _stream_rows(stream: dict[str, Any]) -> Iterator[list[str]]:
    """One row for each lane of a stream; what is the same for all stands in the first."""
    counts = [str(stream[key]) for key in ("built", "failed", "delivered")]
    sizes = [str(stream["steps_per_epoch"]), str(stream["prefetch"]), _size(stream["segment_bytes"])]
    first = [stream["name"], *sizes, *counts]
    for lane in [_lane(lane) for lane in stream["lanes"]] or ["none"]:
        yield [*first, lane]
        first = [""] * len(first)


def _lane(lane: dict[str, Any]) -> str:
    """Its base, a sign for each slot (* where leased), whom it waits for."""
    signs = "".join(_SLOT_SIGNS[slot["state"]] + ("*" if slot["leased"] else "") for slot in lane["slots"])
    return f"{lane['lane']}: base {lane['base']} [{signs}] waits for {lane['waits_for_consumers']}"


def _notes(status: dict[str, Any]) -> Iterator[str]:
    """Lines on what has gone wrong, or was verified."""
    for one in status["workers"]:
        if one["last_death"]:
            yield f"last death of worker {one['worker']}: {one['last_death']}"
    for one in status["streams"]:
        if one["verify"]:
            every = "every step" if one["verify"] == 1 else f"1 in {one['verify']} steps"
            counts = f"{one['verified']} compared, {one['impure']} differed, {one['unverified']} could not be compared"
            yield f"stream {one['name']}: {every} built twice: {counts}"
