"""tensorsocket as it ships: a producer over a DataLoader with one worker, and consumers.

It slices every tensor along its first axis and keeps a pool of tensors of fixed shapes, so images are padded to 256
and targets to rows of 16 here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensorsocket import TensorConsumer, TensorProducer

from benchmarks.peers import lines
from benchmarks.peers.options import Options
from benchmarks.peers.torch_loader import line_loader

__all__ = ["batches", "produce"]

_AT_ONCE = 8
"""Batches that the producer handles together, its default; with 1 it ends with an error."""


def _ports(options: Options) -> dict[str, Any]:
    port = int(options["port"])
    return {"port": port, "ack_port": port + 1, "heart_ports": (port + 2, port + 3)}


def produce(options: Options) -> None:
    """Serve batches without end."""
    loader = line_loader({"workers": 1}, fixed=True)
    producer = TensorProducer(
        loader, rubber_band_pct=_AT_ONCE / len(loader), producer_batch_size=_AT_ONCE, **_ports(options)
    )
    while True:
        for _ in producer:
            pass


def batches(options: Options) -> Iterator[Any]:
    """Yield batches as they come."""
    while True:
        yield from TensorConsumer(batch_size=lines.BATCH, **_ports(options))
