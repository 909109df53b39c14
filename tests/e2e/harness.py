"""Helpers of the end-to-end tests: services, reading processes, waiting with a deadline."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loader_client import Client
from loader_service import Loader, LocalService, Stream

__all__ = ["ROOT", "digests", "eventually", "python", "service", "stream_status"]

ROOT = Path(__file__).resolve().parents[2]
_DEADLINE_S = 60.0


def service(factory: str, *, workers: int = 2, prefetch: int = 4, slot_bytes: int = 0, **args: Any) -> LocalService:
    """A daemon that serves `tests.e2e.streams:FACTORY` as "s"."""
    stream = {"factory": f"tests.e2e.streams:{factory}", "args": args, "prefetch": prefetch, "slot_bytes": slot_bytes}
    return LocalService({"server": {"workers": workers}, "streams": {"s": stream}})


def digests(stream: Stream, start: int, stop: int) -> list[str]:
    """Compute what the contract says, in this process."""
    return [batch.digest() for batch in Loader(stream, start, stop)]


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Wait until `holds()`; fail after a generous deadline."""
    deadline = time.monotonic() + _DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {_DEADLINE_S} s: {what}"
        time.sleep(0.01)


def stream_status(client: Client, name: str = "s") -> dict[str, Any]:
    return next(stream for stream in client.status(builds=True)["streams"] if stream["name"] == name)


@contextmanager
def python(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs `code`, with pipes; waited for at the end, killed where the test has failed."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise
