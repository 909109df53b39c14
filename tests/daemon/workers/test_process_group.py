"""A process that leads a group: its members end with it, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from loader_service.daemon.workers.process_group import GroupLeader
from loader_service.wire.process import start_time

DEADLINE_S = 20.0
CHILD = "import subprocess, sys; child = subprocess.Popen(['sleep', '600']); print(child.pid, flush=True); {then}"


@pytest.fixture
def leaders() -> Iterator[list[GroupLeader]]:
    """Leaders that are killed at the end."""
    made: list[GroupLeader] = []
    yield made
    for leader in made:
        leader.kill()
        leader.wait(DEADLINE_S)
        assert leader.stdout is not None
        leader.stdout.close()


def start(leaders: list[GroupLeader], then: str) -> tuple[GroupLeader, int]:
    """A leader with a child that would outlive it, and the child's pid."""
    leaders.append(GroupLeader([sys.executable, "-c", CHILD.format(then=then)], stdout=subprocess.PIPE))
    assert leaders[-1].stdout is not None
    return leaders[-1], int(leaders[-1].stdout.readline())


def has_ended(pid: int) -> bool:
    deadline = time.monotonic() + DEADLINE_S
    while start_time(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    return start_time(pid) is None


def test_what_it_started_ends_when_it_is_killed(leaders: list[GroupLeader]) -> None:
    leader, child = start(leaders, "import time; time.sleep(600)")
    leader.kill()
    assert leader.wait(DEADLINE_S) == -signal.SIGKILL
    assert has_ended(child)


def test_what_it_started_ends_when_it_ends_by_itself(leaders: list[GroupLeader]) -> None:
    leader, child = start(leaders, "sys.exit(3)")
    assert leader.wait(DEADLINE_S) == 3
    assert has_ended(child)


def test_a_look_at_one_that_has_ended_ends_the_rest_too(leaders: list[GroupLeader]) -> None:
    leader, child = start(leaders, "sys.exit(0)")
    deadline = time.monotonic() + DEADLINE_S
    while leader.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert leader.returncode == 0
    assert has_ended(child)


def test_one_that_lives_is_waited_for_no_longer_than_told(leaders: list[GroupLeader]) -> None:
    leader, child = start(leaders, "import time; time.sleep(600)")
    with pytest.raises(subprocess.TimeoutExpired):
        leader.wait(0.01)
    assert leader.poll() is None
    assert start_time(child) is not None


def test_killing_one_that_has_ended_does_nothing(leaders: list[GroupLeader]) -> None:
    leader, _ = start(leaders, "sys.exit(0)")
    leader.wait(DEADLINE_S)
    leader.kill()
    assert leader.returncode == 0
