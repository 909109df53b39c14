"""grain on the workload: a MapDataset whose batch function builds into grain's shared memory."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.peers import lines
from benchmarks.peers.options import Options

__all__ = ["batches"]


class _Numbers:
    """A source of sample numbers: the batch function reads the samples."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        return int(index)


class _Build:
    """Builds a batch from numbers; in a worker into shared memory, where grain asks for that."""

    def __init__(self, data: lines.Lines) -> None:
        self._data = data
        self._build: lines.NumpyBuild | None = None
        self._shared = False

    def enable_shared_memory_output(self) -> None:
        """Called by grain in its workers."""
        self._shared = True

    def __call__(self, numbers: Any) -> dict[str, Any]:
        if self._build is None:
            self._build = lines.NumpyBuild(self._data, os.getpid())
        indices = np.asarray(numbers)
        shape = (lines.BATCH, 1, lines.HEIGHT, self._data.padded_width(indices))
        images = self._memory(shape)
        self._build.images(indices, np.asarray(images).view(np.ndarray))
        return {
            "images": images,
            "widths": self._data.widths[indices].astype(np.int32),
            "targets": np.concatenate([self._data.targets[index] for index in indices.tolist()]),
            "target_lengths": self._data.target_lengths[indices],
            "labels": self._data.labels[indices],
            "indices": indices.astype(np.int32),
        }

    def _memory(self, shape: tuple[int, ...]) -> Any:
        if not self._shared:
            return np.empty(shape, np.float32)
        from grain._src.python.ipc.shared_memory_array import SharedMemoryArray

        return SharedMemoryArray(shape, np.float32)


def batches(options: Options) -> Iterator[Any]:
    """Yield batches of line images without end. options: workers, 0 for none; then one thread reads ahead."""
    logging.disable(logging.WARNING)
    from absl import flags

    flags.FLAGS(["benchmarks.peers"])
    import grain

    data, workers = lines.Lines.load(), int(options["workers"])
    reading = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    dataset = (
        grain.MapDataset.source(_Numbers(len(data)))
        .seed(1)
        .shuffle()
        .repeat()
        .batch(lines.BATCH, batch_fn=_Build(data))
        .to_iter_dataset(reading)
    )
    if workers:
        many = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=lines.DEPTH)
        dataset = dataset.mp_prefetch(many)
    return iter(dataset)
