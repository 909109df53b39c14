"""The demo: starts a daemon, lets two processes read the same stream, computes the reference, compares.

Owns `DemoOptions` and `run_demo`. Invariant: it exits 0 only where both consumers and the in-process reference saw the
same bytes and every step was built once.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import loader_client
from loader_service.cli.demo.corpus import CORPUS, make_corpus
from loader_service.cli.demo.reader import STREAM, digest_batches
from loader_service.cli.output import say
from loader_service.cli.progress import AddBar, progress
from loader_service.contract.stream import Stream
from loader_service.data import text_line_images
from loader_service.data.pskd import pipeline_stream
from loader_service.errors import ServiceClosedError, from_record
from loader_service.loader import Loader
from loader_service.local import LocalService

__all__ = ["DemoOptions", "run_demo"]

_FACTORY = "loader_service.data:text_line_images"
_READERS = 2


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Settings of one demo. files: text files, none for the standard library's sources; steps: of each consumer."""

    files: tuple[str, ...] = ()
    steps: int = 200
    workers: int = 2
    prefetch: int = 8
    batch_size: int = 32
    seed: int = 0
    save_grid: Path | None = None
    text: bool = False

    @property
    def factory_arguments(self) -> dict[str, Any]:
        files = [str(Path(file).absolute()) for file in self.files]
        return {"files": files or None, "seed": self.seed, "batch_size": self.batch_size}

    def table(self, directory: Path) -> dict[str, Any]:
        """Options of the stream for the daemon; with `text`, `directory` has its container."""
        if not self.text:
            return {"factory": _FACTORY, "args": self.factory_arguments, "prefetch": self.prefetch}
        pipeline = f"stream '{directory / CORPUS}' |> shuffle(seed = {self.seed}) |> batch(B = {self.batch_size})"
        return {"pipeline": pipeline, "names": ["tokens", "targets"], "prefetch": self.prefetch}

    def stream(self, directory: Path) -> Stream:
        """The same stream in this process."""
        if not self.text:
            return text_line_images(**self.factory_arguments)
        table = self.table(directory)
        return pipeline_stream(table["pipeline"], table["names"])


class _Reader:
    """One reading process, and the thread that follows what it says."""

    def __init__(self, endpoint: str, steps: int, progress: Callable[[int], None]) -> None:
        command = [sys.executable, "-P", "-m", "loader_service.cli.demo.reader", endpoint, str(steps)]
        self._process = subprocess.Popen(  # in a process group of its own: Ctrl-C is the demo's to handle
            command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, process_group=0
        )
        self._progress = progress
        self._said: dict[str, Any] = {}
        self._opened = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        assert self._process.stdout is not None  # it is a pipe
        for line in self._process.stdout:
            content = json.loads(line)
            if "step" in content:
                self._progress(content["step"])
            else:
                self._said = content
                self._opened.set()
        self._opened.set()

    def wait_opened(self) -> None:
        """Wait until it has opened the stream, or has failed."""
        self._opened.wait()

    def go(self) -> None:
        """Let it read."""
        assert self._process.stdin is not None  # it is a pipe
        with suppress(BrokenPipeError):  # then `result` tells why
            self._process.stdin.write("go\n")
            self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        """Return what it said at its end. Raises the error that it met."""
        self._thread.join()
        self._process.wait()
        if "error" in self._said:
            raise from_record(self._said["error"])
        if "digest" not in self._said:
            raise ServiceClosedError("a reading process ended before its last step; what it printed says why")
        return self._said

    def end(self) -> None:
        """Leave nothing behind, also where the demo was interrupted."""
        self._process.terminate()
        self._process.wait()
        self._thread.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


def _follow(add_bar: AddBar, name: str, steps: int) -> Callable[[int], None]:
    tick = add_bar(name)
    return lambda step: tick(step, steps)


