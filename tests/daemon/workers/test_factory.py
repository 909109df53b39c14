"""Factories: each way to fail has its own message, which names stream and factory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from loader_service import Stream
from loader_service.daemon.workers.factory import load_stream
from loader_service.errors import FactoryError, from_record
from tests.daemon import streams

MAKE = (
    "from loader_service.data import synthetic_lines\n"
    "def make(seed=0): return synthetic_lines(count=8, batch_size=4, seed=seed)\n"
)
Module = Callable[[str], str]
numbers = count()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Module]:
    """Writes modules that can be imported; gives the name."""
    made: list[str] = []

    def write(source: str) -> str:
        made.append(f"factory_under_test_{next(numbers)}")
        (tmp_path / f"{made[-1]}.py").write_text(source)
        return made[-1]

    monkeypatch.syspath_prepend(tmp_path)
    yield write
    for name in made:
        sys.modules.pop(name, None)


def refusal(factory: str, args: dict[str, Any] | None = None) -> FactoryError:
    """The error; it must name both, and survive the journey from the worker to the daemon."""
    with pytest.raises(FactoryError) as caught:
        load_stream("train", factory, args or {})
    assert caught.value.message.startswith(f"stream 'train': factory {factory!r}")
    told = from_record(caught.value.to_record())
    assert type(told) is FactoryError
    return caught.value


def test_a_factory_is_called_with_its_arguments() -> None:
    stream = load_stream("train", "tests.daemon.streams:small", {"seed": 9, "batch_size": 2})
    assert stream.seed == 9
    assert stream.fingerprint == streams.small(seed=9, batch_size=2).fingerprint


@pytest.mark.parametrize(
    "path", ["make", "Nested.static", "Nested.of_class", "Nested.Deeper.static", "Subclass", "partial"]
)
def test_any_callable_of_a_module_may_be_a_factory(module: Module, path: str) -> None:
    source = MAKE + (
        "import functools\n"
        "from loader_service import Stream\n"
        "class Nested:\n"
        "    static = staticmethod(make)\n"
        "    @classmethod\n"
        "    def of_class(cls): return make()\n"
        "    class Deeper:\n"
        "        static = staticmethod(make)\n"
        "class Subclass(Stream):\n"
        "    def __init__(self):\n"
        "        parts = make()\n"
        "        super().__init__(parts.dataset, parts.sampler, parts.collator, seed=0)\n"
        "partial = functools.partial(make, seed=3)\n"
    )
    assert isinstance(load_stream("train", f"{module(source)}:{path}", {}), Stream)


@pytest.mark.parametrize(
    ("factory", "missing"),
    [
        ("no_such_module_here:make", "no_such_module_here"),
        ("no_such_package.streams:make", "no_such_package"),
        ("tests.daemon.no_such_module:make", "tests.daemon.no_such_module"),
        ("json.decoder.below:make", "json.decoder.below"),
    ],
)
def test_a_missing_module_is_told_with_where_to_look(factory: str, missing: str) -> None:
    error = refusal(factory)
    assert f"there is no module {missing!r}; check the name, install it, or add its directory" in error.message
    assert "[server] import_paths" in error.message


def test_a_module_that_lacks_another_is_not_itself_missing(module: Module) -> None:
    name = module("import not_to_be_found_anywhere\n" + MAKE)
    error = refusal(f"{name}:make")
    assert f"importing {name} raised ModuleNotFoundError: No module named 'not_to_be_found_anywhere'" in error.message
    assert f'{name}.py", line 1' in error.message


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("raise RuntimeError('no GPU')", "raised RuntimeError: no GPU\n"),
        ("def make(:", "raised SyntaxError: "),
        ("1 / 0", "raised ZeroDivisionError: division by zero\n"),
        ("from loader_service import Streem", "raised ImportError: cannot import name 'Streem'"),
    ],
)
def test_a_module_that_raises_is_told_with_the_traceback(module: Module, source: str, told: str) -> None:
    name = module(source)
    error = refusal(f"{name}:make")
    assert f"importing {name} {told}" in error.message
    assert "Traceback (most recent call last):" in error.message
    assert f'{name}.py", line 1' in error.message
    assert error.__cause__ is not None


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("mak", "has no attribute 'mak'; did you mean 'make'?"),
        ("zzzzz", "has no attribute 'zzzzz'"),
        ("Nested.mak", "has no attribute 'Nested.mak'; did you mean 'make'?"),
        ("Nestet.make", "has no attribute 'Nestet.make'; did you mean 'Nested'?"),
    ],
)
def test_a_missing_attribute_is_told_with_the_nearest(module: Module, path: str, told: str) -> None:
    name = module(MAKE + "class Nested:\n    make = make\n")
    error = refusal(f"{name}:{path}")
    assert error.message.endswith(f"module {name!r} {told}")


@pytest.mark.parametrize(("value", "kind"), [("3", "int"), ("None", "NoneType"), ("[]", "list"), ("'x'", "str")])
def test_what_cannot_be_called_is_told_by_its_type(module: Module, value: str, kind: str) -> None:
    error = refusal(f"{module(f'make = {value}')}:make")
    assert error.message.endswith(f"is a {kind}; it must be a function that returns a Stream")


def test_a_stream_itself_is_no_factory(module: Module) -> None:
    error = refusal(f"{module(MAKE + 'stream = make()')}:stream")
    assert error.message.endswith("is a Stream; it must be a function that returns a Stream")


@pytest.mark.parametrize(
    ("parameters", "args", "told"),
    [
        ("seed=0", {"sed": 1}, r"takes (seed=0), and args has ['sed']: got an unexpected keyword argument 'sed'"),
        ("path, n", {"n": 1}, r"takes (path, n), and args has ['n']: missing a required argument: 'path'"),
        ("path, /", {"path": 1}, r"takes (path, /), and args has ['path']: "),
        ("", {"b": 1, "a": 2}, r"takes (), and args has ['a', 'b']: got an unexpected keyword argument"),
    ],
)
def test_wrong_arguments_are_told_with_the_signature(
    module: Module, parameters: str, args: dict[str, Any], told: str
) -> None:
    name = module(f"def make({parameters}): raise SystemError('was called')")
    assert told in refusal(f"{name}:make", args).message


RAISING = """
class Two(Exception):
    def __init__(self, path, line):
        super().__init__(f"bad record in {path} at line {line}")
