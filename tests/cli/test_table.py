"""Tables that `status` prints for people."""

from __future__ import annotations

from typing import Any

import pytest

from loader_service.cli.table import print_status


def status(**stream: Any) -> dict[str, Any]:
    """Status of a daemon with one stream and two workers."""
    counts = {"built": 7, "failed": 0, "delivered": 9, "verify": 0, "verified": 0, "impure": 0, "unverified": 0}
    one = {"name": "train", "steps_per_epoch": 10, "prefetch": 4, "segment_bytes": 4096, "lanes": [], **counts}
    worker = {"pid": 17, "state": "ready", "tasks": 1, "built": 3, "deaths": 0, "last_death": ""}
    return {
        "pid": 16,
        "endpoint": "ipc:///run/x.sock",
        "memory_bytes": 2**20,
        "memory_limit_bytes": 2**30,
        "streams": [one | stream],
        "workers": [worker | {"worker": 0}, worker | {"worker": 1, "deaths": 1, "last_death": "was killed [x] " * 20}],
        "consumers": [],
    }


def test_verifications_and_last_deaths_are_told_each_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_status(status(verify=3, verified=5, impure=1, unverified=2))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "daemon pid 16 at ipc:///run/x.sock, memory 1 MiB of 1 GiB"
    death, verified = lines[-2:]
    assert death.rstrip() == f"last death of worker 1: {'was killed [x] ' * 20}".rstrip()
    assert verified == "stream train: 1 in 3 steps built twice: 5 compared, 1 differed, 2 could not be compared"


def test_what_is_not_verified_says_nothing_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_status(status())
    assert "twice" not in capsys.readouterr().out
    print_status(status(verify=1))
    assert "stream train: every step built twice: 0 compared, 0 differed" in capsys.readouterr().out
