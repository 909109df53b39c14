"""Permissions to reach a daemon: its user alone, or the members of a configured group too.

Owns `Permissions`. Invariant: nobody else can enter the socket's directory, connect, or map a segment; members of the
group can write to nothing but the socket, as connecting demands. Fails with ConfigurationError (no such group, or not
one of this user's) and EndpointError (the directory cannot be reached by the group).
"""

from __future__ import annotations

import grp
import os
from dataclasses import dataclass
from pathlib import Path

from loader_service.errors import ConfigurationError, EndpointError
from loader_service.wire.endpoint import make_private_directory, runtime_directory

__all__ = ["Permissions"]


@dataclass(frozen=True, slots=True)
class Permissions:
    """gid: the group that may read too, None for none; group: its name.

    |           | user alone | a group too |
    | directory | 0700       | 0750        |
    | socket    | 0600       | 0660        |
    | segments  | 0600       | 0640        |
    """

    gid: int | None = None
    group: str = ""

    @classmethod
    def of(cls, group: str) -> Permissions:
        """Make them of `[server] group`, empty for none. Raises ConfigurationError."""
        if not group:
            return cls()
        try:
            gid = grp.getgrnam(group).gr_gid
        except (KeyError, ValueError):
            raise ConfigurationError(
                f"[server] group is {group!r}, and this machine has no such group; `getent group` lists those it has"
            ) from None
        if os.geteuid() != 0 and gid not in {os.getegid(), *os.getgroups()}:
            raise ConfigurationError(
                f"[server] group is {group!r}, and the daemon's user {os.geteuid()} is not in it (or was not yet when "
                "it logged in); add the user to the group and log in again"
            )
        return cls(gid, group)

    def make_directory(self, directory: Path) -> None:
        """Make the socket's directory, or check the one that is there. Raises EndpointError."""
        if self.gid is not None and directory == runtime_directory():
            raise EndpointError(
                f"[server] group is {self.group!r}, whose members cannot enter {directory}, the directory of this user "
                "alone; give [server] endpoint (and LOADER_SERVICE_ENDPOINT to the trainers) in a directory that they "
                "can reach, such as ipc:///run/loader-service/default.sock"
            )
        make_private_directory(directory, self.gid)

    def open_socket(self, path: Path) -> None:
        """Let a bound socket be reached by whom it may be. Raises OSError."""
        if self.gid is not None:
            os.chown(path, -1, self.gid, follow_symlinks=False)
        os.chmod(path, 0o600 if self.gid is None else 0o660)

    def open_segment(self, fd: int) -> None:
        """Let a segment that was made with mode 0600 be read by whom it may be. Raises OSError."""
        if self.gid is not None:
            os.fchown(fd, -1, self.gid)
            os.fchmod(fd, 0o640)
