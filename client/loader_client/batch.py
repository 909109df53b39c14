"""Batches that are views into the daemon's shared memory, and the lease that keeps them unchanged.

Owns `Lease` and `leased_batch`. Invariant: every array of the batch has the lease as the end of its chain of
`base`s (numpy keeps whatever gave it the memory through `__array_interface__`), so the lease ends when the last
array, tensor or view over it dies, wherever it went; the mapping lives as long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from loader_service.core.batch import Batch
from loader_service.core.layout import Layout
from loader_service.errors import ProtocolError
from loader_service.wire.protocol import Ready
from loader_service.wire.segment import Segment

__all__ = ["Lease", "leased_batch"]


class Lease:
    """Read-only memory of one batch, uint8 [nbytes], for numpy to build on; at its death it calls `end(number)`."""

    __slots__ = ("__array_interface__", "_end", "_number", "_segment")

    def __init__(self, segment: Segment, nbytes: int, number: int, end: Callable[[int], None]) -> None:
        self._segment = segment  # keeps the mapping
        self._number, self._end = number, end
        self.__array_interface__: dict[str, Any] = {
            "data": (segment.address, True),  # True: read-only
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self) -> None:
        self._end(self._number)


def leased_batch(ready: Ready, segment: Segment, end: Callable[[int], None]) -> Batch:
    """The batch that `ready` describes, as views into `segment`. Raises IntegrityError and ProtocolError.

    The lease exists from here on, also where this raises.
    """
    lease = Lease(segment, ready.nbytes, ready.lease, end)
    segment.check(ready.step, ready.generation, ready.nbytes)
    layout = Layout.from_wire(ready.layout)
    if layout.nbytes > ready.nbytes:
        raise ProtocolError(f"step {ready.step} has tensors of {layout.nbytes} bytes in {ready.nbytes} bytes")
    return Batch(layout.views(np.asarray(lease)), ready.step, ready.epoch, ready.step_in_epoch)