class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")
def make(kind):
    if kind == "chained":
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error
    raise {"plain": ValueError("no data"), "two": Two("a.txt", 3), "mute": Mute(), "long": ValueError("x" * 10**6),
           "bytes": OSError("cannot read \\udcff"), "group": ExceptionGroup("many", [ValueError("one")])}[kind]
"""


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("plain", "ValueError: no data"),
        ("two", "Two: bad record in a.txt at line 3"),
        ("mute", "Mute: <exception str() failed>"),
        ("long", "ValueError: xxx"),
        ("bytes", "OSError: cannot read \\udcff"),
        ("chained", "ValueError: second"),
        ("group", "ExceptionGroup: many (1 sub-exception)"),
    ],
)
def test_a_factory_that_raises_is_told_with_the_traceback(module: Module, kind: str, told: str) -> None:
    name = module(RAISING)
    error = from_record(refusal(f"{name}:make", {"kind": kind}).to_record())  # as it arrives
    assert f"factory '{name}:make' raised {told}" in error.message
    assert f'{name}.py", line' in error.message
    assert ("KeyError: 'first'" in error.message) == (kind == "chained")
    assert len(error.message.encode()) < 100_000


def test_an_error_of_ours_in_a_factory_keeps_its_code(module: Module) -> None:
    name = module(MAKE.replace("count=8", "count=3"))
    assert f"factory '{name}:make' raised E1101: n = 3 samples" in refusal(f"{name}:make").message


@pytest.mark.parametrize(("value", "kind"), [("None", "NoneType"), ("3", "int"), ("make", "function"), ("[]", "list")])
def test_a_factory_that_returns_no_stream_is_told_what_it_returned(module: Module, value: str, kind: str) -> None:
    error = refusal(f"{module(f'def make(): return {value}')}:make")
    assert error.message.endswith(f"returned {kind}; it must return a loader_service.Stream")


@pytest.mark.parametrize("transform", ["lambda sample, rng: sample", "(lambda x: lambda sample, rng: sample)(3)"])
def test_a_stream_without_a_fingerprint_fails_at_start_and_names_the_part(module: Module, transform: str) -> None:
    source = MAKE + f"def bare():\n    stream = make()\n    stream.transform = {transform}\n    return stream\n"
    error = refusal(f"{module(source)}:bare")
    assert "made a stream without a fingerprint: transform is " in error.message
    assert "give the stream a `version`" in error.message
