"""Descriptors: as many as this process may have, and never all of them.

Owns `raise_limit` and `is_over`. Invariant: connections of clients use at most half of the descriptors, so that the
daemon can always start a worker, or map a segment; whoever comes when half are used is hung up on at once, and a
client tries again by itself. Fails with EndpointError where there are too few to begin with.
"""

from __future__ import annotations

import logging
import resource
from contextlib import suppress

from loader_service.errors import EndpointError

__all__ = ["is_over", "raise_limit"]

_log = logging.getLogger("loader_service.descriptors")
_OWN, _PER_WORKER = 128, 5


def raise_limit(workers: int) -> None:
    """Let this process have all the descriptors that it may have. Raises EndpointError where they are too few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    needed = _OWN + _PER_WORKER * workers
    if soft != resource.RLIM_INFINITY and soft < needed:
        raise EndpointError(
            f"this process may have {soft} open files, and {workers} workers and their clients need at least {needed}; "
            "raise the limit (ulimit -n, LimitNOFILE= of a systemd unit)"
        )


def is_over(fd: int) -> bool:
    """Return whether half of the descriptors are used, and log it: the lowest that was free was as high as that."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY or fd < limit // 2:
        return False
    _log.warning("a connection was refused: descriptor %d of at most %d", fd, limit)
    return True
