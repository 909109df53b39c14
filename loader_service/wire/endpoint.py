"""Where the daemon listens: an `ipc://` socket in a directory that only its user can enter.

Owns the default endpoint and the checks of a given one. Fails with EndpointError.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from pathlib import Path

from loader_service.errors import EndpointError

__all__ = ["ENVIRONMENT_VARIABLE", "default_endpoint", "make_private_directory", "runtime_directory", "socket_path"]

ENVIRONMENT_VARIABLE = "LOADER_SERVICE_ENDPOINT"
_SCHEME = "ipc://"
_FILE = re.compile(r"/[^\0\ud800-\udfff]*[^\0\ud800-\udfff/]")
"""An absolute path that ZeroMQ can bind: UTF-8, no zero byte, no slash at its end."""
_MAX_PATH_BYTES = 103
"""sun_path holds 104 bytes on macOS, 108 on Linux, with the terminating zero."""


def runtime_directory() -> Path:
    """The user's directory for sockets: under XDG_RUNTIME_DIR or /run/user/UID, else in the temporary one."""
    for parent in (os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{os.getuid()}"):
        if os.path.isabs(parent) and os.access(parent, os.W_OK):
            return Path(parent) / "loader-service"
    return Path(tempfile.gettempdir()) / f"loader-service-{os.getuid()}"


def default_endpoint() -> str:
    """LOADER_SERVICE_ENDPOINT where it is set, else the socket `default` in the runtime directory."""
    return os.environ.get(ENVIRONMENT_VARIABLE) or f"{_SCHEME}{runtime_directory() / 'default.sock'}"


def socket_path(endpoint: str) -> Path:
    """The file of an endpoint such as `ipc:///run/user/1000/loader-service/default.sock`. Raises EndpointError."""
    path = endpoint.removeprefix(_SCHEME)
    if not endpoint.startswith(_SCHEME) or not _FILE.fullmatch(path):
        raise EndpointError(
            f"endpoint is {endpoint!r}; it must be ipc:// with the absolute path of a file, since batches "
            "are read from the shared memory of this machine"
        )
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise EndpointError(
            f"endpoint {endpoint!r} has {len(os.fsencode(path))} bytes of path; a socket's path may have "
            f"{_MAX_PATH_BYTES}; choose a shorter directory"
        )
    return Path(path)


def make_private_directory(directory: Path) -> None:
    """Make `directory` with mode 0700, or check that it is the user's own and private. Raises EndpointError."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.lstat()
    except OSError as error:
        raise EndpointError(f"the socket's directory {directory} cannot be made: {error}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise EndpointError(
            f"the socket's directory {directory} has owner {found.st_uid} and mode "
            f"{stat.S_IMODE(found.st_mode):04o}; it must be a directory of user {os.getuid()} with mode 0700"
        )
