"""The log of `serve`, and that no log can end or stall it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import loader_client
from loader_service import Batch
from loader_service.errors import BuildError
from tests.e2e.harness import digests, eventually
from tests.e2e.serving import endpoint_of, serving
from tests.e2e.strangers import random_bytes
from tests.e2e.streams import small


def reads(directory: Path) -> None:
    """A consumer gets what the contract says."""
    with loader_client.connect(endpoint_of(directory)) as client, client.open("s", 0, 5) as consumer:
        assert [batch.digest() for batch in consumer] == digests(small(), 0, 5)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(("arguments", "environment"), [(["--log-json"], {}), ([], {"LOADER_SERVICE_LOG": "json"})])
def test_every_line_is_an_object_with_what_it_is_about(
    tmp_path: Path, arguments: list[str], environment: dict[str, str]
) -> None:
    code = "import loader_client, sys; client = loader_client.connect(sys.argv[1]); client.open('s'); sys.exit(0)"
    with (tmp_path / "log").open("wb") as log, serving(tmp_path, *arguments, stderr=log, **environment) as daemon:
        reads(tmp_path)
        with subprocess.Popen([sys.executable, "-c", code, endpoint_of(tmp_path)], stderr=subprocess.DEVNULL) as client:
            client.wait(60)
        random_bytes(endpoint_of(tmp_path), random.Random(1))
        with loader_client.connect(endpoint_of(tmp_path)) as client_here:
            client_here.tune(workers=2)
        daemon.terminate()
        assert daemon.wait(20) == 0
    lines = lines_of(tmp_path / "log")
    (gone,) = [line for line in lines if "is gone" in line["message"]]
    assert gone["pid"] == client.pid
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert {line["level"] for line in lines} == {"info", "warning"}
    assert lines[-1]["message"] == "ending: SIGTERM"
    assert any("a message was refused" in line["message"] for line in lines)


def test_debug_tells_of_each_build_and_a_failed_step_is_an_error(tmp_path: Path) -> None:
    stream = "args = { bad = 13 }"
    arguments = ("--log-json", "--log-level", "debug")
    with (
        (tmp_path / "log").open("wb") as log,
        serving(tmp_path, *arguments, factory="two_arguments", stream=stream, stderr=log) as daemon,
    ):
        with loader_client.connect(endpoint_of(tmp_path)) as client, client.open("s", 0, 3) as consumer:
            assert len(list(map(Batch.release, consumer))) == 3
            with pytest.raises(BuildError):
                client.open("s", 3).get(3)
        daemon.terminate()
        assert daemon.wait(20) == 0
    lines = lines_of(tmp_path / "log")
    built = [line for line in lines if line["level"] == "debug"]
    assert {0, 1, 2} <= {line["step"] for line in built if line["stream"] == "s" and line["worker"] == 0}
    failed = next(line for line in lines if line["level"] == "error")
    assert (failed["stream"], failed["step"]) == ("s", 3)


def test_the_environment_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "loader.toml"
    path.write_text("[streams.s]\nfactory = 'a:b'\n")
    done = subprocess.run(
        [sys.executable, "-m", "loader_service", "serve", str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "LOADER_SERVICE_LOG": "xml"},
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "LOADER_SERVICE_LOG is 'xml'; it must be 'text' or 'json'" in done.stderr


def test_a_full_disk_under_the_log_changes_nothing(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full, serving(tmp_path, stderr=full) as daemon:
        random_bytes(endpoint_of(tmp_path), random.Random(2))
        reads(tmp_path)
        daemon.terminate()
        assert daemon.wait(20) == 0


def test_a_full_disk_under_the_output_changes_nothing(tmp_path: Path) -> None:
    command = ["import sys; from loader_service.cli.main import main; sys.exit(main(['serve', sys.argv[1]]))"]
    path = tmp_path / "loader.toml"
    path.write_text("[server]\nworkers = 1\n[streams.s]\nfactory = 'tests.e2e.streams:small'\n")
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "PYTHONPATH": str(Path.cwd())}
    with (
        Path("/dev/full").open("wb") as full,
        subprocess.Popen([sys.executable, "-c", *command, str(path)], stdout=full, env=environment) as daemon,
    ):
        try:
            eventually((tmp_path / "loader-service" / "default.sock").exists, "it serves")
            reads(tmp_path)
            daemon.terminate()
            assert daemon.wait(20) == 0
        finally:
            daemon.kill()


def test_a_closed_standard_error_changes_nothing(tmp_path: Path) -> None:
    """Its number may be a socket's by then: nothing is written to it."""
    path = tmp_path / "loader.toml"
    path.write_text("[server]\nworkers = 1\n[streams.s]\nfactory = 'tests.e2e.streams:small'\n")
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "PYTHONPATH": str(Path.cwd())}
    command = f"exec {sys.executable} -m loader_service serve {path} 2>&-"
    with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, env=environment) as daemon:
        try:
            assert daemon.stdout is not None
            assert b"serving s" in daemon.stdout.readline()
            random_bytes(endpoint_of(tmp_path), random.Random(3))
            reads(tmp_path)
            daemon.terminate()
            assert daemon.wait(20) == 0
        finally:
            daemon.kill()


def test_a_log_that_nobody_reads_does_not_stall_the_daemon(tmp_path: Path) -> None:
    readable, writeable = os.pipe()
    os.set_blocking(writeable, False)
    while True:  # fill it
        try:
            os.write(writeable, b"x" * 4096)
        except BlockingIOError:
            break
    os.set_blocking(writeable, True)
    with open(writeable, "wb") as pipe, serving(tmp_path, "--log-level", "debug", stderr=pipe) as daemon:
        random_bytes(endpoint_of(tmp_path), random.Random(4))
        reads(tmp_path)
        daemon.terminate()
        assert daemon.wait(20) == 0
    os.close(readable)
