"""The place where the daemon listens: an `ipc://` socket in a directory that only its user or a group can enter.

Owns the default endpoint, the checks of a given one, and those of the directory, on both sides. Fails with
EndpointError.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from pathlib import Path

from loader_service.errors import EndpointError

__all__ = [
    "ENVIRONMENT_VARIABLE",
    "check_trusted",
    "default_endpoint",
    "make_private_directory",
    "runtime_directory",
    "socket_path",
]

ENVIRONMENT_VARIABLE = "LOADER_SERVICE_ENDPOINT"
_SCHEME = "ipc://"
_FILE = re.compile(r"/[^\0\ud800-\udfff]*[^\0\ud800-\udfff/]")
"""An absolute path that ZeroMQ can bind: UTF-8, no zero byte, no slash at its end."""
_MAX_PATH_BYTES = 103
"""sun_path holds 104 bytes on macOS, 108 on Linux, with the terminating zero."""
_DEFAULT_NAME = "default.sock"
_SHORT_TEMPORARY = "/tmp"


def runtime_directory(name: str = _DEFAULT_NAME) -> Path:
    """The user's directory for sockets: under XDG_RUNTIME_DIR or /run/user/UID, else in the temporary one.

    Args:
        name: of a socket in it. A directory with which that would have too long a path, such as the TMPDIR of a batch
            system, is passed over; the last resort is /tmp.
    """
    candidates = [
        Path(parent) / "loader-service"
        for parent in (os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{os.getuid()}")
        if os.path.isabs(parent) and os.access(parent, os.W_OK)
    ]
    candidates.append(Path(tempfile.gettempdir()) / f"loader-service-{os.getuid()}")
    short = (path for path in candidates if len(os.fsencode(path / name)) <= _MAX_PATH_BYTES)
    return next(short, Path(_SHORT_TEMPORARY) / f"loader-service-{os.getuid()}")


def default_endpoint() -> str:
    """LOADER_SERVICE_ENDPOINT where it is set, else the socket `default` in the runtime directory."""
    return os.environ.get(ENVIRONMENT_VARIABLE) or f"{_SCHEME}{runtime_directory() / _DEFAULT_NAME}"


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


def make_private_directory(directory: Path, gid: int | None = None) -> None:
    """Make `directory` with mode 0700, or check that it is the user's own and private. Raises EndpointError.

    gid: a group that may enter it too: mode 0750. What is checked is what was opened, so that no link can be put in
    its place meanwhile.
    """
    mode = 0o700 if gid is None else 0o750
    try:
        directory.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        is_new = _make(directory)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if is_new and gid is not None:
                os.fchown(fd, -1, gid)
                os.fchmod(fd, mode)
            found = os.fstat(fd)
        finally:
            os.close(fd)
        around = os.stat(directory.parent)
    except OSError as error:
        raise EndpointError(f"the socket's directory {directory} cannot be made or used: {error}") from error
    _check_private(directory, found, mode, gid)
    if around.st_mode & stat.S_IWOTH and not around.st_mode & stat.S_ISVTX:
        raise EndpointError(
            f"everybody may replace the socket's directory {directory}, for {directory.parent} has mode "
            f"{stat.S_IMODE(around.st_mode):04o}; take that from it (chmod o-w), or choose another endpoint"
        )


def _make(directory: Path) -> bool:
    """Make a directory; false where it was there before."""
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        return False
    return True


def _check_private(directory: Path, found: os.stat_result, mode: int, gid: int | None) -> None:
    is_private = not stat.S_IMODE(found.st_mode) & 0o077
    is_groups = stat.S_IMODE(found.st_mode) == mode and found.st_gid == gid
    if found.st_uid != os.getuid() or not (is_private if gid is None else is_groups):
        is_of, must_be_of = ("", "") if gid is None else (f", group {found.st_gid}", f" and group {gid}")
        raise EndpointError(
            f"the socket's directory {directory} has owner {found.st_uid}{is_of} and mode "
            f"{stat.S_IMODE(found.st_mode):04o}; it must be a directory of user {os.getuid()}{must_be_of} with mode "
            f"{mode:04o}: give the socket a directory of its own, such as ipc://{directory}/NAME/x.sock"
        )


def check_trusted(path: Path) -> None:
    """Check, before a client connects, that nobody else can have put the socket `path` there. Raises EndpointError.

    Its directory must be this user's or root's, and nobody else may write to it; one of somebody else is that of a
    group's daemon where it is of a group of this process's, which cannot write to it. A directory that is not there
    (yet) is in order, and so is a link to one: the path was given by this user.
    """
    try:
        found = os.stat(path.parent)
    except OSError:
        return
    is_own = found.st_uid in (os.getuid(), 0) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    is_groups = not found.st_mode & 0o027 and found.st_gid in {os.getegid(), *os.getgroups()}
    if not is_own and not (is_groups and path.parent != runtime_directory()):
        raise EndpointError(
            f"the socket's directory {path.parent} has owner {found.st_uid}, group {found.st_gid} and mode "
            f"{stat.S_IMODE(found.st_mode):04o}: others could have put a socket there; a daemon makes it 0700 for its "
            "user, or 0750 for a group that the trainer's user is in: let it have a directory of its own, such as "
            f"ipc://{path.parent}/NAME/{path.name}"
        )
