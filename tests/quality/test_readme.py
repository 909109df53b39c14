"""The README is true: its commands are the ones that CI runs, its example runs, its module map is complete."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from loader_service.daemon.config.load import Config

_ROOT = Path(__file__).resolve().parents[2]
_README = (_ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", _README, re.DOTALL)


def test_ci_runs_the_readmes_test_command() -> None:
    script = (_ROOT / ".ci" / "run").read_text(encoding="utf-8")
    command = _blocks("sh")[1].strip()
    for part in command.split("; "):
        assert part in script


def test_the_example_runs() -> None:
    example = _blocks("python")[0]
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["1000", "1001", "1002", "1003", "1004"]


def test_the_module_map_names_every_module() -> None:
    modules = [*(_ROOT / "loader_service").rglob("*.py"), *(_ROOT / "client").rglob("*.py")]
    names = {path.stem for path in modules if not path.stem.startswith("__")}
    named = set(re.findall(r"\w+", _README[_README.index("## Module map") :]))
    assert names - named - {"reader", "run", "picture", "corpus"} == set(), "demo/ is named as a folder"


def test_the_example_configuration_is_valid() -> None:
    config = Config.load(_ROOT / "deploy" / "loader.toml")
    assert config.streams["train"].prefetch == 8
    assert config.server.memory_limit_bytes == 8 << 30
    assert tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["name"] == "loader-service"
