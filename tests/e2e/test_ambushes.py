"""The daemon's world is hostile: one row an ambush, each with what comes of it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import loader_client
from loader_service import LocalService
from loader_service.daemon.server.zmtp import GREETING, frame
from loader_service.errors import ConfigurationError, WorkerStartError
from tests.e2e.ambushes import quiet
from tests.e2e.harness import ROOT, digests, eventually, python
from tests.e2e.serving import endpoint_of, resident_bytes, segments, serving
from tests.e2e.strangers import reading
from tests.e2e.streams import small

SIGNALS = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO]


def ambush(factory: str, **options: Any) -> LocalService:
    """A daemon that serves `tests.e2e.ambushes:FACTORY` as "s" with one worker."""
    args = options.pop("args", {})
    stream = {"factory": f"tests.e2e.ambushes:{factory}", "args": args, "slot_bytes": 4096}
    return LocalService({"server": {"workers": 1, **options}, "streams": {"s": stream}})


def reads_all(endpoint: str) -> bool:
    with loader_client.connect(endpoint) as client, client.open("s", 0, 12) as consumer:
        return [batch.digest() for batch in consumer] == digests(quiet(), 0, 12)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


# --- scripts and environments ------------------------------------------------------------------------------


def test_a_script_without_a_main_guard_is_told_at_once_and_starts_no_daemons_without_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from loader_service import LocalService\n"
        "from tests.e2e.streams import small as make\n"
        "LocalService({'server': {'workers': 2}, 'streams': {'s': {'factory': 'train:make'}}}).start()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(tmp_path / "train.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=100)
    assert done.returncode == 1
    assert 'below `if __name__ == "__main__":`' in done.stderr
    assert "ConfigurationError" in done.stderr or "FactoryError" in done.stderr


SERVED = (
    "import os, sys, tempfile; from tests.e2e.harness import service, digests; import loader_client\n"
    "from tests.e2e.streams import small\n"
    "{before}\n"
    "with service('small') as daemon, loader_client.connect(daemon.endpoint) as client, client.open('s', 0, 5) as c:\n"
    "    assert [batch.digest() for batch in c] == digests(small(), 0, 5)\n"
    "print('right', daemon.endpoint)\n"
)


@pytest.mark.parametrize(
    "before",
    [
        "d = tempfile.mkdtemp() + '/' + 'x' * 120; os.mkdir(d); tempfile.tempdir = os.environ['TMPDIR'] = d;"
        "os.environ['XDG_RUNTIME_DIR'] = d",
        "sys.path[0] = os.getcwd(); d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)",
        "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, list(signal.Signals))",
    ],
    ids=["a long TMPDIR", "a deleted working directory", "SIGCHLD ignored", "all signals blocked"],
)
def test_it_serves_wherever_it_is_started(before: str) -> None:
    with python(SERVED.format(before=before)) as process:
        out, error = process.communicate(timeout=100)
    assert out.startswith("right ipc://"), error


def test_names_that_the_terminal_cannot_show_are_escaped(tmp_path: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}
    (tmp_path / "l.toml").write_text('[streams."träin"]\nfactory = "tests.e2e.streams:small"\n', encoding="utf-8")
    command = [sys.executable, "-m", "loader_service"]
    stream = {"träin": {"factory": "tests.e2e.streams:small"}}
    with LocalService({"server": {"workers": 1}, "streams": stream}) as daemon:
        for arguments in (
            ["status", "--endpoint", daemon.endpoint],
            ["explain", str(tmp_path / "l.toml"), "träin", "0"],
        ):
            done = subprocess.run([*command, *arguments], capture_output=True, env=environment, timeout=100)
            assert done.returncode == 0, done.stderr
            assert b"tr\\xe4in" in done.stdout or arguments[0] == "explain"


def test_a_plain_install_explains_and_demonstrates(tmp_path: Path) -> None:
    """Neither msgspec nor rich nor Pillow."""
    (tmp_path / "l.toml").write_text('[streams.s]\nfactory = "tests.e2e.streams:small"\n')
    code = (
        "import sys; sys.modules |= dict.fromkeys(['msgspec', 'rich', 'PIL']); from loader_service.cli.main import main"
    )
    for arguments in (["explain", str(tmp_path / "l.toml"), "s", "0"], ["demo", "--steps", "5"]):
        command = [sys.executable, "-c", f"{code}; sys.exit(main(sys.argv[1:]))", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100)
        assert (done.returncode, done.stderr) == (0, "")


# --- signals ---------------------------------------------------------------------------------------------


def test_signals_of_schedulers_end_neither_the_daemon_nor_a_worker(tmp_path: Path) -> None:
    with serving(tmp_path) as daemon, loader_client.connect(endpoint_of(tmp_path)) as client:
        [worker] = client.status()["workers"]
        for number in SIGNALS:
            for pid in (daemon.pid, worker["pid"]):
                os.kill(pid, number)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            os.kill(worker["pid"], number)
        with client.open("s", 0, 9) as consumer:
            assert [batch.digest() for batch in consumer] == digests(small(), 0, 9)
        assert [one["deaths"] for one in client.status()["workers"]] == [0]


def test_a_hang_up_of_the_whole_group_leaves_nothing(tmp_path: Path) -> None:
    """As when a terminal is closed; the resource tracker stands in that group too."""
    path = tmp_path / "run.py"
    path.write_text(
        "import os, signal, sys; os.setsid(); signal.signal(signal.SIGHUP, signal.SIG_DFL); "  # the tests may ignore it
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    (tmp_path / "l.toml").write_text('[server]\nworkers = 1\n[streams.s]\nfactory = "tests.e2e.streams:small"\n')
    command = [sys.executable, str(path), "-m", "loader_service", "serve", str(tmp_path / "l.toml")]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as daemon:
        try:
            assert daemon.stdout is not None
            assert b"serving s" in daemon.stdout.readline()
            assert len(segments(daemon.pid)) == 8
            os.killpg(daemon.pid, signal.SIGHUP)
            assert daemon.wait(60) == 0
        finally:
            daemon.kill()
    assert segments(daemon.pid) == []
    assert list((tmp_path / "loader-service").iterdir()) == []


def test_a_hang_up_that_was_ignored_at_the_start_ends_nothing(tmp_path: Path) -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with serving(tmp_path) as daemon:
            daemon.send_signal(signal.SIGHUP)
            with loader_client.connect(endpoint_of(tmp_path)) as client, client.open("s", 0, 3) as consumer:
                assert [batch.digest() for batch in consumer] == digests(small(), 0, 3)
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_a_worker_that_is_killed_is_told_so_whatever_the_daemon_inherited(tmp_path: Path) -> None:
    previous = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with (tmp_path / "log").open("wb") as log, serving(tmp_path, stderr=log) as daemon:
            signal.signal(signal.SIGCHLD, previous)
            with loader_client.connect(endpoint_of(tmp_path)) as client:
                os.kill(client.status()["workers"][0]["pid"], signal.SIGKILL)
                eventually(lambda: client.status()["workers"][0]["deaths"] == 1, "its death is noticed")
            daemon.terminate()
            assert daemon.wait(60) == 0
    finally:
        signal.signal(signal.SIGCHLD, previous)
    assert "was killed by SIGKILL" in (tmp_path / "log").read_text()


# --- what datasets do --------------------------------------------------------------------------------------


@pytest.mark.parametrize("factory", ["terminating", "with_a_pool"])
def test_processes_of_a_dataset_end_when_it_ends_them(factory: str) -> None:
    with ambush(factory) as daemon:
        assert reads_all(daemon.endpoint)


def test_processes_that_a_dataset_leaves_end_with_the_daemon_and_those_of_its_group_with_the_worker(
    tmp_path: Path,
) -> None:
    journal = tmp_path / "pids"
    with ambush("leaving_children", args={"journal": str(journal)}) as daemon:
        assert reads_all(daemon.endpoint)
        pids = [int(pid) for pid in journal.read_text().split()]
        assert [alive(pid) for pid in pids] == [True] * 3
        with loader_client.connect(daemon.endpoint) as client:
            os.kill(client.status()["workers"][0]["pid"], signal.SIGKILL)
            eventually(lambda: not alive(pids[0]), "the member of the group ends with the worker")
    assert [alive(pid) for pid in pids] == [False] * 3


def test_a_first_batch_that_kills_its_worker_fails_at_once_with_the_ends_of_the_workers() -> None:
    config = {"server": {"start_timeout_s": 86400.0}, "streams": {"s": {"factory": "tests.e2e.ambushes:ending_first"}}}
    with pytest.raises(WorkerStartError) as caught:
        LocalService(config).start()
    assert caught.value.message.count("ended with exit code 7") == 3
    assert "a stream's first batch" in caught.value.message


def test_what_a_dataset_prints_never_waits_for_who_reads_the_daemons_output(tmp_path: Path) -> None:
    """Nobody reads its pipe; what is printed goes to the log, of which a second has a limit."""
    path = tmp_path / "l.toml"
    path.write_text(
        f"[server]\nworkers = 1\nimport_paths = ['{ROOT}']\n[streams.s]\nfactory = 'tests.e2e.ambushes:printing'\n"
    )
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-m", "loader_service", "serve", str(path)],
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
        ) as daemon,
    ):
        try:
            assert daemon.stdout is not None
            assert b"serving s" in daemon.stdout.readline()
            assert reads_all(endpoint_of(tmp_path))
            daemon.terminate()
            assert daemon.wait(60) == 0
        finally:
            daemon.kill()
    assert "printed:" in (tmp_path / "log").read_text()


# --- clients and strangers -----------------------------------------------------------------------------------


def test_a_trainer_that_executes_another_program_holds_nothing_any_more(tmp_path: Path) -> None:
    code = (
        "import os, sys, loader_client\n"
        "consumer = loader_client.connect(sys.argv[1]).open('s'); batch = consumer.get(0)\n"
        "os.execvp('sleep', ['sleep', '600'])\n"
    )
    with (
        serving(tmp_path, server="heartbeat_s = 0.1"),
        loader_client.connect(endpoint_of(tmp_path)) as watcher,
        python(code, endpoint_of(tmp_path)) as trainer,
    ):
        comm = Path(f"/proc/{trainer.pid}/comm")
        eventually(lambda: comm.read_text() == "sleep\n", "it has executed the other program")
        eventually(lambda: watcher.status()["consumers"] == [], "its leases have ended")
        assert trainer.poll() is None
        trainer.kill()


def test_a_socket_directory_that_somebody_removes_is_there_again(tmp_path: Path) -> None:
    with serving(tmp_path, server="heartbeat_s = 0.1") as daemon:
        endpoint = endpoint_of(tmp_path)
        with loader_client.connect(endpoint) as old, old.open("s", 0, 12) as consumer:
            next(consumer).release()
            shutil.rmtree(tmp_path / "loader-service")
            eventually((tmp_path / "loader-service" / "default.sock").exists, "it is bound again")
            assert [batch.digest() for batch in consumer] == digests(small(), 1, 12)
            with loader_client.connect(endpoint) as new, new.open("s", 0, 3) as another:
                assert [batch.digest() for batch in another] == digests(small(), 0, 3)
            old.stop_service()
        assert daemon.wait(60) == 0


def _endless(one: socket.socket) -> None:
    one.send(b"\x01\x00" * 1000)


def _unfinished(one: socket.socket) -> None:
    one.send(b"\x02" + (1 << 20).to_bytes(8, "big") + b"x" * 60_000)


def _nothing(one: socket.socket) -> None:
    one.send(b"\xff")


@pytest.mark.parametrize("attack", [_endless, _unfinished, _nothing])
def test_strangers_cost_a_few_megabytes_and_nobody_waits_for_them(
    tmp_path: Path, attack: Callable[[socket.socket], None]
) -> None:
    ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
    with serving(tmp_path) as daemon, reading(endpoint_of(tmp_path)) as reader:
        eventually(lambda: reader.right > 0, "it reads")
        before = resident_bytes(daemon.pid)
        strangers = [socket.socket(socket.AF_UNIX) for _ in range(500)]
        try:
            for one in strangers:
                one.connect(endpoint_of(tmp_path).removeprefix("ipc://"))
                one.setblocking(False)
                one.send(GREETING + frame(ready, 4))
            for one in strangers:
                try:
                    attack(one)
                except OSError:
                    continue  # it is hung up on, or nobody reads it
            right = reader.right
            eventually(lambda: reader.right > right + 5, "it reads on")
            assert resident_bytes(daemon.pid) < before + (16 << 20)
        finally:
            for one in strangers:
                one.close()


# --- without processes -------------------------------------------------------------------------------------


def test_a_daemon_without_workers_builds_by_itself_and_can_have_some_later() -> None:
    stream = {"factory": "tests.e2e.streams:small", "prefetch": 4}
    with (
        LocalService({"server": {"workers": 0}, "streams": {"s": stream}}) as daemon,
        loader_client.connect(daemon.endpoint) as client,
    ):
        with client.open("s", 0, 20) as consumer:
            assert [batch.digest() for batch in consumer] == digests(small(), 0, 20)
        assert [one["pid"] for one in client.status()["workers"]] == [daemon.pid]
        client.tune(workers=2)
        eventually(lambda: [one["state"] for one in client.status()["workers"]] == ["ready"] * 2, "two processes")
        with client.open("s", 30, 40) as consumer:
            assert [batch.digest() for batch in consumer] == digests(small(), 30, 40)


def test_where_no_worker_process_can_be_started_the_daemon_builds_by_itself(tmp_path: Path) -> None:
    """Whatever `workers` says, and without an error: here the interpreter that would be started does not exist."""
    path = tmp_path / "l.toml"
    path.write_text(
        f"[server]\nworkers = 3\nimport_paths = ['{ROOT}']\n[streams.s]\nfactory = 'tests.e2e.streams:small'\n"
    )
    code = "import sys; sys.executable = '/no/such/python'; from loader_service.cli.main import main\n"
    code += "main(['serve', sys.argv[1]])"
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, env=environment) as daemon:
        try:
            assert daemon.stdout is not None
            assert b"serving s" in daemon.stdout.readline()
            with loader_client.connect(endpoint_of(tmp_path)) as client, client.open("s", 0, 9) as consumer:
                assert [batch.digest() for batch in consumer] == digests(small(), 0, 9)
            daemon.terminate()
            assert daemon.wait(60) == 0
        finally:
            daemon.kill()


def test_where_the_daemon_itself_cannot_be_started_the_error_names_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(WorkerStartError, match=r"no process can be started for the daemon: .*/no/such/python"):
        ambush("quiet").start()


def test_a_setting_of_the_wrong_kind_is_one_message() -> None:
    with pytest.raises(ConfigurationError, match="workers is -1; it must be an integer from 0 to 1024"):
        LocalService({"server": {"workers": -1}, "streams": {"s": {"factory": "a:b"}}})
