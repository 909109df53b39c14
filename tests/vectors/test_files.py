"""The files of vectors describe themselves, are listed in their README, and are checked from the rules alone."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.vectors.files import VECTORS, read_vectors

ROOT = VECTORS.parent
NAMES = sorted(path.stem for path in VECTORS.glob("*.json"))
RULES = set(
    re.findall(r"^\*\*(R\d+)\.\*\*", (ROOT / "docs/specification.md").read_text(encoding="utf-8"), re.MULTILINE)
)
SOURCES = sorted(Path(__file__).parent.glob("reference_*.py"))
HEAD = ("format", "about", "rules")


def sections(name: str) -> dict[str, list[Any]]:
    return {key: value for key, value in read_vectors(name).items() if key not in HEAD}


@pytest.mark.parametrize("name", NAMES)
def test_a_file_says_what_it_is_and_which_rules_it_shows(name: str) -> None:
    content = read_vectors(name)
    assert content["format"] == 1
    assert content["about"].endswith(".")
    assert set(content["rules"]) <= RULES
    assert content["rules"]
    assert all(isinstance(case, dict) for cases in sections(name).values() for case in cases)
    assert all(sections(name).values())


def test_the_readme_names_every_file_and_section() -> None:
    readme = (VECTORS / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:`([\w-]+)`|…):? (.+?) \|", readme, re.MULTILINE)
    named: dict[str, set[str]] = {}
    name = ""
    for given, listed in rows:
        name = given or name
        named.setdefault(name, set()).update(re.findall(r"`(\w+)`", listed))
    assert {name: named.get(name) for name in NAMES} == {name: set(sections(name)) for name in NAMES}


def test_no_number_is_lost_by_a_reader_whose_numbers_are_float64() -> None:
    def check(value: Any) -> None:
        for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            check(one)
        if isinstance(value, int):
            assert abs(value) < 2**53

    for name in NAMES:
        check(json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.name))
def test_the_reference_imports_nothing_but_the_standard_library_and_itself(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module))
    own = {f"tests.vectors.{source.stem}" for source in SOURCES}
    assert {name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names} <= own


def test_the_files_go_into_a_source_distribution() -> None:
    assert "graft vectors" in (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()
