"""Nothing that comes from a socket is run: read from the sources. And no clock that jumps decides anything."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    path.relative_to(ROOT)
    for folder in ("loader_service", "client/loader_client")
    for path in (ROOT / folder).rglob("*.py")
)
RUNS_DATA = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "code", "codeop"}
RUNS_DATA |= {"runpy", "imp", "yaml"}
RUNNING = {"eval", "exec", "compile", "__import__", "breakpoint", "input"}
RUNNING_ATTRIBUTES = {"recv_pyobj", "send_pyobj", "allow_pickle", "exec_module", "load_module", "execfile"}
IMPORTERS = {
    "loader_service/daemon/workers/factory.py",  # the factories of the configuration, the only code that a daemon loads
    "loader_service/__init__.py",  # names of its own, when they are first used
    "loader_service/data/pskd/reader.py",  # a module of its own, when it is first used
}
WALL_CLOCK = {"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime", "ctime"}


def nodes(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))


def imported(path: Path) -> set[str]:
    """The roots of all that is imported, at the top or within."""
    found: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module).partition(".")[0])
    return found


def called(path: Path) -> set[str]:
    """The bare names that are called."""
    return {node.func.id for node in nodes(path) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}


def test_the_sources_are_found() -> None:
    assert len(SOURCES) > 80
    assert "msgpack" in imported(Path("loader_service/wire/protocol.py"))
    assert "load_stream" in called(Path("loader_service/daemon/workers/main.py"))
    assert {str(path) for path in SOURCES} >= IMPORTERS


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_a_module_has_no_means_to_run_what_it_received(path: Path) -> None:
    assert imported(path) & RUNS_DATA == set()
    assert called(path) & RUNNING == set()
    attributes = {node.attr for node in nodes(path) if isinstance(node, ast.Attribute)}
    assert attributes & RUNNING_ATTRIBUTES == set()
    for node in nodes(path):
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant)
            assert node.value.value is False


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_only_the_factories_of_the_configuration_are_imported_by_name(path: Path) -> None:
    if str(path) not in IMPORTERS:
        assert "importlib" not in imported(path)


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_a_connection_to_a_worker_carries_bytes(path: Path) -> None:
    """`Connection.send` and `recv` pickle; `send_bytes` and `recv_bytes` do not."""
    if "multiprocessing" not in imported(path):
        return
    for node in nodes(path):
        if isinstance(node, ast.Attribute) and node.attr in ("send", "recv"):
            owner = ast.unparse(node.value)
            assert not owner.endswith("connection"), f"{path}:{node.lineno}: {owner}.{node.attr} pickles"


@pytest.mark.parametrize("path", [path for path in SOURCES if {"daemon", "loader_client"} & set(path.parts)], ids=str)
def test_no_clock_that_jumps_is_read(path: Path) -> None:
    """The daemon and the client know durations only: `time.monotonic`. The log's records have their own time."""
    read = {
        ast.unparse(node)
        for node in nodes(path)
        if isinstance(node, ast.Attribute)
        and node.attr in WALL_CLOCK
        and ast.unparse(node.value) in ("time", "datetime", "date", "datetime.datetime")
    }
    assert read == set()
    named = {
        alias.name
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and node.module == "time"
        for alias in node.names
    }
    assert named <= {"monotonic", "sleep", "perf_counter"}
