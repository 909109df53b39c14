"""Batches that are views into the daemon's shared memory, and the memory that keeps them unchanged.

Owns `LeasedMemory` and `leased_batch`. Invariant: every array of the batch has the leased memory as the end of its
chain of `base`s (numpy keeps whatever gave it the memory through `__array_interface__`), so the lease ends when the
last array, tensor or view over it dies, wherever it went; the mapping lives as long.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from loader_service.contract.batch import Batch
from loader_service.contract.shards import Shard
from loader_service.errors import ProtocolError
from loader_service.wire.layouts import unpack_layout
from loader_service.wire.messages import Ready
from loader_service.wire.segment import Segment, ready_header

__all__ = ["LeasedMemory", "leased_batch"]

_KEPT, _KEPT_BYTES = 256, 1 << 12
"""So many layouts are kept, unless they are larger: batches of one shape have one, and it is unpacked once."""
_unpacked = lru_cache(_KEPT)(unpack_layout)


class LeasedMemory:
    """Read-only memory of one batch, uint8 [nbytes], for numpy to build on; a lease is a weak reference to it."""

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
    """Make the batch of the shard's rows, as views into `memory`.

    Args:
        ready: the daemon's message that describes the batch.
        segment: the mapped segment that the message names.
        memory: the segment's bytes, under a lease.
        shard: whose rows of the global batch.

    Raises:
        IntegrityError: the segment holds another batch than the message says.
        ProtocolError: the layout is none, or larger than the batch.
        ArgumentError: a tensor cannot be cut for a rank.
    """
    step, generation, nbytes = ready.step, ready.placement.generation, ready.nbytes
    if segment.header != ready_header(step, generation, nbytes) or nbytes > segment.payload.size:
        segment.check(step, generation, nbytes)  # raises, and says what is there
    packed = ready.layout
    layout = _unpacked(packed) if len(packed) <= _KEPT_BYTES else unpack_layout(packed)
    if layout.nbytes > nbytes:
        raise ProtocolError(f"step {step} has tensors of {layout.nbytes} bytes in {nbytes} bytes")
    buffer, rows = np.asarray(memory), ready.rows
    tensors = {spec.name: np.ndarray(spec.shape, spec.dtype, buffer, spec.offset) for spec in layout.tensors}
    if shard.world > 1:
        tensors, rows = shard.cut(layout, tensors, rows), len(shard.rows(rows))
    return Batch(tensors, step, ready.epoch, ready.step_in_epoch, rows)
