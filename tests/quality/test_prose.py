"""Docstrings that a reader understands at first sight: the first line is an imperative or a noun phrase."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("loader_service", "client", "benchmarks", "tools")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
RIDDLE = re.compile(r"(What|Who|Whom|Whose|Whoever|Whether|Where|Which|How|Of)\b")
FRAGMENT = re.compile(r"(As|At|After|Before|For|From|If|In|It|Its|So|That|Their|These|This|Those|Until|When|While)\b")
Named = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def first_lines(path: Path, *, public: bool) -> Iterator[str]:
    """The place and the first line of each docstring of a file; public: of names without an underscore."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, Named) or (public and getattr(node, "name", "").startswith("_")):
            continue
        if text := ast.get_docstring(node):
            yield f"{getattr(node, 'lineno', 1)}: {text.partition(chr(10))[0]}"


def beginning_with(words: re.Pattern[str], path: Path, *, public: bool = False) -> list[str]:
    return [line for line in first_lines(path, public=public) if words.match(line.partition(": ")[2])]


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_docstring_begins_as_a_riddle(path: Path) -> None:
    assert beginning_with(RIDDLE, path) == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_public_docstring_begins_with_a_verb_or_a_noun(path: Path) -> None:
    assert beginning_with(FRAGMENT, path, public=True) == []
