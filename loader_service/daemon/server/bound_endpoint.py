"""The daemon's place at its endpoint: the directory, the lock and the socket, taken and kept.

Owns `BoundEndpoint`. Invariant: while the daemon serves, a newcomer finds it at its endpoint, or is found by `keep` not
to, a heartbeat later: whoever cleans directories up (a logout, tmpfiles) removes a socket and cannot end a daemon by
that. Fails with EndpointError and AlreadyRunningError.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from loader_service.daemon.server.lock import EndpointLock
from loader_service.daemon.server.permissions import Permissions
from loader_service.wire.endpoint import socket_path

__all__ = ["BoundEndpoint"]

_log = logging.getLogger("loader_service.endpoint")


class BoundEndpoint:
    """The lock of an endpoint, and with `bind` its socket too.

    Args:
        endpoint: `ipc://` and a path.
        identity: the name of this daemon, for whoever comes after it.
        permissions: who may connect.
    """

    def __init__(self, endpoint: str, identity: str, permissions: Permissions) -> None:
        self._path = socket_path(endpoint)
        self._identity, self._permissions = identity, permissions
        self._lock = self._take()
        self.predecessor = self._lock.predecessor

    def keep(self, is_bound: Callable[[], bool], bind: Callable[[], None]) -> None:
        """Take the place again if somebody removed the socket. Raises EndpointError, AlreadyRunningError.

        Args:
            is_bound: whether the socket's file is there and this daemon's.
            bind: listens anew.
        """
        if is_bound():
            return
        if not self._lock.is_ours:
            taken = self._take()
            self._lock.release()
            self._lock = taken
        else:
            self._permissions.make_directory(self._path.parent)
            self._path.unlink(missing_ok=True)
        bind()
        _log.warning("the socket %s had been removed by somebody else; it is there again", self._path)

    def release(self) -> None:
        """Leave nothing at the endpoint, unless it is another daemon's by now."""
        if self._lock.is_ours:
            self._path.unlink(missing_ok=True)
        self._lock.release()

    def _take(self) -> EndpointLock:
        self._permissions.make_directory(self._path.parent)
        return EndpointLock(self._path, self._identity)
