"""`loader-service serve`, `status` and `stop`: from start to end, and what is left behind: nothing."""

from __future__ import annotations

import json
import os
import pickle
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import pytest
import zmq

import loader_client
from loader_client import Consumer
from loader_service import LocalService
from loader_service.errors import AlreadyRunningError, ServiceClosedError
from loader_service.wire.messages import DAEMON_MESSAGES, Error
from loader_service.wire.protocol import VERSION, decode
from tests.e2e.harness import ROOT, digests, eventually, service
from tests.e2e.streams import small

_CONFIG = """
[server]
workers = 2
import_paths = ['{root}']
{server}

[streams.s]
factory = "tests.e2e.streams:{factory}"
prefetch = 4
{stream}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return _write_config(tmp_path)


def _write_config(directory: Path, factory: str = "small", server: str = "", stream: str = "") -> Path:
    path = directory / "loader.toml"
    path.write_text(_CONFIG.format(root=ROOT, factory=factory, server=server, stream=stream))
    return path


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "loader_service", *arguments]


def _environment(directory: Path) -> dict[str, str]:
    return {**os.environ, "XDG_RUNTIME_DIR": str(directory)}


def _run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _command(*arguments), capture_output=True, text=True, timeout=60, env=_environment(directory), check=False
    )


@contextmanager
def _serving(config: Path) -> Iterator[Popen[str]]:
    """A daemon at the default endpoint of a runtime directory of its own."""
    environment = _environment(config.parent)
    with Popen(_command("serve", str(config)), stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert "serving s at ipc://" in process.stdout.readline()
            yield process
        finally:
            process.kill()


def _segments(pid: int) -> list[Path]:
    """Segments whose name carries this daemon's pid."""
    return [path for path in Path("/dev/shm").glob("lsv-*") if int(path.name.split("-")[1], 36) == pid]


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_serve_status_stop(config: Path) -> None:
    with _serving(config) as daemon:
        endpoint = f"ipc://{config.parent}/loader-service/default.sock"
        children = _children(daemon.pid)
        with loader_client.connect(endpoint) as client, client.open("s", 0, 20) as consumer:
            assert [batch.digest() for batch in consumer] == digests(small(), 0, 20)
        table = _run(config.parent, "status")
        assert (table.returncode, table.stderr) == (0, "")
        assert "Streams" in table.stdout
        assert "Workers" in table.stdout
        status = json.loads(_run(config.parent, "status", "--json").stdout)
        assert status["pid"] == daemon.pid
        assert [one["name"] for one in status["streams"]] == ["s"]
        assert len(status["workers"]) == 2
        stopped = _run(config.parent, "stop")
        assert (stopped.returncode, stopped.stderr) == (0, "")
        assert daemon.wait(30) == 0
        assert _segments(daemon.pid) == []
        assert list((config.parent / "loader-service").iterdir()) == []
        eventually(lambda: _gone(children), "workers and resource tracker end")


def _read_on(consumer: Consumer, step: int) -> None:
    consumer.seek(step)
    for _ in range(10_000):
        consumer.get(consumer.next_step, timeout_s=30).release()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_daemon_tells_the_consumers_and_leaves_nothing(config: Path, number: signal.Signals) -> None:
    with _serving(config) as daemon:
        endpoint = f"ipc://{config.parent}/loader-service/default.sock"
        with loader_client.connect(endpoint, reconnect_s=0) as client, client.open("s") as consumer:
            kept = next(consumer)["images"]
            daemon.send_signal(number)
            with pytest.raises(ServiceClosedError):  # what was under way may still come
                _read_on(consumer, 10**6)
            assert daemon.wait(30) == 0
            with pytest.raises(ServiceClosedError):
                client.status()
            assert kept.sum() == small().build(0)["images"].sum()
        assert _segments(daemon.pid) == []


def test_the_daemon_ends_in_time_while_its_workers_are_blocked(tmp_path: Path) -> None:
    config = _write_config(tmp_path, "slow", stream="args = { delay_s = 60.0 }\nslot_bytes = 4096")
    with _serving(config) as daemon:
        endpoint = f"ipc://{tmp_path}/loader-service/default.sock"
        with loader_client.connect(endpoint) as client, client.open("s") as consumer:
            consumer.seek(0)
            eventually(lambda: client.status()["workers"][0]["tasks"] > 0, "a build has begun")
            daemon.terminate()
            assert daemon.wait(30) == 0
        assert _segments(daemon.pid) == []


def test_a_consumer_that_waits_and_one_that_asks_too_late_are_told_of_the_end() -> None:
    with (
        service("slow", delay_s=60.0, prefetch=2, slot_bytes=4096) as daemon,
        loader_client.connect(daemon.endpoint, reconnect_s=0) as client,
        client.open("s") as waiting,
        client.open("s") as late,
    ):
        told: list[str] = []

        def wait() -> None:
            try:
                waiting.get(0, timeout_s=60)
            except ServiceClosedError as error:
                told.append(str(error))

        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: client.status()["consumers"][0]["waits_for"] == 0, "it waits")
        assert daemon.pid is not None
        os.kill(daemon.pid, signal.SIGTERM)
        with pytest.raises(ServiceClosedError):
            late.get(0, timeout_s=60)
        thread.join(60)
        assert len(told) == 1
        assert "SIGTERM" in told[0]


def test_a_client_of_a_killed_daemon_gets_a_clear_error_at_once() -> None:
    daemon = service("slow", prefetch=2).start()
    with loader_client.connect(daemon.endpoint, reconnect_s=0) as client, client.open("s") as consumer:
        assert daemon.pid is not None
        os.kill(daemon.pid, signal.SIGKILL)
        with pytest.raises(ServiceClosedError, match="the daemon is gone"):
            consumer.get(10**6, timeout_s=60)
    daemon.stop()


