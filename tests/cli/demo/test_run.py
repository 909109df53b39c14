"""The demo: real text through a daemon into two processes, digests compared, exit code told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from loader_service.cli.demo import run
from loader_service.cli.demo.run import DemoOptions, run_demo
from tests.e2e.harness import ROOT


def _demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "loader_service", "demo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_the_demo_on_a_file_agrees_and_draws_a_batch(tmp_path: Path) -> None:
    picture = tmp_path / "grid.png"
    source = str(ROOT / "loader_service" / "contract" / "rng.py")
    done = _demo("--steps", "25", "--batch-size", "5", "--save-grid", str(picture), source)
    assert (done.returncode, done.stderr) == (0, "")
    assert "each of the 25 steps was built once for 2 consumers" in done.stdout
    assert "all three digests agree" in done.stdout
    digests = {line.split()[-1] for line in done.stdout.splitlines() if line.startswith(("consumer", "in-process"))}
    assert len({digest for digest in digests if len(digest) == 64}) == 1
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_demo_says_so_where_digests_differ(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "digest_batches", lambda batches, progress: "0" * 64)
    source = str(ROOT / "loader_service" / "contract" / "rng.py")
    assert run_demo(DemoOptions(files=(source,), steps=3, batch_size=5)) == 1
    assert "THE DIGESTS DIFFER" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [("--steps", "0"), ("/no/such/file.txt",), ("--batch-size", "100000000")])
def test_a_mistake_is_one_message(arguments: tuple[str, ...]) -> None:
    done = _demo(*arguments)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert done.stderr != ""
