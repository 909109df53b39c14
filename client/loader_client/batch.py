"""Batches that are views into the daemon's shared memory, and the memory that keeps them unchanged.

Owns `LeasedMemory` and `leased_batch`. Invariant: every array of the batch has the leased memory as the end of its
chain of `base`s (numpy keeps whatever gave it the memory through `__array_interface__`), so the lease ends when the
last array, tensor or view over it dies, wherever it went; the mapping lives as long.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from loader_service.contract.batch import Batch
from loader_service.contract.shards import Shard
from loader_service.errors import ProtocolError
from loader_service.wire.layouts import unpack_layout
from loader_service.wire.messages import Ready
from loader_service.wire.segment import Segment

__all__ = ["LeasedMemory", "leased_batch"]


class LeasedMemory:
    """Read-only memory of one batch, uint8 [nbytes], for numpy to build on; a session looks when it dies."""

    __slots__ = ("__array_interface__", "__weakref__", "_segment")

    def __init__(self, segment: Segment, nbytes: int) -> None:
        self._segment = segment  # keeps the mapping
        self.__array_interface__: dict[str, Any] = {
            "data": (segment.address, True),  # True: read-only
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


def leased_batch(ready: Ready, segment: Segment, memory: LeasedMemory, shard: Shard) -> Batch:
    """The shard's rows of the batch that `ready` describes, as views into `memory`.

    Raises IntegrityError, ProtocolError, and ArgumentError where the batch cannot be cut.
    """
    segment.check(ready.step, ready.placement.generation, ready.nbytes)
    layout = unpack_layout(ready.layout)
    if layout.nbytes > ready.nbytes:
        raise ProtocolError(f"step {ready.step} has tensors of {layout.nbytes} bytes in {ready.nbytes} bytes")
    tensors = shard.cut(layout, layout.views(np.asarray(memory)), ready.rows)
    return Batch(tensors, ready.step, ready.epoch, ready.step_in_epoch, len(shard.rows(ready.rows)))
