"""The second build of a step, in a worker, and its comparison with the first.

Owns `second_build`. Invariant: it reads the segment of the first build and writes memory of its own only. Memory that
cannot be had, for either of them, is no verdict: the verification is skipped.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.batch import differences
from loader_service.contract.buffers import aligned_empty
from loader_service.contract.layout import Layout
from loader_service.contract.stream import Stream
from loader_service.daemon.workers.messages import Verified, Verify
from loader_service.errors import SharedMemoryError
from loader_service.wire.layouts import unpack_layout
from loader_service.wire.segment import Segment

__all__ = ["second_build"]

_MAX_TENSORS = 20
_MAX_TEXT = 500


def second_build(verify: Verify, stream: Stream, find: Callable[[str], Segment]) -> Verified:
    """Build the step again and compare. Raises BuildError, and IntegrityError where the segment holds another.

    find: the mapping of a segment, by its name.
    """
    try:
        segment = find(verify.placement.segment)
    except SharedMemoryError as error:  # its name was removed from the machine
        return Verified(verify.task, [], error.message)
    segment.check(verify.step, verify.placement.generation, verify.nbytes)
    first = unpack_layout(verify.layout).views(segment.payload)
    try:
        batch = stream.build_into(verify.step, _memory)
    except MemoryError:
        return Verified(verify.task, [], "there is no memory for a second build")
    found = differences(first, batch)
    more = [f"and {len(found) - _MAX_TENSORS} more tensors"] if len(found) > _MAX_TENSORS else []
    return Verified(verify.task, [text[:_MAX_TEXT] for text in found[:_MAX_TENSORS]] + more)


def _memory(layout: Layout) -> NDArray[np.uint8]:
    return aligned_empty(layout.nbytes)
