"""A daemon of one's own: for tests, notebooks and embedding.

Owns `LocalService`. Invariant: the daemon is a process of its own and never outlives the one that started it. Fails
at `start` with whatever keeps the daemon from starting.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from loader_service.daemon.config.load import Config
from loader_service.daemon.workers.factory import is_loading
from loader_service.errors import ConfigurationError, WorkerStartError, from_record
from loader_service.wire.endpoint import make_private_directory, runtime_directory

__all__ = ["LocalService"]

_STOP_TIMEOUT_S = 10.0


class LocalService:
    """A context manager that runs a daemon and gives its `endpoint`.

    config: a Config, the path of a TOML file, or a mapping shaped like one, whose factories may be functions of
    importable modules. Without an endpoint of its own it listens in a private directory that goes with it. Its
    workers import from this process's sys.path.

        with LocalService({"streams": {"train": {"factory": "mydata:train"}}}) as service:
            client = loader_client.connect(service.endpoint)
    """

    def __init__(self, config: Config | str | Path | Mapping[str, Any]) -> None:
        self._config = Config.load(config) if isinstance(config, str | Path) else Config.of(config)
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self.endpoint = self._config.server.endpoint

    def __repr__(self) -> str:
        state = "not started" if self.pid is None else f"pid {self.pid} at {self.endpoint}"
        return f"LocalService({', '.join(self._config.streams)}; {state})"

    @property
    def pid(self) -> int | None:
        """The daemon's process, while it is started."""
        return self._process.pid if self._process else None

    def start(self) -> Self:
        """Start the daemon and wait until it serves. Raises ConfigurationError, FactoryError, SharedMemoryError, …"""
        if is_loading():
            raise ConfigurationError(
                "a script that is imported for its factory starts a daemon of its own, whose workers would import it "
                'again, without end; put what the script does below `if __name__ == "__main__":`'
            )
        try:
            self._spawn(self._complete_config())
            self._await_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> int | None:
        """End the daemon; its exit code, or None where it was not started. Idempotent."""
        process, self._process = self._process, None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        code = None
        if process is not None:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(_STOP_TIMEOUT_S)
            process.kill()
            process.wait()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
        return code

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __del__(self) -> None:
        if getattr(self, "_process", None) is not None:
            warnings.warn(f"{self!r} was not stopped", ResourceWarning, stacklevel=2, source=self)
            self.stop()

    def _complete_config(self) -> Config:
        """The configuration with an endpoint and with this process's import paths."""
        server = self._config.server
        paths = [absolute for path in [*server.import_paths, *sys.path] if (absolute := _absolute(path))]
        if not server.endpoint:
            parent = runtime_directory("local-XXXXXXXX/daemon.sock")
            make_private_directory(parent)
            self._directory = Path(tempfile.mkdtemp(prefix="local-", dir=parent))
            self.endpoint = f"ipc://{self._directory / 'daemon.sock'}"
        server = dataclasses.replace(server, endpoint=self.endpoint, import_paths=paths)
        return dataclasses.replace(self._config, server=server)

    def _spawn(self, config: Config) -> None:
        try:
            directory = None if self._directory is None else str(self._directory)
            line = json.dumps({"config": config.to_mapping(), "directory": directory}).encode() + b"\n"
        except TypeError as error:
            raise ConfigurationError(f"`args` hold what a file could not hold: {error}; pass plain values") from None
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "loader_service.daemon.server.embedded", str(theirs.fileno())]
        with theirs:
            self._connection = ours
            try:
                self._process = subprocess.Popen(
                    command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, process_group=0
                )
            except OSError as error:
                raise WorkerStartError(
                    f"no process can be started for the daemon: {error}; loader_service.Loader builds the same batches "
                    "in this process"
                ) from error
        ours.sendall(line)

    def _await_ready(self) -> None:
        assert self._connection is not None  # just made
        with self._connection.makefile("rb") as lines:
            line = lines.readline()
        said = json.loads(line) if line.strip() else {}
        if "error" in said:
            raise from_record(said["error"])
        if "endpoint" not in said:
            raise WorkerStartError("the daemon ended before it was ready; what it printed says why")


def _absolute(path: str) -> str:
    """A path as a process elsewhere finds it; empty for a relative one where the current directory is gone."""
    try:
        return os.path.abspath(path)
    except OSError:
        return ""
