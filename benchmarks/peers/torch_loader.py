"""torch's DataLoader on the workload: the collate function builds straight into memory that the trainer shares.

Owns `batches`, `line_loader` and `jpeg_batches`. One endless epoch, so that no worker is started anew while it is
measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from benchmarks.peers import jpegs, lines
from benchmarks.peers.options import Options

__all__ = ["batches", "jpeg_batches", "line_loader"]

_ENDLESS = 10_000_000


def shared_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Memory for a batch; in a worker it lies in shared memory at once, as torch's own collation has it."""
    if get_worker_info() is None:
        return torch.empty(shape, dtype=dtype)
    like = torch.empty(0, dtype=dtype)
    storage = like._typed_storage()._new_shared(int(np.prod(shape)), device=like.device)
    return like.new(storage).resize_(*shape)


class _Indices(Dataset[Any]):
    """Gives indices, for the collate function reads the samples."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


class _Shuffled(Sampler[list[int]]):
    """Index batches of shuffled epochs, `_ENDLESS` of them."""

    def __init__(self, count: int, batch: int, seed: int) -> None:
        self._count, self._batch, self._seed = count, batch, seed

    def __len__(self) -> int:
        return _ENDLESS

    def __iter__(self) -> Iterator[list[int]]:
        rng = np.random.default_rng(self._seed)
        while True:
            order = rng.permutation(self._count)
            for at in range(0, self._count - self._batch + 1, self._batch):
                yield order[at : at + self._batch].tolist()


class _Collate:
    """Builds a batch from indices, with the same numpy code as every peer. fixed: all widths are 256."""

    def __init__(self, data: lines.Lines, fixed: bool) -> None:
        self._data, self._fixed = data, fixed
        self._build: lines.NumpyBuild | None = None

    def __call__(self, batch: list[int]) -> tuple[torch.Tensor, ...]:
        if self._build is None:
            info = get_worker_info()
            self._build = lines.NumpyBuild(self._data, 100 + (info.id if info else 0))
        indices = np.asarray(batch)
        width = lines.MAX_WIDTH if self._fixed else self._data.padded_width(indices)
        images = shared_tensor((lines.BATCH, 1, lines.HEIGHT, width), torch.float32)
        self._build.images(indices, images.numpy())
        targets = [self._data.targets[index] for index in batch]
        return (
            images,
            torch.from_numpy(_rows(targets) if self._fixed else np.concatenate(targets)),
            torch.from_numpy(self._data.widths[indices].astype(np.int32)),
            torch.from_numpy(self._data.target_lengths[indices]),
            torch.from_numpy(self._data.labels[indices]),
            torch.from_numpy(indices.astype(np.int32)),
        )


def _rows(targets: list[NDArray[np.int32]]) -> NDArray[np.int32]:
    """Targets as rows of 16, for a peer that slices every tensor along its first axis."""
    rows = np.zeros((len(targets), 16), np.int32)
    for row, target in zip(rows, targets, strict=True):
        row[: len(target)] = target
    return rows


def _workers(options: Options) -> dict[str, Any]:
    count = int(options["workers"])
    ahead = {"persistent_workers": True, "prefetch_factor": lines.DEPTH} if count else {}
    return {"num_workers": count, **ahead}


def line_loader(options: Options, fixed: bool = False) -> Any:
    """A DataLoader over the line images. options: workers, consumer (its seed)."""
    data = lines.Lines.load()
    sampler = _Shuffled(len(data), lines.BATCH, 1000 + int(options.get("consumer", 0)))
    return DataLoader(_Indices(len(data)), batch_sampler=sampler, collate_fn=_Collate(data, fixed), **_workers(options))


def batches(options: Options) -> Iterator[Any]:
    """Yield batches of line images without end."""
    return iter(line_loader(options))


class _Jpegs(Dataset[Any]):
    """Decoded pictures, uint8 [3, height, width], and their numbers."""

    def __init__(self, folder: Path) -> None:
        self._pictures = jpegs.Pictures(str(folder))

    def __len__(self) -> int:
        return len(self._pictures)

    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], int]:
        return self._pictures[index]["image"], index


def jpeg_batches(options: Options) -> Iterator[Any]:
    """Yield batches of decoded pictures without end: a DataLoader as people have it, with torch's own collation."""
    data = _Jpegs(Path(options["folder"]))
    sampler = _Shuffled(len(data), jpegs.BATCH, 1)
    return iter(DataLoader(data, batch_sampler=sampler, **_workers(options)))
