"""Configurations that are none: one message that names the place, what was got and what is allowed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loader_service.daemon.config.load import Config
from loader_service.errors import ConfigurationError
from tests.daemon import streams

STREAM = '[streams.train]\nfactory = "tests.daemon.streams:small"\n'


def load(tmp_path: Path, text: str) -> Config:
    file = tmp_path / "loader.toml"
    file.write_text(text, encoding="utf-8")
    return Config.load(file)


def refusal(content: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Config.of(content)
    return caught.value.message


# --- what is not: in the file ----------------------------------------------------------------------------

REFUSED = [
    ("", "the top level must have the key `streams`"),
    ("[server]\n", "the top level must have the key `streams`"),
    ("[streams]\n", "there is no stream; add a table [streams.NAME] with a factory"),
    ("[stream.train]\n", "the top level has no key 'stream'; did you mean 'streams'? known keys: streams, server"),
    ("zzz = 1\n" + STREAM, "the top level has no key 'zzz'; known keys: streams, server"),
    ("streams = 3\n", "the top level streams is 3; it must be a table"),
    ("server = 3\n" + STREAM, "the top level server is 3; it must be a table"),
    ("[streams]\ntrain = 3\n", "the top level streams.train is 3; it must be a table"),
]
SERVER = [
    ("worker = 3", "has no key 'worker'; did you mean 'workers'? known keys: endpoint, workers, memory_limit"),
    ("zzz = 3", "has no key 'zzz'; known keys: endpoint, workers, memory_limit, start_timeout_s, import_paths"),
    ("endpoint = 3", "endpoint is 3; it must be text"),
    ("workers = '3'", "workers is '3'; it must be an integer from 0 to 1024"),
    ("workers = true", "workers is True; it must be an integer from 0 to 1024"),
    ("workers = 2.5", "workers is 2.5; it must be an integer from 0 to 1024"),
    ("workers = -1", "workers is -1; it must be an integer from 0 to 1024"),
    ("workers = 1025", "workers is 1025; it must be an integer from 0 to 1024"),
    ("memory_limit = 1.5", "memory_limit is 1.5; it must be an integer or text"),
    ("memory_limit = -1", "memory_limit is -1; it must be at least 0"),
    ("memory_limit = 'lots'", "memory_limit: size is 'lots'; write a number of bytes"),
    ("start_timeout_s = 0", "start_timeout_s is 0; it must be a number above 0, at most 86400"),
    ("start_timeout_s = -0.5", "start_timeout_s is -0.5; it must be a number above 0, at most 86400"),
    ("start_timeout_s = nan", "start_timeout_s is nan; it must be a number above 0, at most 86400"),
    ("start_timeout_s = inf", "start_timeout_s is inf; it must be a number above 0, at most 86400"),
    ("evict_after_s = -1", "evict_after_s is -1; it must be a number from 0 to 1000000"),
    ("evict_after_s = 1000001", "evict_after_s is 1000001; it must be a number from 0 to 1000000"),
    ("evict_after_s = nan", "evict_after_s is nan; it must be a number from 0 to 1000000"),
    ("evict_after_s = '2s'", "evict_after_s is '2s'; it must be a number from 0 to 1000000"),
    ("heartbeat_s = 0", "heartbeat_s is 0; it must be a number from 0.01 to 86400"),
    ("heartbeat_s = 86401", "heartbeat_s is 86401; it must be a number from 0.01 to 86400"),
    ("heartbeat_s = nan", "heartbeat_s is nan; it must be a number from 0.01 to 86400"),
    ("build_timeout_s = -1", "build_timeout_s is -1; it must be a number from 0 to 86400"),
    ("build_timeout_s = 86401", "build_timeout_s is 86401; it must be a number from 0 to 86400"),
    ("build_timeout_s = nan", "build_timeout_s is nan; it must be a number from 0 to 86400"),
    ("heartbeat = 2", "has no key 'heartbeat'; did you mean 'heartbeat_s'? known keys: endpoint"),
    ("max_lanes = 2", "has no key 'max_lanes'; known keys: endpoint"),
    ("import_paths = 'src'", "import_paths is 'src'; it must be a list"),
    ("import_paths = ['src', 3]", "import_paths[1] is 3; it must be text"),
]
TABLE = [
    ("prefetch = 4", "must have the key `factory`"),
    ("factory = 3", "factory is 3; it must be text"),
    ("factory = 'a.b'", "factory is 'a.b'; write 'module:callable', such as"),
    ("factory = ':b'", "factory is ':b'; write"),
    ("factory = 'a:b()'", "factory is 'a:b()'; write"),
    ("factory = 'a b:c'", "factory is 'a b:c'; write"),
    ("factory = 'a:b:c'", "factory is 'a:b:c'; write"),
    ("factory = 'a:b'\nprefech = 4", "has no key 'prefech'; did you mean 'prefetch'? known keys: factory, args"),
    ("factory = 'a:b'\nzzz = 4", "has no key 'zzz'; known keys: factory, args, prefetch, slot_bytes"),
    ("factory = 'a:b'\nprefetch = 0", "prefetch is 0; it must be an integer from 1 to 65536"),
    ("factory = 'a:b'\nprefetch = 65537", "prefetch is 65537; it must be an integer from 1 to 65536"),
    ("factory = 'a:b'\nprefetch = '8'", "prefetch is '8'; it must be an integer from 1 to 65536"),
    ("factory = 'a:b'\nmax_lanes = -1", "max_lanes is -1; it must be an integer from 0 to 65536"),
    ("factory = 'a:b'\nmax_lanes = 65537", "max_lanes is 65537; it must be an integer from 0 to 65536"),
    ("factory = 'a:b'\nmax_lanes = 1.5", "max_lanes is 1.5; it must be an integer from 0 to 65536"),
    ("factory = 'a:b'\nverify = -1", "verify is -1; it must be an integer from 0 to 2147483648"),
    (
        "pipeline = 'stream a |> batch(B = 2)'\nverify = 0.5",
        "verify is 0.5; it must be an integer from 0 to 2147483648",
    ),
    (
        "pipeline = 'stream a |> batch(B = 2)'\nmax_lanes = -1",
        "max_lanes is -1; it must be an integer from 0 to 65536",
    ),
    (
        "pipeline = 'stream a |> batch(B = 2)'\nmax_lanes = 65537",
        "max_lanes is 65537; it must be an integer from 0 to 65536",
    ),
    ("factory = 'a:b'\nevict_after_s = 2", "has no key 'evict_after_s'; known keys: factory"),
    ("factory = 'a:b'\nslot_bytes = -1", "slot_bytes is -1; it must be at least 0"),
    ("factory = 'a:b'\nslot_bytes = '1 XB'", "slot_bytes: size is '1 XB'; write a number of bytes"),
    ("factory = 'a:b'\nargs = [1]", "args is [1]; it must be a table"),
    ("factory = 'a:b'\nargs = { day = 2020-02-29 }", "args.day is datetime.date(2020, 2, 29); args hold plain values"),
    ("factory = 'a:b'\nargs = { a = [0, { b = 18446744073709551616 }] }", "args.a[1].b is 18446744073709551616; args"),
    ("factory = 'a:b'\nargs = { a = -9223372036854775809 }", "args.a is -9223372036854775809; args hold plain"),
]
REFUSED += [(f"[server]\n{line}\n{STREAM}", f"[server] {told}") for line, told in SERVER]
REFUSED += [(f"[streams.val]\n{lines}\n", f"[streams.val] {told}") for lines, told in TABLE]


@pytest.mark.parametrize(("text", "told"), REFUSED)
def test_a_mistake_is_told_with_file_table_key_value_and_limit(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, text)
    assert f"{tmp_path / 'loader.toml'}: {told}" in caught.value.message


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"[streams.train\n", "is no TOML: .*line 1"),
        (b"[streams.a]\n[streams.a]\n", "is no TOML: Cannot declare"),
        (b"x = '\xff'\n", "is no TOML: 'utf-8' codec can't decode"),
        (b"x = " + b"9" * 5000, "is no TOML: Exceeds the limit"),
    ],
)
def test_a_file_that_is_no_toml_is_told(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "loader.toml").write_bytes(content)
    with pytest.raises(ConfigurationError, match=rf"configuration {tmp_path}/loader.toml {told}"):
        Config.load(tmp_path / "loader.toml")


@pytest.mark.parametrize(
    ("path", "told"),
    [("missing.toml", "No such file"), (".", "Is a directory"), ("loader.toml/below", "Not a directory")],
)
def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, path: str, told: str) -> None:
    (tmp_path / "loader.toml").touch()
    with pytest.raises(ConfigurationError, match=rf"configuration {tmp_path / path} cannot be read: {told}"):
        Config.load(tmp_path / path)


# --- what is not: in a mapping ---------------------------------------------------------------------------


def closure() -> Callable[[], None]:
    def inner() -> None: ...

    return inner


def of_main() -> None: ...


of_main.__module__ = "__main__"


class Maker:
    """Makes streams, as an object does."""

    def method(self) -> None: ...

    def __call__(self) -> None: ...


def renamed() -> None: ...


renamed.__qualname__ = "closure"


@pytest.mark.parametrize(
    ("factory", "name"),
    [
        (lambda: None, "tests.daemon.config.test_load_refused:<lambda>"),
        (closure(), "tests.daemon.config.test_load_refused:closure.<locals>.inner"),
        (of_main, "__main__:of_main"),
        (Maker().method, "tests.daemon.config.test_load_refused:Maker.method"),
        (Maker(), "tests.daemon.config.test_load_refused:<tests.daemon.config.test_load_refused.Maker object at"),
        (renamed, "tests.daemon.config.test_load_refused:closure"),
        (functools.partial(streams.small, seed=1), "functools:functools.partial(<function small"),
    ],
)
def test_a_function_that_no_worker_can_import_is_named(factory: Any, name: str) -> None:
    told = refusal({"streams": {"train": {"factory": factory}}})
    assert f"[streams.train] factory is {name}" in told
    assert "which a worker process cannot import; move it to the top level of a module" in told


@pytest.mark.parametrize("value", [b"x", {1, 2}, object(), {1: 2}, {"\udcff": 1}, "\udcff", 2**64, -(2**63) - 1])
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: {"deep": [0, value]}])
def test_an_argument_that_would_arrive_changed_is_named(value: Any, wrap: Callable[[Any], Any]) -> None:
    told = refusal({"streams": {"train": {"factory": "a:b", "args": {"x": wrap(value)}}}})
    where = "x" if wrap(value) is value else "x.deep[1]"
    assert f"[streams.train] args.{where} is {value!r}; args hold plain values only" in told


@pytest.mark.parametrize("content", [[], None, 3, "streams", {3: 4}, {"streams": []}, {"streams": {3: {}}}])
def test_what_has_not_the_shape_of_a_file_is_refused(content: Any) -> None:
    assert "configuration: the top level" in refusal(content)
