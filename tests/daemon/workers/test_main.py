"""The start of a worker process: what signals do to it, and what a process that it forks inherits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CODE = """
import json, os, signal, socket, sys
from multiprocessing.connection import Connection
from loader_service.daemon.workers import main as worker
names = ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCHLD"]
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
def seen():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    caught, ignored = (int(status[key], 16) for key in ("SigCgt", "SigIgn"))
    kind = lambda number: "caught" if caught >> (number - 1) & 1 else "ignored" if ignored >> (number - 1) & 1 else ""
    return {name: kind(getattr(signal, name)) for name in names} | {"blocked": int(status["SigBlk"], 16)}
def work(connection):
    print(json.dumps(seen()), flush=True)
    pid = os.fork()
    if not pid:
        print(json.dumps(seen()), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
worker.run_worker = work
ours, theirs = socket.socketpair()
sys.argv[1:] = [str(theirs.detach()), str(os.memfd_create("stack"))]
worker.main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_signal_ends_it_and_a_forked_process_has_the_defaults() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, cwd=ROOT, timeout=60)
    worker, forked = [json.loads(line) for line in done.stdout.splitlines()]
    handled = dict.fromkeys(["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM"], "caught")
    assert worker == {**handled, "SIGCHLD": "", "blocked": 0}
    assert forked == {**dict.fromkeys(handled, ""), "SIGINT": "caught", "SIGCHLD": "", "blocked": 0}
