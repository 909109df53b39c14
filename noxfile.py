"""Sessions of checks. `nox` runs what every change must pass; `nox -s versions lowest` runs it where it is rarer.

The default sessions use the environment that nox itself runs in, so nothing is installed twice; the others make one of
their own for each Python.
"""

from __future__ import annotations

import sys

import nox

nox.options.sessions = ["lint", "types", "tests", "compiled"]
nox.needs_version = ">=2024.4.15"

_IN_TWO_PROCESSES = ("-n", "2", "--dist", "worksteal")
_COMPILE = "import loader_service.contract.stream, loader_service.contract.fused as fused; print(fused.warm_up())"
_COMPILED = ["tests/compiled", "tests/contract", "tests/vectors", "tests/data", "tests/daemon/workers"]
_PYTHONS = ["3.11", "3.12", "3.13"]


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Check format and lint."""
    session.run(sys.executable, "-m", "ruff", "format", "--check", "--diff", ".")
    session.run(sys.executable, "-m", "ruff", "check", ".")


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Check types, strictly, in code and tests."""
    session.run(sys.executable, "-m", "mypy")


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run tests and doctests, in two processes unless arguments follow `--`."""
    session.run(sys.executable, "-m", "pytest", *(session.posargs or _IN_TWO_PROCESSES))


@nox.session
def compiled(session: nox.Session) -> None:
    """Run what builds batches in an environment with numba: there they are built by compiled kernels."""
    session.install("-e", ".[dev,fast]")
    session.run("python", "-c", _COMPILE)  # once: the tests of workers do not wait for a compiler
    session.run("python", "-m", "pytest", *(session.posargs or (*_IN_TWO_PROCESSES, *_COMPILED)))


@nox.session(python=_PYTHONS)
def versions(session: nox.Session) -> None:
    """Run the tests on each Python that is supported, with the newest dependencies."""
    session.install("-e", ".[dev]")
    session.run("python", "-m", "pytest", *(session.posargs or _IN_TWO_PROCESSES))


@nox.session(python=_PYTHONS[0])
def lowest(session: nox.Session) -> None:
    """Run the tests with the lowest versions of the dependencies that the project declares."""
    session.install("-e", ".[dev]", *_lowest_versions())
    session.run("python", "-m", "pytest", *(session.posargs or _IN_TWO_PROCESSES))


def _lowest_versions() -> list[str]:
    """Requirements with `>=` as `==`, of all that is used at run time; the tools of `dev` stay as they are."""
    project = nox.project.load_toml("pyproject.toml")["project"]
    extras = [names for extra, names in project["optional-dependencies"].items() if extra != "dev"]
    requirements = {name for names in [project["dependencies"], *extras] for name in names}
    return sorted(name.replace(">=", "==") for name in requirements if name.count(">=") == 1)
