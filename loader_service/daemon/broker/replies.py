"""What the broker answers, made of what the lanes and workers said.

Owns `opened` and `ready`.
"""

from __future__ import annotations

from loader_service.daemon.broker.stream_state import StreamState
from loader_service.daemon.workers.messages import Built
from loader_service.sharing.consumer import Grant
from loader_service.wire.messages import Opened, Ready

__all__ = ["opened", "ready"]


def opened(request: int, stream: StreamState, start_step: int, hold: int) -> Opened:
    """The answer to an Open of `stream`."""
    return Opened(
        request=request,
        start_step=start_step,
        prefetch=stream.lanes.prefetch,
        hold=hold,
        steps_per_epoch=stream.steps_per_epoch,
        fingerprint=stream.fingerprint,
        description=stream.description,
    )


def ready(request: int, grant: Grant, prefetch: int) -> Ready:
    """The answer to a Get, for a step that stands in its slot."""
    built: Built = grant.content
    return Ready(
        request=request,
        lease=grant.lease_id,
        lane=grant.lane_id,
        step=grant.step,
        epoch=built.epoch,
        step_in_epoch=built.step_in_epoch,
        slot=grant.slot,
        placement=grant.placement,
        nbytes=built.nbytes,
        rows=built.rows,
        layout=built.layout,
        prefetch=prefetch,
    )
