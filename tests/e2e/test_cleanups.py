"""A clean-up removes the names of a running daemon's segments: it is noticed, and no batch is lost or wrong."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import loader_client
from tests.e2e.harness import digests, eventually, python, service, stream_status
from tests.e2e.serving import endpoint_of, segments, serving
from tests.e2e.streams import shuffled_slow, small


def clean_up(pid: int) -> list[str]:
    """Do what a script does that removes /dev/shm/lsv-*, for one daemon."""
    found = segments(pid)
    for path in found:
        path.unlink(missing_ok=True)
    return [path.name for path in found]


def test_who_reads_reads_on_and_who_comes_reads_too() -> None:
    with service("small") as daemon, loader_client.connect(daemon.endpoint) as client:
        assert daemon.pid is not None
        with client.open("s", hold=2) as consumer:
            kept = consumer.get(0)
            eventually(lambda: stream_status(client)["built"] == 4, "no build is under way")
            removed = clean_up(daemon.pid)
            assert len(removed) == 4
            before = kept.digest()
            assert [consumer.get(step).digest() for step in range(1, 4)] == digests(small(), 1, 4)
            assert kept.digest() == before
            with client.open("s", 50, 60) as other:
                assert [batch.digest() for batch in other] == digests(small(), 50, 60)
            kept.release()
            assert [consumer.get(step).digest() for step in range(4, 12)] == digests(small(), 4, 12)
        eventually(lambda: not stream_status(client)["lanes"], "the lanes end")
        assert not {path.name for path in segments(daemon.pid)} & set(removed)


def test_a_new_process_can_map_what_it_is_given() -> None:
    code = (
        "import sys, loader_client\n"
        "with loader_client.connect(sys.argv[1]) as client, client.open('s', int(sys.argv[2]), 9) as consumer:\n"
        "    print(*(batch.digest() for batch in consumer))"
    )
    with service("small") as daemon, loader_client.connect(daemon.endpoint) as client:
        assert daemon.pid is not None
        with client.open("s", patience_s=0.05) as consumer:
            consumer.seek(0)  # asks for all steps, and takes none: its lane stands at step 0, all four steps ready
            eventually(lambda: _ready(client) == 4, "all is built")
            clean_up(daemon.pid)
            for start in (0, 3):
                with python(code, daemon.endpoint, str(start)) as process:
                    out, err = process.communicate(timeout=60)
                assert (out.split(), err) == (digests(small(), start, 9), "")


def _ready(client: loader_client.Client) -> int:
    return sum(slot["state"] == "ready" for lane in stream_status(client)["lanes"] for slot in lane["slots"])


@pytest.mark.parametrize("seed", [1, 2])
def test_clean_ups_at_random_moments_lose_no_step(seed: int) -> None:
    """Also while workers build, and while they have been told of segments that they have not mapped yet."""
    chance = random.Random(seed)
    with service("shuffled_slow", workers=3, prefetch=4) as daemon, loader_client.connect(daemon.endpoint) as client:
        assert daemon.pid is not None
        with client.open("s", 0, 60) as one, client.open("s", 0, 60) as two:
            expected = digests(shuffled_slow(), 0, 60)
            for step in range(60):
                if chance.random() < 0.3:
                    time.sleep(chance.random() * 0.02)  # the moment is what is tried
                    clean_up(daemon.pid)
                assert next(one).digest() == expected[step]
                assert next(two).digest() == expected[step]
        assert stream_status(client)["failed"] == 0


@pytest.mark.parametrize("what", ["file", "pipe", "directory", "link"])
def test_whatever_takes_the_name_of_a_segment_no_step_is_lost(what: str) -> None:
    """Also what has been sent ahead: a pipe would block who opens it, a directory cannot be unlinked."""
    taken: set[Path] = set()

    def take_names(pid: int) -> None:
        for path in set(segments(pid)) - taken:
            aside = path.with_name(f"taken-{path.name}")
            _make[what](aside)
            path.unlink()
            aside.rename(path)
            taken.add(path)

    try:
        with service("shuffled_slow", prefetch=4) as daemon, loader_client.connect(daemon.endpoint) as client:
            assert daemon.pid is not None
            with client.open("s", 0, 60) as consumer:
                for step, expected in enumerate(digests(shuffled_slow(), 0, 60)):
                    if step % 6 == 0:
                        take_names(daemon.pid)
                    assert consumer.get(step, timeout_s=60).digest() == expected
            assert client.daemon_pid == daemon.pid
    finally:
        for path in taken:
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


_make: dict[str, Callable[[Path], None]] = {
    "file": lambda path: path.touch(),
    "pipe": os.mkfifo,
    "directory": lambda path: path.mkdir(),
    "link": lambda path: path.symlink_to("/etc/passwd"),
}


def test_it_is_told_in_the_log_and_leaves_no_noise(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log, serving(tmp_path, stderr=log) as daemon:
        with loader_client.connect(endpoint_of(tmp_path)) as client, client.open("s", 0, 20) as consumer:
            next(consumer)
            removed = clean_up(daemon.pid)
            assert [batch.digest() for batch in consumer] == digests(small(), 1, 20)
        daemon.terminate()
        assert daemon.wait(20) == 0
        assert segments(daemon.pid) == []
    text = (tmp_path / "log").read_text()
    assert any(f"segment {name} was removed from /dev/shm by somebody else" in text for name in removed)
    assert "Traceback" not in text
    assert "resource_tracker" not in text
