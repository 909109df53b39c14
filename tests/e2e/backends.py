"""Ways to read a stream, behind one interface: `Loader`, an embedded daemon, `serve`, and it without workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

import loader_client
from loader_client import Batch
from loader_service import Loader, LocalService, Stream
from tests.e2e import streams
from tests.e2e.harness import ROOT

__all__ = ["BACKENDS", "Backend", "Reader", "Served"]


class Reader(AbstractContextManager[Any], Protocol):
    """The part of a consumer's interface that a `Loader` has, too."""

    next_step: int

    def __iter__(self) -> Iterator[Batch]: ...
    def __next__(self) -> Batch: ...
    def get(self, step: int, /) -> Batch: ...
    @property
    def closed(self) -> bool: ...
    def reopen(self) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...


@dataclass(frozen=True)
class Served:
    """A stream: a factory of `tests.e2e.streams` and its arguments."""

    factory: str
    args: Mapping[str, Any] = field(default_factory=dict)
    prefetch: int = 4

    def make(self) -> Stream:
        stream: Stream = getattr(streams, self.factory)(**self.args)
        return stream


@dataclass(frozen=True)
class Backend:
    """Opens a stream by its name: open(name, start_step, stop_step, shard=(rank, world))."""

    open: Callable[..., Reader]


@contextmanager
def _loaders(served: Mapping[str, Served]) -> Iterator[Backend]:
    made = {name: one.make() for name, one in served.items()}
    yield Backend(lambda name, *arguments, **options: Loader(made[name], *arguments, **options))


def _table(one: Served) -> dict[str, Any]:
    return {"factory": f"tests.e2e.streams:{one.factory}", "args": dict(one.args), "prefetch": one.prefetch}


@contextmanager
def _embedded(served: Mapping[str, Served]) -> Iterator[Backend]:
    config = {"server": {"workers": 2}, "streams": {name: _table(one) for name, one in served.items()}}
    with LocalService(config) as service, loader_client.connect(service.endpoint) as client:
        yield Backend(client.open)


def _toml(endpoint: str, workers: int, served: Mapping[str, Served]) -> str:
    lines = ["[server]", f'endpoint = "{endpoint}"', f"workers = {workers}", f"import_paths = ['{ROOT}']"]
    for name, one in served.items():
        args = ", ".join(f"{key} = {json.dumps(value)}" for key, value in one.args.items())
        lines += [f"[streams.{name}]", f'factory = "tests.e2e.streams:{one.factory}"', f"args = {{ {args} }}"]
        lines += [f"prefetch = {one.prefetch}"]
    return "\n".join(lines)


@contextmanager
def _daemon(served: Mapping[str, Served], workers: int = 2) -> Iterator[Backend]:
    with tempfile.TemporaryDirectory(prefix="serve-") as directory:
        endpoint = f"ipc://{directory}/s.sock"
        config = Path(directory) / "loader.toml"
        config.write_text(_toml(endpoint, workers, served), encoding="utf-8")
        command = [sys.executable, "-m", "loader_service", "serve", str(config)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ) as process:
            try:
                assert process.stdout is not None
                assert b"serving" in process.stdout.readline()
                with loader_client.connect(endpoint) as client:
                    pids = {worker["pid"] for worker in client.status()["workers"]}
                    assert pids == {client.daemon_pid} if workers == 0 else len(pids) == workers
                    yield Backend(client.open)
                process.terminate()
                assert process.wait(30) == 0
            finally:
                process.kill()


def _without_workers(served: Mapping[str, Served]) -> AbstractContextManager[Backend]:
    return _daemon(served, workers=0)


BACKENDS: dict[str, Callable[[Mapping[str, Served]], AbstractContextManager[Backend]]] = {
    "Loader": _loaders,
    "LocalService": _embedded,
    "serve": _daemon,
    "serve without workers": _without_workers,
}
