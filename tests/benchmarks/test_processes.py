"""Figures of processes: of this one, of a child, and of one that is gone."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.processes import (
    cpu_seconds,
    descendants,
    parent_pid,
    processes_with_environment,
    pss_bytes,
    resource_usage,
)


def test_zero_is_this_process() -> None:
    own, same = resource_usage(0), resource_usage(os.getpid())
    assert own is not None
    assert same is not None
    assert own.descriptors == same.descriptors
    assert own.threads >= 1
    assert pss_bytes([0]) > 1 << 20
    assert cpu_seconds([0]) > 0
    assert parent_pid(0) == os.getppid()


def test_a_child_is_found_by_its_environment_and_gone_once_it_has_ended() -> None:
    command = [sys.executable, "-c", "print(1, flush=True); input()"]
    environment = {**os.environ, "A_MARK_OF_THIS_TEST": str(os.getpid())}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"1\n"
        found = list(processes_with_environment("A_MARK_OF_THIS_TEST", str(os.getpid())))
        assert [pid for pid, _ in found] == [child.pid]
        assert "input()" in found[0][1]
        assert parent_pid(child.pid) == os.getpid()
        child.communicate(b"\n", timeout=60)
    assert resource_usage(child.pid) is None
    assert parent_pid(child.pid) is None
    assert list(processes_with_environment("A_MARK_OF_THIS_TEST", str(os.getpid()))) == []


def test_descendants_are_the_children_and_theirs() -> None:
    inner = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", inner], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"1\n"
        (grandchild,) = descendants(child.pid)
        assert parent_pid(grandchild) == child.pid
        assert {child.pid, grandchild} <= set(descendants(os.getpid()))
        child.communicate(b"\n", timeout=60)
    assert descendants(child.pid) == []
