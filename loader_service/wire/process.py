"""The identity of processes: that one has ended is told at once, and it is never mistaken for a later one.

Owns pid namespaces, pidfds and start times, which daemon and client both ask for. Linux has them all; elsewhere
they are None or 0 and callers fall back.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["memory_image", "open_pidfd", "pid_namespace", "start_time"]


def pid_namespace() -> int:
    """The inode of this process's pid namespace: pids compare only where it is equal. 0 where unknown."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def open_pidfd(pid: int) -> int | None:
    """A descriptor that polls readable once `pid` has ended; the caller closes it. None where there is none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError, OverflowError):  # a number from a message may be no pid at all
        return None


def start_time(pid: int) -> int | None:
    """Start of process `pid`, in clock ticks since boot: with the pid it names one process.

    None if it is gone, or has ended and only waits for its parent to hear of it.
    """
    try:
        content = Path(f"/proc/{pid}/stat").read_bytes()  # a name in it is cut at 15 bytes, in no encoding
    except OSError:
        return None
    state, *fields = content.rpartition(b")")[2].split()
    return None if state in (b"Z", b"X") else int(fields[18])


def memory_image(pid: int) -> tuple[int, ...]:
    """Return where the program of `pid` lies in its memory: another place once it has executed another one (execve).

    Empty where that cannot be seen: /proc shows it to the same user only.
    """
    try:
        content = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return ()
    fields = content.rpartition(b")")[2].split()[23:26]  # startcode, endcode, startstack: fields 26 to 28 of proc(5)
    image = tuple(map(int, fields))
    return image if any(image[:1]) and image[-1] else ()
