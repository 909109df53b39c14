"""Processes that datasets leave behind: adopted, reaped and ended by a daemon that is a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loader_service.daemon.workers import orphans

ROOT = Path(__file__).resolve().parents[3]
LEAVE = "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid, flush=True)"
DAEMON = f"""
import os, subprocess, sys
from loader_service.daemon.workers.orphans import adopt, end_orphans, reap_orphans
adopt()
child = subprocess.Popen([sys.executable, "-c", {LEAVE!r}], stdout=subprocess.PIPE)
left = int(child.stdout.readline())
child.wait()
own = subprocess.Popen(["sleep", "600"])
end_orphans([own.pid])
print(os.path.exists(f"/proc/{{left}}"), own.poll())
own.kill()
own.wait()
gone = subprocess.Popen(["true"])
while open(f"/proc/{{gone.pid}}/stat").read().rpartition(")")[2].split()[0] != "Z":
    pass
reap_orphans([])
print(os.path.exists(f"/proc/{{gone.pid}}"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers")
def test_what_a_dead_child_left_is_ended_and_what_is_the_daemons_own_is_not() -> None:
    done = subprocess.run([sys.executable, "-c", DAEMON], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.stdout.split(), done.stderr) == (["False", "None", "False"], "")


def test_in_a_process_that_is_no_daemon_nothing_is_ended() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        orphans.end_orphans([])
        orphans.reap_orphans([])
        assert child.poll() is None
        assert os.path.exists(f"/proc/{child.pid}") or sys.platform != "linux"
        child.kill()
