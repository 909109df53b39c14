"""Format, lint and types, by the tools themselves and their configuration in the project's file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def check(*command: str) -> None:
    """Run a tool from the root of the repository; where it fails, its output is the message."""
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.fail(f"{' '.join(command)}\n{done.stdout}{done.stderr}", pytrace=False)


def test_files_are_formatted() -> None:
    check("ruff", "format", "--check", "--diff", ".")


def test_the_linter_has_nothing_to_say() -> None:
    check("ruff", "check", ".")


@pytest.mark.timeout(600)
def test_types_are_strict_everywhere() -> None:
    check("mypy")
