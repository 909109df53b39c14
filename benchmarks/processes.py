"""What processes use, as Linux tells it; pid 0 is this process.

Owns `cpu_seconds`, `pss_bytes` and `mapped_segments`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["cpu_seconds", "mapped_segments", "pss_bytes"]

_TICKS = os.sysconf("SC_CLK_TCK")


def _proc(pid: int) -> Path:
    return Path("/proc/self" if pid == 0 else f"/proc/{pid}")


def cpu_seconds(pids: list[int]) -> float:
    """User and system time of living processes, all threads."""
    total = 0
    for pid in pids:
        fields = (_proc(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def pss_bytes(pids: list[int]) -> int:
    """Proportional set size: a page that n processes map counts as 1/n for each."""
    found = [re.search(r"^Pss:\s+(\d+) kB", (_proc(pid) / "smaps_rollup").read_text(), re.MULTILINE) for pid in pids]
    return sum(int(match[1]) * 1024 for match in found if match)


def mapped_segments(pid: int) -> set[str]:
    """The shared-memory segments of daemons that the process has mapped: address and name of each mapping."""
    lines = (_proc(pid) / "maps").read_text().splitlines()
    return {f"{line.split()[0]} {line.split()[5]}" for line in lines if "/dev/shm/lsv-" in line}