def _killed(config: Path) -> Popen[str]:
    """A daemon that left its segments; tried again where one that started elsewhere meanwhile has swept them."""
    for _ in range(5):
        with _serving(config) as daemon:
            assert len(_segments(daemon.pid)) == 4
            tracker = [pid for pid in _children(daemon.pid) if b"resource_tracker" in _command_line(pid)]
            for pid in [*tracker, daemon.pid]:  # as the kernel does when a whole group is out of memory
                os.kill(pid, signal.SIGKILL)
            daemon.wait()
            if len(_segments(daemon.pid)) == 4:
                return daemon
    pytest.fail("the segments of a killed daemon were gone before another one started")


def test_after_a_kill_the_next_start_serves_and_nothing_of_the_dead_one_is_left(config: Path) -> None:
    first = _killed(config)
    with _serving(config) as second:
        assert _segments(first.pid) == []
        assert len(_segments(second.pid)) == 4
        endpoint = f"ipc://{config.parent}/loader-service/default.sock"
        with loader_client.connect(endpoint) as client, client.open("s", 0, 9) as consumer:
            assert [batch.digest() for batch in consumer] == digests(small(), 0, 9)
        second.terminate()
        assert second.wait(30) == 0
    assert _segments(second.pid) == []


def _command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_second_daemon_under_one_endpoint_refuses_and_names_the_first(config: Path) -> None:
    with _serving(config) as first:
        refused = _run(config.parent, "serve", str(config))
        assert refused.returncode == 1
        assert f"running, pid {first.pid}" in refused.stderr
        assert "Traceback" not in refused.stderr
        endpoint = f"ipc://{config.parent}/loader-service/default.sock"
        with pytest.raises(AlreadyRunningError):
            LocalService({"server": {"endpoint": endpoint}, "streams": {"s": {"factory": small}}}).start()
        with loader_client.connect(endpoint) as client:
            assert client.streams == ("s",)


@pytest.mark.parametrize("what", ["file", "directory", "link"])
def test_what_stands_in_the_sockets_place_is_refused_and_kept(config: Path, what: str) -> None:
    directory = config.parent / "loader-service"
    directory.mkdir(mode=0o700)
    place = directory / "default.sock"
    if what == "file":
        place.write_text("mine")
    elif what == "directory":
        place.mkdir()
    else:
        place.symlink_to(config)
    refused = _run(config.parent, "serve", str(config))
    assert refused.returncode == 1
    assert "is no socket" in refused.stderr
    assert place.is_symlink() or place.exists()


def test_a_directory_that_others_can_enter_is_refused(config: Path) -> None:
    (config.parent / "loader-service").mkdir(mode=0o755)
    refused = _run(config.parent, "serve", str(config))
    assert refused.returncode == 1
    assert "mode 0700" in refused.stderr


def test_only_its_user_can_reach_a_daemon(config: Path) -> None:
    with _serving(config) as daemon:
        directory = config.parent / "loader-service"
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (directory, directory / "default.sock")}
        assert list(modes.values()) == [0o700, 0o600]
        assert {stat.S_IMODE(path.stat().st_mode) for path in _segments(daemon.pid)} == {0o600}


@pytest.mark.parametrize(
    ("factory", "server", "text"),
    [
        ("missing", "", "stream 's': factory 'tests.e2e.streams:missing'"),
        ("small", "worker = 3", "[server] has no key 'worker'; did you mean 'workers'?"),
        ("small", "memory_limit = 1.5", "[server] memory_limit is 1.5"),
        ("small", "memory_limit = 4096", "of [server] memory_limit = 4096 bytes 4096 are left"),
    ],
)
def test_a_mistake_in_the_file_is_one_message_without_a_traceback(
    tmp_path: Path, factory: str, server: str, text: str
) -> None:
    refused = _run(tmp_path, "serve", str(_write_config(tmp_path, factory, server)))
    assert refused.returncode in (1, 2)
    assert text in refused.stderr
    assert "Traceback" not in refused.stderr


def test_commands_without_a_daemon_say_so(tmp_path: Path) -> None:
    for command in ("status", "stop"):
        refused = _run(tmp_path, command, "--timeout", "0.1")
        assert refused.returncode == 1
        assert "no daemon answered" in refused.stderr


def test_strange_messages_are_answered_or_dropped_and_the_daemon_serves_on() -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return os.system, ("false",)

    strange = [
        [pickle.dumps(Bomb())],
        [VERSION + pickle.dumps(Bomb())],
        [VERSION + b"\xc1"],
        [VERSION + b"\x80"],
        [b"loader-service/99\n\x80"],
        [VERSION + b"\x81\xa4kind\xa5hello"],
        [b""],
    ]
    with service("small") as daemon, zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(daemon.endpoint)
        for frames in strange:
            socket.send_multipart(frames)
            assert socket.poll(10_000)
            reply = decode(socket.recv_multipart(), DAEMON_MESSAGES)
            assert isinstance(reply, Error)
            assert reply.error["code"] == "E3003"
        with loader_client.connect(daemon.endpoint) as client, client.open("s", 0, 5) as consumer:
            assert [batch.digest() for batch in consumer] == digests(small(), 0, 5)


def test_a_daemon_ends_with_the_process_that_started_it() -> None:
    code = (
        "import sys, time; from tests.e2e.harness import service; daemon = service('small').start();"
        "print(daemon.pid, flush=True); time.sleep(60)"
    )
    with Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert _segments(pid)
        owner.kill()
    eventually(lambda: not Path(f"/proc/{pid}").exists(), "the daemon ends")
    eventually(lambda: _segments(pid) == [], "its segments too")
