"""Tests that find themselves: each module has a file of tests by its name, in the folder of its room."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
AS_A_WHOLE = {
    "loader_service/contract/fused": "tests/compiled",
    "loader_service/contract/collate/compiled_lines.py": "tests/compiled",
}
"""Kernels, and what calls them: compiled code has no units that a test could call; what it builds is compared."""
ROOMS = {"loader_service": (), "client/loader_client": ("client",)}


def modules() -> list[Path]:
    found = [path for folder in ROOMS for path in (ROOT / folder).rglob("*.py")]
    return sorted(path for path in found if not path.stem.startswith("__"))


def does_nothing(path: Path) -> bool:
    """A module of declarations alone, protocols or values, in which no function has a body."""
    functions = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if is_function(node)]
    return not any(has_body(node) for node in functions)


def is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def has_body(function: ast.AST) -> bool:
    """More than a docstring and an ellipsis."""
    body = getattr(function, "body", [])
    return any(not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)) for line in body)


def folders(path: Path) -> list[Path]:
    """List where its tests may stand: the folder of its package, or one above it within its room."""
    home = next(folder for folder in ROOMS if path.is_relative_to(ROOT / folder))
    parts = (*ROOMS[home], *path.parent.relative_to(ROOT / home).parts)
    if not parts:  # at the top of the package: a room of its own, or that of what it stands for
        return [ROOT / "tests", *(entry for entry in (ROOT / "tests").iterdir() if entry.is_dir())]
    return [ROOT.joinpath("tests", *parts[:length]) for length in range(1, len(parts) + 1)]


def test_the_modules_are_found() -> None:
    assert len(modules()) > 90
    assert ROOT / "loader_service/sharing/lane.py" in modules()
    assert not does_nothing(ROOT / "loader_service/sharing/lane.py")
    assert does_nothing(ROOT / "loader_service/daemon/ports.py")


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_has_tests_by_its_name(path: Path) -> None:
    whole = [tests for part, tests in AS_A_WHOLE.items() if path.is_relative_to(ROOT / part)]
    if does_nothing(path) or whole:
        assert all(any((ROOT / tests).glob("test_*.py")) for tests in whole)
        return
    names = [folder / f"test_{path.stem}.py" for folder in folders(path)]
    assert any(name.is_file() for name in names), [str(name.relative_to(ROOT)) for name in names]
