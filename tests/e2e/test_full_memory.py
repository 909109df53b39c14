"""Shared memory that fills up while a daemon runs: a clear error for who needs more, and no SIGBUS for anybody."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.e2e.harness import ROOT

_SCRIPT = """
import os
import loader_client
from loader_service import LocalService
from loader_service.errors import BuildError, SharedMemoryError
from tests.e2e.harness import eventually
from tests.e2e.streams import growing, slow

def at_rest(client, bases):  # the releases have arrived, and all that they made room for is built
    lanes = [lane for stream in client.status()["streams"] for lane in stream["lanes"]]
    ready = all(slot["state"] == "ready" for lane in lanes for slot in lane["slots"])
    return ready and [lane["base"] for lane in lanes] == bases

streams = {
    "s": {"factory": "tests.e2e.streams:slow", "prefetch": 4},
    "g": {"factory": "tests.e2e.streams:growing", "prefetch": 3, "args": {"unit": 400}},
}
with LocalService({"streams": streams}) as daemon, loader_client.connect(daemon.endpoint) as client:
    with client.open("s") as reader, client.open("g") as grower:
        for step in range(6):
            with reader.get(step) as batch:
                assert batch.digest() == slow().build(step).digest()
        with grower.get(0) as batch:
            assert batch.digest() == growing(400).build(0).digest()
        eventually(lambda: at_rest(client, [6, 1]), "nobody takes what is measured next")
        with open("/dev/shm/filling", "wb") as file:
            free = os.statvfs("/dev/shm")
            os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
        try:
            client.open("s", 1000)
        except SharedMemoryError as error:
            print(error)
        for step in range(6, 60):
            with reader.get(step) as batch:
                assert batch.digest() == slow().build(step).digest()
        try:
            for step in range(1, 12):
                grower.get(step).release()
        except BuildError as error:
            print(error.step, error.cause_type)
            failed = error.step
        os.unlink("/dev/shm/filling")
        with client.open("s", 1000) as late, late.get(1000) as batch:
            assert batch.digest() == slow().build(1000).digest()
        with client.open("g", failed) as again:
            for step in range(failed, 12):
                with again.get(step) as batch:
                    assert batch.digest() == growing(400).build(step).digest()
print("left:", os.listdir("/dev/shm"))
"""


def _private(*command: str) -> list[str]:
    """The command with a small /dev/shm of its own."""
    mount = 'mount -t tmpfs -o size=16m tmpfs /dev/shm && exec "$@"'
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh", *command]


def _can_be_private() -> bool:
    return bool(shutil.which("unshare")) and not subprocess.run(_private("true"), capture_output=True).returncode


@pytest.mark.skipif(not _can_be_private(), reason="this machine gives no user a mount namespace of their own")
def test_who_needs_more_is_told_and_the_others_read_on() -> None:
    done = subprocess.run(
        _private(sys.executable, "-c", _SCRIPT), capture_output=True, text=True, cwd=ROOT, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    refused, failed, left = done.stdout.splitlines()
    assert "bytes of shared memory are needed, and /dev/shm has" in refused
    assert "--shm-size" in refused
    assert failed.endswith(" SharedMemoryError")
    assert left == "left: []"
