"""The resources that processes use, read from Linux's /proc.

Owns `ResourceUsage`, `resource_usage`, `cpu_seconds`, `pss_bytes`, `mapped_segments`, `parent_pid`,
`descendants` and `processes_with_environment`. The pid 0 stands for this process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "ResourceUsage",
    "cpu_seconds",
    "descendants",
    "mapped_segments",
    "parent_pid",
    "processes_with_environment",
    "pss_bytes",
    "resource_usage",
]

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")
_PSS = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """Resources of one process at one moment.

    Attributes:
        descriptors: Open file descriptors.
        threads: Threads of the process.
        pss_kib: Proportional set size in KiB: a page that n processes map counts as 1/n for each.
    """

    descriptors: int
    threads: int
    pss_kib: int


def resource_usage(pid: int) -> ResourceUsage | None:
    """Measure a process of this user; None where the process is gone."""
    directory = _directory(pid)
    try:
        descriptors = len(os.listdir(directory / "fd"))
        threads = len(os.listdir(directory / "task"))
        pss = _PSS.search((directory / "smaps_rollup").read_text())
    except OSError:
        return None
    return None if pss is None else ResourceUsage(descriptors, threads, int(pss[1]))


def cpu_seconds(pids: list[int]) -> float:
    """Sum the user and system time of living processes over all their threads, in seconds."""
    total = 0
    for pid in pids:
        fields = (_directory(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def pss_bytes(pids: list[int]) -> int:
    """Sum the proportional set sizes of living processes, in bytes."""
    found = [_PSS.search((_directory(pid) / "smaps_rollup").read_text()) for pid in pids]
    return sum(int(match[1]) * 1024 for match in found if match)


def mapped_segments(pid: int) -> set[str]:
    """List the mappings of daemons' shared-memory segments in a process, each as "ADDRESS NAME"."""
    lines = (_directory(pid) / "maps").read_text().splitlines()
    return {f"{line.split()[0]} {line.split()[5]}" for line in lines if "/dev/shm/lsv-" in line}


def parent_pid(pid: int) -> int | None:
    """Find the parent of a process; None where the process is gone."""
    try:
        return int((_directory(pid) / "stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return None


def descendants(pid: int) -> list[int]:
    """List the living children of a process, their children, and so on, each after its parent."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.glob("[0-9]*"):
        parent = parent_pid(int(entry.name))
        if parent is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found = list(children.get(pid, []))
    for one in found:
        found.extend(children.get(one, []))
    return found


def processes_with_environment(variable: str, value: str) -> Iterator[tuple[int, str]]:
    """Find the other processes that were started with `variable` set to `value`.

    Yields:
        The pid and the command line of each.
    """
    marker = f"{variable}={value}".encode()
    for entry in _PROC.glob("[0-9]*"):
        try:
            if int(entry.name) != os.getpid() and marker in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended, or belongs to another user


def _directory(pid: int) -> Path:
    return _PROC / ("self" if pid == 0 else str(pid))
