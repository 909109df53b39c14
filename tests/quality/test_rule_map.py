"""The map of the rules is whole: every rule of the specification, with code and tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from pkgutil import resolve_name

import pytest

from loader_service.contract.fingerprint import CONTRACT_VERSION
from loader_service.data.pskd import MAGIC, VERSION, VERSION_ENCODED
from loader_service.wire import protocol, segment

ROOT = Path(__file__).resolve().parents[2]
MAP = (ROOT / "docs/contract.md").read_text(encoding="utf-8")
SPECIFICATION = (ROOT / "docs/specification.md").read_text(encoding="utf-8")
RULES = [int(number) for number in re.findall(r"^\*\*R(\d+)\.\*\* ", SPECIFICATION, re.MULTILINE)]
ROWS = re.findall(r"^\| (.+) \| `([\w.]+)` \| `([\w/]+\.py)::(\w+)` \|$", MAP, re.MULTILINE)
CITED = re.compile(r"\bR(\d+)\b")


@cache
def functions(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def resolved(code: str) -> object:
    return resolve_name(code if code.startswith(("loader_client.", "tests.")) else f"loader_service.{code}")


def sources() -> list[Path]:
    folders = ("loader_service", "client", "tests", "benchmarks", "docs")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md")]
    return [path for path in found if "__pycache__" not in path.parts]


def rules(text: str) -> set[int]:
    return {int(number) for number in re.findall(r"^\| R(\d+) \|", text, re.MULTILINE)}


def test_rules_are_numbered_once_and_without_a_gap() -> None:
    assert sorted(RULES) == list(range(1, len(RULES) + 1))
    assert len(RULES) > 100


def test_every_rule_stands_in_the_map_and_nothing_else_does() -> None:
    assert rules(MAP) == set(RULES)


def test_every_row_of_the_map_is_read() -> None:
    lines = [line for line in MAP.splitlines() if line.startswith("| ") and not line.endswith("| code | test |")]
    assert len(ROWS) == len(lines) > len(RULES)


@pytest.mark.parametrize(("rule", "code", "file", "test"), ROWS, ids=[rule for rule, *_ in ROWS])
def test_the_code_and_the_test_of_a_rule_exist(rule: str, code: str, file: str, test: str) -> None:
    assert resolved(code) is not None
    assert test in functions(ROOT / "tests" / file)


def test_whoever_cites_a_rule_cites_one_that_there_is() -> None:
    assert len(sources()) > 100
    for path in sources():
        cited = {int(number) for number in CITED.findall(path.read_text(encoding="utf-8"))}
        assert cited <= set(RULES), path


def test_nothing_is_cited_by_the_section_of_a_text_that_is_not_here() -> None:
    found = [str(path) for path in sources() if re.search(r"\b[Ss]ections? \d", path.read_text(encoding="utf-8"))]
    assert found == []


def test_the_specification_names_the_versions_of_the_code() -> None:
    segment_magic = segment._MAGIC.decode()
    named = [protocol.VERSION.decode().strip(), segment_magic, f"CONTRACT_VERSION is {CONTRACT_VERSION}"]
    assert [text for text in named if text not in SPECIFICATION] == []
    assert f"`{MAGIC.decode()}`" in SPECIFICATION
    assert (VERSION, VERSION_ENCODED) == (1, 2)
