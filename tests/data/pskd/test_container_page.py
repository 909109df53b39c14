"""The examples of the page on the container run, in its order, and print what it says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/container.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|console|toml|text)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
FILES = {"toml": "loader.toml", "text": "poem.txt"}


def run(command: list[str], directory: Path) -> str:
    """Run a command as its user would; its standard output."""
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def check_console(block: str, directory: Path) -> None:
    for part in block.removeprefix("$ ").split("\n$ "):
        command, _, expected = part.partition("\n")
        words = shlex.split(command)
        assert words[0] == "loader-service"
        assert run([sys.executable, "-m", "loader_service", *words[1:]], directory).strip() == expected.strip()


def test_the_examples_run_one_after_the_other(tmp_path: Path) -> None:
    kinds = [kind for kind, _ in BLOCKS]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {"python": 4, "console": 3, "toml": 1, "text": 1}
    script = ""
    for kind, block in BLOCKS:
        if kind in FILES:
            (tmp_path / FILES[kind]).write_text(block, encoding="utf-8")
        elif kind == "console":
            check_console(block, tmp_path)
        else:
            script += block  # those before it stay, as in one session
            run([sys.executable, "-c", script], tmp_path)


def test_every_error_code_is_explained() -> None:
    assert re.findall(r"^\| (E\d+) \|", PAGE, re.MULTILINE) == ["E9001", "E9002", "E9003", "E9004", "E9005"]
