"""A worker as the daemon sees it: a place, the process in it now, and what connects them.

Owns `WorkerProcess`. Invariant: whatever `launch` opened, `close` closes, and `ended` waits for a second at most.
The process writes its Python stack into a file that has no name, at a signal or when it dies of one
(https://docs.python.org/3/library/faulthandler.html), so that the daemon can read it whatever the process does. Its
standard output and error are a pipe that the daemon reads into its log, so that what a dataset prints never waits for
whoever reads the daemon's own.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, ClassVar

from loader_service.daemon.ops.signals import ENDING, IGNORED, ignored_by_children
from loader_service.daemon.workers.crashes import Crash
from loader_service.daemon.workers.messages import ToWorker
from loader_service.daemon.workers.process_group import GroupLeader
from loader_service.daemon.workers.stack_text import STACK_SIGNAL, shortened
from loader_service.wire.process import open_pidfd

__all__ = ["EXIT_S", "MAX_FAILED_STARTS", "WorkerProcess"]

EXIT_S = 1.0
MAX_FAILED_STARTS = 3
_MAX_STACK_BYTES = 1 << 20
_OUTPUT_BYTES = 1 << 14
_log = logging.getLogger("loader_service.output")


@dataclass(slots=True, eq=False)
class WorkerProcess:
    """One place for a worker and the process in it.

    Attributes:
        stack_fd: the file into which the process writes its stack; stack_from: where the part begins that is new.
        output_fd: the pipe into which it prints.
        ready: it has made its streams; served: it was ready at least once.
        tasks: ids of what was assigned and has not ended, in order.
        later: broadcasts that wait until it reads again.
        built: steps, since the daemon started; deaths: ends of a process, likewise.
        crashes: how its latest processes ended; streak: how many have since the last success.
        failed_starts: how many ended before they were ready, since the last that was; after three nobody takes
            its place.
        hung: why it is killed, once it is killed for hanging.
        leaving: it ends when its tasks have, and nobody takes its place.
    """

    is_process: ClassVar[bool] = True
    number: int
    process: GroupLeader | None = None
    connection: Connection | None = None
    pidfd: int | None = None
    stack_fd: int | None = None
    stack_from: int = 0
    output_fd: int | None = None
    ready: bool = False
    tasks: list[int] = field(default_factory=list)
    later: deque[ToWorker] = field(default_factory=deque)
    built: int = 0
    deaths: int = 0
    streak: int = 0
    failed_starts: int = 0
    served: bool = False
    hung: str = ""
    crashes: deque[Crash] = field(default_factory=lambda: deque(maxlen=MAX_FAILED_STARTS))
    leaving: bool = False

    @property
    def last_death(self) -> str:
        """The end of its last process, in words; empty if none has ended."""
        return self.crashes[-1].how if self.crashes else ""

    @property
    def given_up(self) -> bool:
        return self.failed_starts >= MAX_FAILED_STARTS

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    @property
    def name(self) -> str:
        """Name for logs."""
        return f"worker {self.number} (pid {self.pid})"

    def report(self) -> dict[str, Any]:
        """Facts for `status`, as plain values."""
        kept = "given up" if self.given_up else "ready" if self.ready else "starting"
        return {
            "worker": self.number,
            "pid": self.pid,
            "state": "leaving" if self.leaving else kept,
            "tasks": len(self.tasks),
            "built": self.built,
            "deaths": self.deaths,
            "last_death": self.last_death,
        }

    def launch(self) -> Connection:
        """Start a process in this place, which then waits for its first message. Raises OSError."""
        self.ready, self.hung, self.tasks, self.later = False, "", [], deque()
        self.stack_fd, self.stack_from = _nameless_file(), 0
        ours, theirs = socket.socketpair()
        self.output_fd, printed = os.pipe()
        os.set_blocking(self.output_fd, False)
        fds = (theirs.fileno(), self.stack_fd)
        command = [sys.executable, "-P", "-m", "loader_service.daemon.workers.main", *map(str, fds)]
        # until it has handlers of its own; a stack may be asked for before that
        with ours, theirs, os.fdopen(printed, "wb") as output, ignored_by_children((*ENDING, *IGNORED)):
            self.process = GroupLeader(command, pass_fds=fds, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            self.connection = Connection(ours.detach())
        self.pidfd = open_pidfd(self.process.pid)
        return self.connection

    def close(self) -> None:
        """Close what connects the daemon with the process. Idempotent."""
        self.ready = False
        if self.connection is not None:
            self.connection.close()
        self.read_output()
        for fd in (self.pidfd, self.stack_fd, self.output_fd):
            if fd is not None:
                os.close(fd)
        self.connection = self.pidfd = self.stack_fd = self.output_fd = None

    def read_output(self) -> bool:
        """Log what the process has printed, 16 KiB at a time; false once nothing more can come."""
        if self.output_fd is None:
            return False
        try:
            data = os.read(self.output_fd, _OUTPUT_BYTES)
        except BlockingIOError:
            return True
        text = data.decode(errors="replace").rstrip()
        if text:
            _log.info("%s printed:\n%s", self.name, text, extra={"worker": self.number, "pid": self.pid})
        return bool(data)

    def ask_for_stack(self) -> None:
        """Let the process write its stack, which `stack` reads soon after."""
        if self.stack_fd is not None and self.process is not None:
            self.stack_from = os.fstat(self.stack_fd).st_size
            self.process.send_signal(STACK_SIGNAL)

    def forget_stack(self) -> None:
        """Forget what it has written so far: that is of no later death."""
        if self.stack_fd is not None:
            self.stack_from = os.fstat(self.stack_fd).st_size

    def stack(self) -> str:
        """Return what the process has written since it was asked, or as it died; empty where it has not."""
        if self.stack_fd is None:
            return ""
        data = os.pread(self.stack_fd, _MAX_STACK_BYTES, self.stack_from)
        return shortened(data.decode(errors="replace"))

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def ended(self) -> str:
        """Wait for the process, which has ended or hung up: how it ended, in words."""
        assert self.process is not None  # launched together with its connection
        try:
            how = _told(self.process.wait(EXIT_S))
        except subprocess.TimeoutExpired:  # it lives on, of no more use
            self.process.kill()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(EXIT_S)
            how = "closed its connection"
        return f"{self.name} {self.hung or how}"


def _nameless_file() -> int:
    """A descriptor of a new file that goes with its last descriptor. Raises OSError."""
    if sys.platform == "linux":
        return os.memfd_create("stack")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _told(code: int) -> str:
    """Say how a process ended, by its exit code."""
    if code >= 0:
        return f"ended with exit code {code}"
    known = -code in {number.value for number in signal.Signals}  # not all real-time signals have a name
    return f"was killed by {signal.Signals(-code).name if known else f'signal {-code}'}"
