"""What Linux tells of a process.

Owns `Vitals`, `vitals`, `parent_of` and `processes_with`. A process that is gone has none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Vitals", "parent_of", "processes_with", "vitals"]

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Vitals:
    """pss_kib: its proportional share of the memory that is mapped, KiB."""

    descriptors: int
    threads: int
    pss_kib: int


def vitals(pid: int) -> Vitals | None:
    """Of a process of this user, now; None where it is gone."""
    at = _PROC / str(pid)
    try:
        descriptors = len(os.listdir(at / "fd"))
        threads = len(os.listdir(at / "task"))
        lines = (at / "smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    pss = next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), None)
    return None if pss is None else Vitals(descriptors, threads, pss)


def parent_of(pid: int) -> int | None:
    """Whose child `pid` is."""
    try:
        return int((_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return None


def processes_with(variable: str, value: str) -> Iterator[tuple[int, str]]:
    """(pid, command line) of each process that was started with this variable in its environment, but for this one."""
    marker = f"{variable}={value}".encode()
    for entry in _PROC.glob("[0-9]*"):
        try:
            if int(entry.name) != os.getpid() and marker in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended, or is another user's
