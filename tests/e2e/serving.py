"""A daemon as `loader-service serve` runs it, in a runtime directory of its own, and what is to be seen of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tests.e2e.harness import ROOT

__all__ = ["descriptors", "endpoint_of", "resident_bytes", "segments", "serving"]

_CONFIG = """
[server]
workers = 1
import_paths = ['{root}']
{server}

[streams.s]
factory = "tests.e2e.streams:{factory}"
prefetch = 4
{stream}
"""


def endpoint_of(directory: Path) -> str:
    return f"ipc://{directory}/loader-service/default.sock"


@contextmanager
def serving(
    directory: Path,
    *arguments: str,
    factory: str = "small",
    server: str = "",
    stream: str = "",
    stderr: int | IO[Any] | None = None,
    **environment: str,
) -> Iterator[subprocess.Popen[bytes]]:
    """Serves `tests.e2e.streams:FACTORY` as "s"; killed at the end, where it has not ended by then."""
    path = directory / "loader.toml"
    path.write_text(_CONFIG.format(root=ROOT, factory=factory, server=server, stream=stream))
    with subprocess.Popen(
        [sys.executable, "-m", "loader_service", "serve", str(path), *arguments],
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, "XDG_RUNTIME_DIR": str(directory), **environment},
    ) as process:
        try:
            assert process.stdout is not None
            assert b"serving s at ipc://" in process.stdout.readline()
            yield process
        finally:
            process.kill()


def segments(pid: int) -> list[Path]:
    """Segments whose name carries this daemon's pid."""
    return [path for path in Path("/dev/shm").glob("lsv-*") if int(path.name.split("-")[1], 36) == pid]


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
