"""Nothing lies about: what a module offers is used elsewhere or documented, and every option is read."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from loader_service.daemon.config.options import PipelineConfig, ServerConfig, StreamConfig

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for folder in ("loader_service", "client") for path in (ROOT / folder).rglob("*.py"))
FILES = [path for folder in ("benchmarks", "tools", "docs") for path in (ROOT / folder).rglob("*.*")]
USERS = [path for path in FILES if path.suffix in (".py", ".md")]  # no pictures
USERS += [ROOT / "README.md", ROOT / "pyproject.toml", *SOURCES]
_EXPORTING = "__init__.py"


@cache
def words(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", path.read_text(encoding="utf-8")))


def offered(path: Path) -> list[str]:
    """The names of `__all__`."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            names: list[str] = ast.literal_eval(node.value)
            return names
    return []


def mentions(name: str, path: Path) -> int:
    return len(re.findall(rf"\b{name}\b", path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_module_offers_is_used_or_documented(path: Path) -> None:
    """Used in another file, of which a package that only passes it on is none, or in its own: named, made and used."""
    others = [user for user in USERS if user != path and user.name != _EXPORTING]
    here = [name for name in offered(path) if not any(name in words(other) for other in others)]
    assert [name for name in here if mentions(name, path) < 3] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_private_name_at_the_top_of_a_module_is_used_in_it(path: Path) -> None:
    made = [
        node.name
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name.startswith("_")
    ]
    assert [name for name in made if mentions(name, path) < 2 and not name.startswith("__")] == []


@pytest.mark.parametrize("options", [ServerConfig, StreamConfig, PipelineConfig])
def test_every_option_is_read(options: type) -> None:
    declared = ROOT / "loader_service" / "daemon" / "config" / "options.py"
    names = {field.name for field in fields(options)}
    read = set().union(*(re.findall(r"\.(\w+)", path.read_text(encoding="utf-8")) for path in SOURCES))
    assert declared in SOURCES
    assert names - read == set()
