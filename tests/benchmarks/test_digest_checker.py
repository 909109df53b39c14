"""The checker of a soak: it finds every wrong digest and every error, and reads each line once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.soak.digest_checker import DigestChecker
from benchmarks.soak.event_log import EventLog, ShardStep
from loader_service.data import synthetic_lines

STREAM = synthetic_lines(3, 4, 20)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    log = EventLog(tmp_path / "consumer.log")
    yield log
    log.close()


def _checked(tmp_path: Path, *, shm_filled: bool = False) -> DigestChecker:
    checker = DigestChecker({"s": STREAM}, shm_filled=shm_filled)
    checker.follow(tmp_path / "consumer.log")
    checker.read(0.0)
    checker.finish(tmp_path / "consumer.log")
    checker.settle()
    return checker


def test_right_batches_and_views_are_counted(tmp_path: Path, log: EventLog) -> None:
    log.batch(ShardStep("s", 3, 0, 1), STREAM.build(3).digest())
    log.batch(ShardStep("s", 3, 1, 2), STREAM.build(3, (1, 2)).digest())
    log.view(ShardStep("s", 3, 0, 1), STREAM.build(3).digest())
    found = _checked(tmp_path)
    assert (found.batches, found.views, found.wrong, found.errors) == (2, 1, 0, 0)
    assert not (tmp_path / "consumer.log").exists()


def test_a_wrong_digest_is_found_in_batches_and_views(tmp_path: Path, log: EventLog) -> None:
    log.batch(ShardStep("s", 3, 0, 1), STREAM.build(4).digest())
    log.view(ShardStep("s", 3, 0, 1), "0" * 64)
    found = _checked(tmp_path)
    assert (found.wrong, len(found.texts)) == (2, 2)
    assert found.texts[1].startswith("WRONG consumer, a view that was kept: (stream step rank world) s 3 0 1: 000")


def test_errors_keep_their_text_and_the_actions_before_them(tmp_path: Path, log: EventLog) -> None:
    log.actions.append("read 3 from 7")
    log.error(ValueError("two\nlines"))
    log.error("no exception")
    found = _checked(tmp_path)
    assert found.errors == 2
    assert "read 3 from 7" in found.texts[0]
    assert "ValueError: two\nlines" in found.texts[0]


def test_notes_are_counted_by_their_kind(tmp_path: Path, log: EventLog) -> None:
    log.note("evicted")
    log.note("refused MemoryLimitError: 12 bytes")
    log.note("refused MemoryLimitError: 99 bytes")
    assert _checked(tmp_path).notes == {"evicted": 1, "refused MemoryLimitError": 2}


@pytest.mark.parametrize("shm_filled", [False, True])
def test_a_full_shm_is_an_error_only_where_nobody_fills_it(tmp_path: Path, log: EventLog, shm_filled: bool) -> None:
    log.note("refused SharedMemoryError: full")
    assert _checked(tmp_path, shm_filled=shm_filled).errors == (0 if shm_filled else 1)


def test_half_a_line_waits_for_its_rest(tmp_path: Path) -> None:
    path = tmp_path / "consumer.log"
    path.write_text("note evi")
    checker = DigestChecker({}, shm_filled=False)
    checker.follow(path)
    checker.read(0.0)
    with path.open("a") as file:
        file.write("cted\n")
    checker.read(0.0)
    checker.settle()
    assert checker.notes == {"evicted": 1}


def test_a_line_without_a_meaning_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "consumer.log").write_text("nonsense\n")
    assert _checked(tmp_path).errors == 1


def test_waits_are_kept_longest_first(tmp_path: Path) -> None:
    (tmp_path / "consumer.log").write_text("".join(f"wait {s} until 9 after []\n" for s in (1.5, 3.25, 0.75)))
    assert [seconds for seconds, _ in _checked(tmp_path).waits] == [3.25, 1.5, 0.75]
