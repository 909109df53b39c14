"""A reading process of the demo: what it digests, and what it says."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loader_service import Loader, LocalService
from loader_service.cli.demo.reader import STREAM, digest_batches, main
from loader_service.contract.batch import Batch
from loader_service.data import synthetic_lines

CONFIG = {
    "streams": {STREAM: {"factory": "loader_service.data:synthetic_lines", "args": {"count": 20, "batch_size": 4}}}
}


def batches(count: int) -> Iterator[Batch]:
    loader = Loader(synthetic_lines(count=20, batch_size=4))
    return (loader.get(step) for step in range(count))


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_digest_is_of_all_bytes_in_order_and_each_batch_is_counted() -> None:
    expected, counted = hashlib.sha256(), list[int]()
    for batch in batches(3):
        batch.update_digest(expected)
    assert digest_batches(batches(3), counted.append) == expected.hexdigest()
    assert counted == [1, 2, 3]


def test_it_reads_when_it_is_told_to_and_says_what_it_saw(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with LocalService(CONFIG) as service:
        monkeypatch.setattr(sys, "argv", ["reader", service.endpoint, "5"])
        monkeypatch.setattr(sys, "stdin", io.StringIO("go\n"))
        main()
    said = lines(capsys)
    assert said[0] == {"opened": True}
    assert {"step": 5} in said
    assert (said[-1]["digest"], said[-1]["batches"]) == (digest_batches(batches(5), lambda number: None), 5)


def test_an_error_is_said_as_its_record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with LocalService(CONFIG | {"streams": {"other": CONFIG["streams"][STREAM]}}) as service:
        monkeypatch.setattr(sys, "argv", ["reader", service.endpoint, "5"])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 1
    (said,) = lines(capsys)
    assert "other" in str(said["error"])
