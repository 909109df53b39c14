"""The identity of processes: start times that tell pids apart, and descriptors that tell an end at once."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from loader_service.wire.process import memory_image, open_pidfd, pid_namespace, start_time

SLEEPER = "import sys; print('up', flush=True); sys.stdin.read()"
RENAMED = "import sys; open('/proc/self/comm', 'wb').write(b'\\xff) R 1 (\\xc3'); " + SLEEPER


PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}


def started(code: str) -> subprocess.Popen[bytes]:
    """A process that has run `code` up to its print; it ends with its standard input."""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


def ended(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = started(SLEEPER)
    yield process
    ended(process)


def test_a_start_time_stays_the_same(child: subprocess.Popen[bytes]) -> None:
    first = start_time(child.pid)
    assert first is not None
    assert first > 0
    assert start_time(child.pid) == first


def test_who_started_later_has_the_later_time(child: subprocess.Popen[bytes]) -> None:
    assert (start_time(os.getpid()) or 0) < (start_time(child.pid) or 0)


def test_a_name_in_no_encoding_does_not_hide_the_start_time() -> None:
    """Linux cuts names at 15 bytes, within a character if need be, and a name may hold parentheses and blanks."""
    process = started(RENAMED)
    try:
        assert (start_time(os.getpid()) or 0) < (start_time(process.pid) or 0)
    finally:
        ended(process)


@pytest.mark.parametrize("pid", [-1, 2**22 + 1, 2**31, 2**63, 2**100])
def test_no_process_has_no_start_time_and_no_descriptor(pid: int) -> None:
    assert start_time(pid) is None
    assert open_pidfd(pid) is None


def test_pid_zero_has_no_descriptor() -> None:
    assert open_pidfd(0) is None


def test_a_process_that_is_gone_has_no_start_time_and_no_descriptor() -> None:
    process = started(SLEEPER)
    ended(process)
    assert start_time(process.pid) is None
    assert open_pidfd(process.pid) is None


def test_a_process_that_has_ended_is_gone_also_while_its_parent_does_not_wait(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_time(child.pid) is None


def test_a_pidfd_turns_readable_when_the_process_ends(child: subprocess.Popen[bytes]) -> None:
    pidfd = open_pidfd(child.pid)
    assert pidfd is not None
    try:
        assert select.select([pidfd], [], [], 0)[0] == []
        child.kill()
        assert select.select([pidfd], [], [], 10)[0] == [pidfd]
    finally:
        os.close(pidfd)


def test_children_share_the_pid_namespace() -> None:
    code = "from loader_service.wire.process import pid_namespace; print(pid_namespace())"
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(told.stdout) == pid_namespace() > 0


def test_where_proc_is_missing_the_namespace_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> os.stat_result:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "stat", fail)
    namespace = pid_namespace()
    monkeypatch.undo()
    assert namespace == 0


def test_the_memory_image_of_a_process_changes_with_its_program_alone(child: subprocess.Popen[bytes]) -> None:
    before = memory_image(child.pid)
    assert before != ()
    assert memory_image(child.pid) == before
    assert memory_image(os.getpid()) != before
    again = f"import os, sys; os.execv(sys.executable, [sys.executable, '-c', {SLEEPER!r}])"
    process = subprocess.Popen([sys.executable, "-c", f"print('up', flush=True); input(); {again}"], **PIPES)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    first = memory_image(process.pid)
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"up\n"
    assert memory_image(process.pid) not in ((), first)
    ended(process)


def test_no_process_has_no_memory_image() -> None:
    assert memory_image(2**31 - 1) == ()