def _read_twice(endpoint: str, options: DemoOptions, add_bar: AddBar) -> list[dict[str, Any]]:
    steps = options.steps
    readers = [
        _Reader(endpoint, steps, _follow(add_bar, f"consumer {number + 1}", steps)) for number in range(_READERS)
    ]
    try:
        for reader in readers:
            reader.wait_opened()  # both at step 0 before either reads: then they share a lane from the first step on
        for reader in readers:
            reader.go()
        return [reader.result() for reader in readers]
    finally:
        for reader in readers:
            reader.end()


def _builds(endpoint: str, steps: int) -> dict[int, int]:
    """Count how often each of the steps was built."""
    with loader_client.connect(endpoint) as client:
        builds = client.status(builds=True)["streams"][0]["builds"]
    return {step: times for step, times in builds if step < steps}


def _draw(endpoint: str, path: Path) -> None:
    """Draw the first batch as the daemon serves it."""
    from loader_service.cli.demo.picture import save_grid

    with loader_client.connect(endpoint) as client, client.open(STREAM) as consumer, consumer.get(0) as batch:
        save_grid(batch, path)


def _reference(stream: Stream, options: DemoOptions, add_bar: AddBar) -> dict[str, Any]:
    start = time.perf_counter()
    follow = _follow(add_bar, "in-process reference", options.steps)
    digest = digest_batches(Loader(stream, 0, options.steps), follow)
    return {"digest": digest, "seconds": time.perf_counter() - start, "batches": options.steps}


def _result_lines(rows: list[tuple[str, dict[str, Any]]]) -> list[str]:
    lines = [f"{'reader':<22}{'batches':>8}{'batches/s':>11}  SHA-256 of all bytes"]
    for name, row in rows:
        lines.append(f"{name:<22}{row['batches']:>8}{row['batches'] / row['seconds']:>11.0f}  {row['digest']}")
    return lines


def run_demo(options: DemoOptions) -> int:
    """Run it and print what it found; 0 where all agree, else 1."""
    with tempfile.TemporaryDirectory(prefix="loader-service-demo-") as directory:
        return _run(options, Path(directory))


def _run(options: DemoOptions, directory: Path) -> int:
    if options.text:
        say(make_corpus(options.files, directory))
    if options.save_grid is not None:
        from loader_service.cli.demo.picture import check_writeable

        check_writeable(options.save_grid)
    stream = options.stream(directory)
    what = "windows" if options.text else "text lines"
    say(
        f"{len(stream.dataset)} {what}, {stream.steps_per_epoch} steps per epoch; "
        f"{options.workers} workers, prefetch {options.prefetch}, {_READERS} consumers"
    )
    with progress(sys.stdout) as add_bar:
        table = {"server": {"workers": options.workers}, "streams": {STREAM: options.table(directory)}}
        with LocalService(table) as service:
            consumers = _read_twice(service.endpoint, options, add_bar)
            builds = _builds(service.endpoint, options.steps)
            if options.save_grid is not None:
                _draw(service.endpoint, options.save_grid)
        reference = _reference(stream, options, add_bar)
    rows = [(f"consumer {number + 1}", row) for number, row in enumerate(consumers)]
    for line in _result_lines([*rows, ("in-process reference", reference)]):
        say(line)
    if options.save_grid is not None:
        say(f"a picture of the first batch: {options.save_grid}")
    return _verdict(options, builds, [row["digest"] for row in (*consumers, reference)])


def _verdict(options: DemoOptions, builds: dict[int, int], digests: list[str]) -> int:
    once = len(builds) == options.steps and set(builds.values()) == {1}
    if once:
        say(f"each of the {options.steps} steps was built once for {_READERS} consumers")
    else:
        often = {step: times for step, times in builds.items() if times != 1}
        say(f"{len(builds)} of {options.steps} steps were built; more than once: {often or 'none'}")
    agree = len(set(digests)) == 1
    say("all three digests agree" if agree else "THE DIGESTS DIFFER: please report this")
    return 0 if agree and once else 1
