"""Streams that a soak serves: plain lines, lines with an outlier in each epoch, and a dataset that starts processes.

Owns the factories that the daemon's configuration names and `make_streams`, which makes the same streams for the checks
in the soak's own process. Invariant: the bytes of a batch depend on the seed alone; the processes that `ProcessLines`
starts change nothing of them.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loader_service import ImageBatchCollator, ImageSample, ShuffledSampler, Stream
from loader_service.data import SyntheticLines, synthetic_lines

__all__ = ["CHILD_COMMAND", "LINES", "OUTLIERS", "PROCESSES", "make_streams", "outlier_lines", "process_lines"]

LINES, OUTLIERS, PROCESSES = "lines", "outliers", "processes"
"""Names of the streams."""
BATCH_SIZE, SAMPLES = 4, 50
_OUTLIER_SAMPLES = 200
_OUTLIER_INDEX, _OUTLIER_WIDTH = 7, 16 * 256
CHILD_COMMAND = ["sleep", "600"]
_children: list[subprocess.Popen[bytes]] = []
"""The child that a worker process leaves running; it must end with the worker."""


@dataclass(frozen=True)
class OutlierLines:
    """200 line images, one of which is 16 times as wide as others: a batch of 2 MiB among batches of 0.1 MiB."""

    seed: int

    def __len__(self) -> int:
        return _OUTLIER_SAMPLES

    def __getitem__(self, index: int, /) -> ImageSample:
        return self._lines(index)[index]

    def widths(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tell the widths of samples, in pixels: int64 [N]."""
        return np.array([self._lines(index).widths([index])[0] for index in indices.tolist()], np.int64)

    def _lines(self, index: int) -> SyntheticLines:
        width = {"min_width": _OUTLIER_WIDTH, "max_width": _OUTLIER_WIDTH} if index == _OUTLIER_INDEX else {}
        return SyntheticLines(_OUTLIER_SAMPLES, seed=self.seed, **width)


def outlier_lines(seed: int) -> Stream:
    """Make a shuffled stream of `OutlierLines`: one step of 50 has the outlier."""
    sampler = ShuffledSampler(_OUTLIER_SAMPLES, BATCH_SIZE, seed)
    return Stream(OutlierLines(seed), sampler, ImageBatchCollator(4), seed=seed)


@dataclass(frozen=True)
class ProcessLines:
    """50 line images; reading some of them starts processes, as datasets that decode with other programs do.

    Every fifth sample starts a process, terminates it and waits for its end. The first read of all leaves one running.
    """

    seed: int

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int, /) -> ImageSample:
        if not _children:
            _children.append(subprocess.Popen(CHILD_COMMAND))
        if index % 5 == 0:
            child = subprocess.Popen(CHILD_COMMAND)
            child.terminate()
            child.wait()
        return SyntheticLines(SAMPLES, seed=self.seed)[index]


def _process_lines(seed: int, dataset: ProcessLines | SyntheticLines) -> Stream:
    return Stream(dataset, ShuffledSampler(SAMPLES, BATCH_SIZE, seed), ImageBatchCollator(4), seed=seed)


def process_lines(seed: int) -> Stream:
    """Make a shuffled stream of `ProcessLines`."""
    return _process_lines(seed, ProcessLines(seed))


def make_streams(seed: int) -> dict[str, Stream]:
    """Make the streams that the daemon serves, by name; the dataset of "processes" starts none here."""
    plain = _process_lines(seed, SyntheticLines(SAMPLES, seed=seed))
    return {LINES: synthetic_lines(seed, BATCH_SIZE, SAMPLES), OUTLIERS: outlier_lines(seed), PROCESSES: plain}
