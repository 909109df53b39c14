"""The word to systemd: one datagram where it listens, nothing where it does not."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from loader_service.daemon.ops.notify import notify_ready


@pytest.fixture
def manager() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(5)
        yield listening


def test_ready_is_one_datagram(manager: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager.bind(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    notify_ready()
    assert manager.recv(100) == b"READY=1"
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(100)


def test_an_abstract_address_is_understood(manager: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"loader-service-test-{os.getpid()}"
    manager.bind(f"\0{name}")
    monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
    notify_ready()
    assert manager.recv(100) == b"READY=1"


@pytest.mark.parametrize("address", [None, "", "/no/such/socket", "@nobody-listens-here", "relative", "/" + "x" * 80])
def test_where_nobody_listens_nothing_happens(address: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if address is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    notify_ready()
