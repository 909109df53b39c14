"""The log: each line structured, and whatever becomes of its reader or its disk, nobody who logs waits or fails."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loader_service.daemon.ops import logs
from loader_service.daemon.ops.logs import (
    FIELDS,
    MAX_A_SECOND,
    JsonFormatter,
    LogHandler,
    TextFormatter,
    configure,
    wants_json,
)
from loader_service.errors import ConfigurationError


class Log:
    """A logger of its own, whose lines go to a file."""

    def __init__(self, path: Path, formatter: logging.Formatter | None = None) -> None:
        self.path, self.now = path, 0.0
        self.handler = LogHandler(
            os.open(path, os.O_WRONLY | os.O_CREAT), formatter or JsonFormatter(), lambda: self.now
        )
        self.logger = logging.Logger("loader_service.under_test", logging.DEBUG)
        self.logger.addHandler(self.handler)

    def text(self) -> str:
        self.handler.close()
        return self.path.read_text()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text().splitlines()]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path / "log")
    yield made
    made.handler.close()


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_line_is_an_object_with_what_it_is_about(log: Log) -> None:
    log.logger.warning("step %d is lost", 7, extra={"stream": "s", "step": 7, "worker": 0, "consumer": 3, "pid": 42})
    log.logger.info("ending")
    first, second = log.lines()
    assert list(first) == ["time", "level", "logger", "message", *FIELDS]
    assert first["message"] == "step 7 is lost"
    assert [first[name] for name in FIELDS] == ["s", 7, 0, 3, 42]
    assert (second["level"], second["logger"], second["message"]) == ("info", "loader_service.under_test", "ending")
    assert list(second) == ["time", "level", "logger", "message"]
    assert second["time"].endswith("+00:00")


@pytest.mark.parametrize("text", ["two\nlines", "ünïcode ✓", "\udcff", "\x1b[31m", '"', "x" * 100_000])
def test_whatever_a_message_holds_is_one_line_of_json(log: Log, text: str) -> None:
    log.logger.error("%s", text, extra={"stream": text[:100]})
    (line,) = log.lines()
    assert line["message"] == text[:16_384]
    assert line["stream"] == text[:100]


def test_an_error_has_its_traceback_within_its_line(log: Log) -> None:
    try:
        raise ValueError("wrong")
    except ValueError:
        log.logger.exception("it failed")
    (line,) = log.lines()
    assert line["traceback"].startswith("Traceback")
    assert line["traceback"].endswith("ValueError: wrong")


def test_a_text_line_cannot_pass_for_two(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", TextFormatter())
    log.logger.error("one\n2026-01-01 00:00:00,000 ERROR loader_service: forged")
    first, second = log.text().splitlines()
    assert first.endswith(" ERROR loader_service.under_test: one")
    assert second.startswith("    2026")


def test_of_one_kind_so_many_are_written_a_second_and_the_next_says_how_many_were_left_out(log: Log) -> None:
    for number in range(1000):
        log.logger.warning("a message was refused: %s", number)
        log.logger.error("another kind" if number % 500 == 0 else "a message was refused: %s", number)
    log.now = 1.0
    log.logger.warning("a message was refused: %s", "the last")
    log.logger.warning("a message was refused: %s", "one more")
    lines = [line for line in log.lines() if line["level"] == "warning" and line["message"].startswith("a message")]
    assert [line["message"].split()[-1] for line in lines[:MAX_A_SECOND]] == [str(n) for n in range(MAX_A_SECOND)]
    assert [line.get("left_out") for line in lines[MAX_A_SECOND:]] == [1000 - MAX_A_SECOND, None]


def test_kinds_without_end_are_limited_together(log: Log) -> None:
    for number in range(5000):
        log.logger.warning(f"kind {number}")  # a text that is made before it is logged
    assert len(log.lines()) <= 1000 + MAX_A_SECOND + 1


def test_values_that_do_not_fit_are_no_error_of_who_logs(log: Log, capfd: pytest.CaptureFixture[str]) -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    log.logger.warning("%d", "text")
    log.logger.warning("%s", Broken())
    log.logger.warning("well")
    assert [line["message"].split(":")[0] for line in log.lines()] == ["well", "2 log lines were dropped"]
    assert capfd.readouterr().err == ""


def test_a_full_disk_drops_lines_and_ends_nothing() -> None:
    handler = LogHandler(os.open("/dev/full", os.O_WRONLY), JsonFormatter())
    logger = logging.Logger("loader_service.under_test")
    logger.addHandler(handler)
    for number in range(5):
        logger.error("kind %d", number)
    eventually(lambda: handler.dropped == 5)
    handler.close()


def test_a_reader_that_does_not_read_makes_nobody_wait_and_hears_what_it_missed(tmp_path: Path) -> None:
    readable, writeable = os.pipe()
    log = Log(tmp_path / "unused")
    log.handler.close()
    handler = LogHandler(writeable, JsonFormatter(), lambda: log.now)
    logger = logging.Logger("loader_service.under_test")
    logger.addHandler(handler)
    began = time.monotonic()
    for second in range(1000):
        log.now = float(second)
        for _ in range(MAX_A_SECOND):
            logger.error("%s", "x" * 1000)
    assert time.monotonic() - began < 30
    assert handler.dropped > 10_000
    with os.fdopen(readable, "rb") as reader:
        lines = [reader.readline()]
        while b"were dropped" not in lines[-1]:
            lines.append(reader.readline())
        closing = threading.Thread(target=handler.close)
        closing.start()
        while reader.readline():
            pass
        closing.join()
    assert len(lines) + int(json.loads(lines[-1])["message"].split()[0]) - 1 <= 20_000
    assert all(json.loads(line) for line in lines)


def test_a_pipe_that_nobody_reads_does_not_hold_up_the_end() -> None:
    readable, writeable = os.pipe()
    handler = LogHandler(writeable, logging.Formatter())
    handler.handle(logging.makeLogRecord({"name": "x", "msg": "x" * 100_000}))
    began = time.monotonic()
    handler.close()
    assert time.monotonic() - began < 10
    os.close(readable)  # by that the thread's write ends


def test_without_a_descriptor_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    assert logs._standard_error() is None
    handler = LogHandler(None, JsonFormatter())
    handler.handle(logging.makeLogRecord({"name": "x", "msg": "x"}))
    handler.close()
    assert handler.dropped == 0


def test_configuring_replaces_what_logged_before() -> None:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        handler = configure("warning", as_json=True)
        assert root.handlers == [handler]
        assert root.level == logging.WARNING
        handler.close()
    finally:
        root.handlers[:] = before
        root.setLevel(level)


@pytest.mark.parametrize(("value", "is_json"), [("", False), ("text", False), ("json", True)])
def test_the_environment_may_ask_for_json(value: str, is_json: bool) -> None:
    assert wants_json(value) is is_json


@pytest.mark.parametrize("value", ["JSON", "yes", "1"])
def test_the_environment_may_not_ask_for_anything_else(value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"LOADER_SERVICE_LOG is {value!r}; it must be 'text' or 'json'"):
        wants_json(value)


def test_a_thread_that_cannot_be_had_is_asked_for_with_the_next_line(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none_left)
        log.logger.warning("first")
    log.logger.warning("second")
    assert [line["message"] for line in log.lines()] == ["first", "second"]
