"""One process of a case: `python -m benchmarks.peers.roles NAME COUNTERS OPTIONS`.

Owns `ROLES` and the loop of a consumer: take a batch, touch it, drop it, count it. Every peer is imported only by the
role that needs it. All of them build with the same code, `lines.NumpyBuild`, unless the case says otherwise.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers import lines
from benchmarks.peers.counters import Counters
from benchmarks.peers.options import Options

__all__ = ["ROLES", "consume", "main"]

_Images = Callable[[Any], NDArray[np.float32]]


def consume(counters: Counters, options: Options, batches: Iterable[Any], images_of: _Images) -> None:
    """Take batches without end. options: consumer (its number), pause_s (between two batches; then waits are noted)."""
    consumer, pause_s = int(options.get("consumer", 0)), float(options.get("pause_s", 0.0))
    source, taken = iter(batches), 0
    while True:
        began = time.perf_counter_ns()
        batch = next(source)
        if pause_s and taken >= lines.DEPTH:
            counters.note_wait(consumer, time.perf_counter_ns() - began)
        lines.touch(images_of(batch))
        del batch
        taken += 1
        if taken == 1:
            counters.first_ns[consumer] = time.monotonic_ns()
        counters.taken[consumer] = taken
        if pause_s:
            time.sleep(pause_s)


def _images_of_slot(slot: lines.Slot) -> NDArray[np.float32]:
    return slot.images


def memcpy(counters: Counters, options: Options) -> None:
    """M: copy 4 MiB that are not in the cache into the slots of a ring."""
    size = lines.BATCH * lines.HEIGHT * lines.MAX_WIDTH
    source = np.random.default_rng(0).random((10, size), dtype=np.float32)
    slots = [slot.floats[:size] for slot in lines.ring()]

    def copies() -> Iterator[NDArray[np.float32]]:
        turn = 0
        while True:
            np.copyto(slots[turn % lines.DEPTH], source[turn % len(source)])
            yield slots[turn % lines.DEPTH]
            turn += 1

    consume(counters, options, copies(), lambda images: images)


def numpy_build(counters: Counters, options: Options) -> None:
    """N: the best numpy build, in the consumer's own process."""
    data = lines.Lines.load()
    build, slots = lines.NumpyBuild(data, 1), lines.ring()
    batches = (build(indices, slots[turn % lines.DEPTH]) for turn, indices in enumerate(lines.epochs(len(data), 1)))
    consume(counters, options, batches, _images_of_slot)


def loader(counters: Counters, options: Options) -> None:
    """Our Loader, in the consumer's own process. options: compiled, "on" or "off"."""
    from loader_service import Loader
    from loader_service.contract.fused import set_compiled
    from loader_service.data import synthetic_lines

    set_compiled(options["compiled"])

    def batches() -> Iterator[Any]:
        for batch in Loader(synthetic_lines()):
            yield batch
            batch.release()

    consume(counters, options, batches(), lambda batch: batch["images"])


def serve(_: Counters, options: Options) -> None:
    """Our daemon, as a user runs it. options: endpoint, workers, directory (for its configuration), factory,
    args, prefetch, compiled.
    """
    path = Path(options["directory"]) / "loader.toml"
    args = ", ".join(f"{name} = {json.dumps(value)}" for name, value in options.get("args", {}).items())
    path.write_text(
        f'[server]\nendpoint = "{options["endpoint"]}"\nworkers = {options["workers"]}\n'
        f'compiled = "{options.get("compiled", "off")}"\n'
        f'import_paths = ["{Path.cwd()}"]\n[streams.lines]\nfactory = "{options["factory"]}"\n'
        f"args = {{ {args} }}\nprefetch = {options.get('prefetch', lines.DEPTH)}\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "loader_service", "serve", str(path), "--log-level", "warning"]
    os.execv(sys.executable, command)


def read(counters: Counters, options: Options) -> None:
    """A consumer of our daemon. options: endpoint, start_step ("live" or a step), tensor (its first tensor's name)."""
    import loader_client

    tensor = options.get("tensor", "images")
    with (
        loader_client.connect(options["endpoint"], timeout_s=60) as client,
        client.open("lines", options.get("start_step", "live")) as consumer,
    ):
        consume(counters, options, consumer, lambda batch: batch[tensor])


def torch_loader(counters: Counters, options: Options) -> None:
    """torch's DataLoader. options: workers, consumer."""
    from benchmarks.peers.torch_loader import batches

    consume(counters, options, batches(options), lambda batch: batch[0].numpy())


def spdl_pipeline(counters: Counters, options: Options) -> None:
    """spdl: index batches through a pool of threads. options: threads."""
    from benchmarks.peers.spdl_pipeline import batches

    consume(counters, options, batches(options), _images_of_slot)


def grain_loader(counters: Counters, options: Options) -> None:
    """grain: a MapDataset with our build as its batch function. options: workers."""
    from benchmarks.peers.grain_loader import batches

    consume(counters, options, batches(options), lambda batch: batch["images"])


def tensorsocket_producer(_: Counters, options: Options) -> None:
    """tensorsocket's producer over a DataLoader with one worker. options: port."""
    from benchmarks.peers.tensorsocket_pair import produce

    produce(options)


def tensorsocket_consumer(counters: Counters, options: Options) -> None:
    """tensorsocket's consumer. options: port."""
    from benchmarks.peers.tensorsocket_pair import batches

    consume(counters, options, batches(options), lambda batch: batch[0].numpy())


def torch_jpegs(counters: Counters, options: Options) -> None:
    """torch's DataLoader over a folder of JPEG files. options: workers, folder."""
    from benchmarks.peers.torch_loader import jpeg_batches

    consume(counters, options, jpeg_batches(options), lambda batch: batch[0].numpy())


ROLES: dict[str, Callable[[Counters, Options], None]] = {
    role.__name__: role
    for role in (
        memcpy,
        numpy_build,
        loader,
        serve,
        read,
        torch_loader,
        spdl_pipeline,
        grain_loader,
        tensorsocket_producer,
        tensorsocket_consumer,
        torch_jpegs,
    )
}


def main() -> None:
    """Run the role that the command line names, until the process is killed."""
    name, path, options = sys.argv[1:]
    ROLES[name](Counters(Path(path)), json.loads(options))


if __name__ == "__main__":
    main()
