"""The pages say what is so: commands, examples, modules, tests and links."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import loader_service
from loader_service.daemon.config.load import Config

_ROOT = Path(__file__).resolve().parents[2]
_README = (_ROOT / "README.md").read_text(encoding="utf-8")
_ARCHITECTURE = (_ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
_PAGES = [*_ROOT.glob("*.md"), *(_ROOT / "docs").glob("*.md")]
_MAX_README_LINES = 120


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", _README, re.DOTALL)


def _map() -> set[str]:
    """The modules of the map, as paths without a suffix."""
    named = set()
    for section in _ARCHITECTURE[_ARCHITECTURE.index("\n## Module map") :].split("\n### ")[1:]:
        folder = section.partition("\n")[0].rstrip("/")
        named |= {f"{folder}/{name}" for name in re.findall(r"^- `(\w+)`: ", section, re.MULTILINE)}
    return named


def test_the_readme_is_short() -> None:
    assert _README.count("\n") <= _MAX_README_LINES


def test_ci_runs_the_readmes_test_command() -> None:
    script = (_ROOT / ".ci" / "run").read_text(encoding="utf-8")
    command = _blocks("sh")[1].strip()
    for part in command.split("; "):
        assert part in script


def test_the_test_command_runs_format_lint_types_and_tests() -> None:
    noxfile = (_ROOT / "noxfile.py").read_text(encoding="utf-8")
    sessions = re.search(r"^nox\.options\.sessions = \[(.*)\]$", noxfile, re.MULTILINE)
    assert sessions is not None
    assert {"lint", "types", "tests"} <= set(re.findall(r"\w+", sessions[1]))


def test_the_example_runs() -> None:
    example = _blocks("python")[1]
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    first = [line.split()[0] for line in done.stdout.splitlines()]
    assert first == ["1000", "1001", "1002", "1003", "1004", "64"]
    assert done.stdout.splitlines()[-1] == "64 64 7 1001"


def test_the_module_map_names_every_module_and_nothing_else() -> None:
    modules = [*(_ROOT / "loader_service").rglob("*.py"), *(_ROOT / "client").rglob("*.py")]
    paths = {str(path.relative_to(_ROOT).with_suffix("")) for path in modules if not path.stem.startswith("__")}
    assert _map() - paths == set(), "docs/architecture.md names what is not there"
    assert paths - _map() == set(), "docs/architecture.md does not name them"


def test_what_the_architecture_points_to_is_there() -> None:
    """The modules, the functions in them, and the tests of the table "Where do I change"."""
    table = _ARCHITECTURE[_ARCHITECTURE.index("\n## Where do I change") : _ARCHITECTURE.index("\n## Figures")]
    rows = re.findall(r"^\| (?!to change|---)(.*) \|$", table, re.MULTILINE)
    assert len(rows) > 10
    for row in rows:
        _, code, tests = row.split(" | ")
        sources = [source for name in re.findall(r"`([\w/]+/[\w.]*)`", code) for source in _sources_of(name)]
        text = "\n".join(source.read_text(encoding="utf-8") for source in sources)
        for group in re.findall(r"\(([^()]*`[^()]*)\)", code):
            for name in re.findall(r"`(?:\w+\.)?(\w+)`", group):
                assert re.search(rf"\b(?:def|class) {name}\b|^{name}\b", text, re.MULTILINE), name
        for name in re.findall(r"`(tests/[\w/.]+)`", tests):
            assert (_ROOT / name).exists(), name


def _sources_of(name: str) -> list[Path]:
    """The files of a module, or of a package, that the table names from the package, the daemon or the client."""
    places = [_ROOT / "loader_service", _ROOT / "loader_service" / "daemon", _ROOT / "client"]
    modules = [path for place in places if (path := (place / name).with_suffix(".py")).is_file()]
    packages = [path for place in places if (place / name).is_dir() for path in (place / name).glob("*.py")]
    assert modules or packages, name
    return modules + packages


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", ["reliability.md", "sharing.md", "architecture.md"])
def test_a_test_that_a_page_names_is_there(page: str) -> None:
    text = (_ROOT / "docs" / page).read_text(encoding="utf-8")
    for file, test in re.findall(r"`(?:tests/)?([\w/]+/test_\w+\.py)(?:::(\w+))?`", text):
        path = _ROOT / "tests" / file
        assert path.is_file(), file
        assert f"def {test}(" in path.read_text(encoding="utf-8") or not test, test


def test_the_example_configuration_is_valid() -> None:
    config = Config.load(_ROOT / "deploy" / "loader.toml")
    assert config.streams["train"].prefetch == 8
    assert config.server.memory_limit_bytes == 8 << 30


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["name"] == "loader-service"
    assert "version" not in project["project"]
    assert version("loader-service") == loader_service.__version__
