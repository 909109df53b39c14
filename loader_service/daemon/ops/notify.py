"""Tells systemd that the daemon is ready (`Type=notify`), where systemd asks for it.

Owns `notify_ready`. Protocol: one datagram to the socket that NOTIFY_SOCKET names (sd_notify(3)).
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

__all__ = ["notify_ready"]


def notify_ready() -> None:
    """Say READY=1; does nothing where no service manager listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]  # Linux's abstract namespace
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, suppress(OSError):
        manager.sendto(b"READY=1", address)
