"""The page of the contract names code and tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from pkgutil import resolve_name

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/contract.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (.+) \| `([\w.]+)` \| `([\w/]+\.py)::(\w+)` \|$", PAGE, re.MULTILINE)


@cache
def functions(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_row_of_the_page_is_read() -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.endswith("| code | test |")]
    assert len(ROWS) == len(lines) > 60


@pytest.mark.parametrize(("rule", "code", "file", "test"), ROWS, ids=[rule for rule, *_ in ROWS])
def test_the_code_and_the_test_of_a_rule_exist(rule: str, code: str, file: str, test: str) -> None:
    assert resolve_name(f"loader_service.{code}") is not None
    assert test in functions(ROOT / "tests" / file)
