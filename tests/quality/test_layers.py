"""The layers of the design, and the shape of every file: read from the sources, so that no import escapes."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ["errors", "contract", "sharing", "data", "wire", "loader", "daemon"]
"""From the top: each imports only from those before it. What is not named here stands below them all."""
DAEMON_ROOMS = ["config", "ops", "workers", "broker", "server"]
"""Within the daemon too, each imports only from those before it; `ports` is where they meet."""
SIBLINGS = [f"loader_service.daemon.{name}" for name in ("workers.main", "workers.supervisor", "broker.broker")]
SHARED_WITH_CLIENTS = [
    "loader_service.wire",
    "loader_service.contract.layout",
    "loader_service.contract.batch",
    "loader_service.contract.checks",
    "loader_service.contract.shards",
    "loader_service.contract.fingerprint",
]
SHARED_WITH_CLIENTS += ["loader_service.errors"]
PURE = {
    "__future__",
    "abc",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "hashlib",
    "heapq",
    "inspect",
    "itertools",
}
PURE |= {"json", "math", "operator", "re", "reprlib", "traceback", "types", "typing", "numpy", "loader_service"}
"""What contract and sharing may import: nothing that sees files, clocks, processes, threads or chance."""
EXCEPTIONS = {
    "loader_service.contract.content": {"os"},  # os.fspath alone
    "loader_service.contract.fingerprint": {"os", "sys"},  # os.fspath, sys.modules alone
    "loader_service.contract.layout": {"ml_dtypes"},  # where a batch has a type of its
    "loader_service.contract.buffers": {"threading"},  # scratch memory of each thread
    "loader_service.contract.fused.compiler": {"numba", "sys"},  # numba within functions; sys.modules alone
    "loader_service.contract.fused.stores": {"numba", "llvmlite"},  # the same
    "loader_service.contract.samplers.bucketed": {"threading"},  # the lock of the plans that are kept
}
MAX_FILE_LINES, MAX_FUNCTION_LINES = 450, 40


def _found() -> dict[str, Path]:
    modules: dict[str, Path] = {}
    for package in (ROOT / "loader_service", ROOT / "client" / "loader_client"):
        for path in sorted(package.rglob("*.py")):
            parts = path.relative_to(package.parent).with_suffix("").parts
            modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


MODULES = _found()


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


@cache
def imports(module: str) -> frozenset[str]:
    """Every module that this one imports, at its top, within functions or for types only."""
    found: set[str] = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else str(node.module) for name in whole}
    return frozenset(found)


def ours(module: str) -> list[str]:
    return sorted(name for name in imports(module) if name.partition(".")[0] in ("loader_service", "loader_client"))


def layer(module: str) -> int:
    parts = module.split(".")
    named = parts[0] == "loader_service" and len(parts) > 1 and parts[1] in LAYERS
    return LAYERS.index(parts[1]) if named else len(LAYERS)


def within(module: str, packages: list[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def service_modules() -> list[str]:
    return [module for module in MODULES if module.startswith("loader_service")]


def functions(module: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_the_sources_are_found() -> None:
    assert {"loader_service", "loader_client", *SIBLINGS} <= set(MODULES)
    assert {layer(module) for module in MODULES} == set(range(len(LAYERS) + 1))
    assert "loader_service.wire.messages" in imports("loader_service.daemon.broker.broker")
    assert "loader_service.local" in imports("loader_service"), "imports within functions count"


@pytest.mark.parametrize("module", service_modules())
def test_a_module_imports_only_from_the_layers_above_it(module: str) -> None:
    own = layer(module)
    below = [name for name in ours(module) if layer(name) > own or (layer(name) == own and _apart(module, name))]
    assert below == [], f"{module} is of layer {own}, {[*LAYERS, 'the rest'][own]}"


def _apart(module: str, other: str) -> bool:
    """Return whether both are of one layer and not of one package; what stands below all may be composed freely."""
    return layer(module) < len(LAYERS) and module.split(".")[1] != other.split(".")[1]


@pytest.mark.parametrize("module", [name for name in MODULES if within(name, ["loader_service.daemon"])])
def test_a_room_of_the_daemon_imports_only_from_the_rooms_before_it(module: str) -> None:
    allowed = DAEMON_ROOMS[: DAEMON_ROOMS.index(room) + 1] if (room := _daemon_room(module)) else DAEMON_ROOMS
    assert [name for name in ours(module) if (other := _daemon_room(name)) and other not in allowed] == []


def _daemon_room(module: str) -> str:
    """The room of a module of the daemon; empty for one that stands in none."""
    parts = module.split(".")
    return parts[2] if len(parts) > 2 and parts[2] in DAEMON_ROOMS and within(module, ["loader_service.daemon"]) else ""


def test_the_rooms_are_those_of_the_architecture() -> None:
    folders = {path.name for path in (ROOT / "loader_service").iterdir() if (path / "__init__.py").is_file()}
    assert folders <= {*LAYERS, "cli"}
    assert {path.name for path in (ROOT / "loader_service/daemon").iterdir() if path.is_dir()} - {"__pycache__"} == set(
        DAEMON_ROOMS
    )


@pytest.mark.parametrize("module", [name for name in MODULES if within(name, ["loader_service.sharing"])])
def test_sharing_does_not_know_the_contract(module: str) -> None:
    assert [name for name in ours(module) if within(name, ["loader_service.contract"])] == []


@pytest.mark.parametrize(
    "module", [name for name in MODULES if within(name, ["loader_service.contract", "loader_service.sharing"])]
)
def test_contract_and_sharing_import_nothing_but_what_is_pure(module: str) -> None:
    roots = {name.partition(".")[0] for name in imports(module)}
    assert roots <= PURE | EXCEPTIONS.get(module, set())


def test_the_fingerprint_takes_from_os_only_what_names_a_path() -> None:
    used = {
        node.attr
        for node in ast.walk(tree("loader_service.contract.fingerprint"))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os"
    }
    assert used <= {"fspath", "PathLike"}


@pytest.mark.parametrize("module", [module for module in MODULES if module.startswith("loader_client")])
def test_the_client_shares_no_more_than_the_wire(module: str) -> None:
    others = [name for name in ours(module) if not within(name, ["loader_client", *SHARED_WITH_CLIENTS])]
    assert others == []


@pytest.mark.parametrize("module", SIBLINGS)
def test_worker_supervisor_and_broker_do_not_know_each_other(module: str) -> None:
    assert [name for name in ours(module) if name in SIBLINGS] == []


def test_there_is_no_import_cycle() -> None:
    graph = {module: [name for name in ours(module) if name in MODULES] for module in MODULES}
    assert len(list(TopologicalSorter(graph).static_order())) == len(MODULES)


@pytest.mark.parametrize("module", ["loader_client", "loader_service"])
def test_a_trainer_needs_nothing_of_what_only_the_daemon_needs(module: str) -> None:
    """It imports where msgspec, rich and pillow are not installed."""
    code = f"import sys; sys.modules |= dict.fromkeys(['msgspec', 'rich', 'PIL']); import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_only_the_daemon_needs_is_not_imported_by_the_way() -> None:
    code = (
        "import sys, loader_client, loader_service\n"
        "print(sorted({'msgspec', 'rich', 'PIL', 'loader_service.daemon'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# --- the shape of files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("module", MODULES)
def test_a_file_and_its_functions_are_short(module: str) -> None:
    lines = MODULES[module].read_text(encoding="utf-8").count("\n")
    assert lines <= MAX_FILE_LINES
    long = {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in functions(module)}
    assert {name: length for name, length in long.items() if length > MAX_FUNCTION_LINES} == {}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_says_what_it_owns(module: str) -> None:
    assert ast.get_docstring(tree(module))


def names_in_all(module: str) -> list[str] | None:
    for node in tree(module).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            names: list[str] = ast.literal_eval(node.value)
            return names
    return None


def is_exempt(module: str) -> bool:
    """`__main__` is run, not imported; a package that only holds modules has nothing of its own to name."""
    return module.endswith("__main__") or len(tree(module).body) == 1


@pytest.mark.parametrize("module", [module for module in MODULES if not is_exempt(module)])
def test_a_module_names_what_is_public(module: str) -> None:
    """All of it exists, once, and every public class and function that is made here is named."""
    names = names_in_all(module)
    assert names is not None
    assert len(set(names)) == len(names)
    made = importlib.import_module(module)
    assert [name for name in names if not hasattr(made, name)] == []
    defined = [node.name for node in tree(module).body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    assert [name for name in defined if not name.startswith("_") and name not in names] == []
