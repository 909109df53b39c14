"""A fake daemon, and a client of it, for the tests of the client's modules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import loader_client
from loader_client import Client
from tests.client.fake_daemon import FakeDaemon


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/d.sock"


@pytest.fixture
def daemon(endpoint: str) -> Iterator[FakeDaemon]:
    with FakeDaemon(endpoint) as running:
        yield running


@pytest.fixture
def client(daemon: FakeDaemon) -> Iterator[Client]:
    with loader_client.connect(daemon.endpoint, timeout_s=20, reconnect_s=20) as connected:
        yield connected
