"""spdl on the workload: a pool of threads that build batches from indices, eight of them ahead."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from spdl.pipeline import PipelineBuilder

from benchmarks.peers import lines
from benchmarks.peers.options import Options

__all__ = ["batches"]


def batches(options: Options) -> Iterator[Any]:
    """Yield batches of line images without end. options: threads."""
    data, seeds, local = lines.Lines.load(), itertools.count(1), threading.local()
    one_at_a_time = threading.Lock()  # the numpy build keeps one scratch a process

    def build(indices: Any) -> lines.Slot:
        if not hasattr(local, "build"):
            local.build = lines.NumpyBuild(data, next(seeds))
        with one_at_a_time:
            slot: lines.Slot = local.build(indices, lines.Slot(np.empty(lines.SLOT_BYTES, np.uint8)))
        return slot

    threads = int(options["threads"])
    pipeline = (
        PipelineBuilder()
        .add_source(lines.epochs(len(data), 1))
        .pipe(build, concurrency=threads)
        .add_sink(lines.DEPTH)
        .build(num_threads=threads)
    )
    with pipeline.auto_stop():
        yield from pipeline.get_iterator()
