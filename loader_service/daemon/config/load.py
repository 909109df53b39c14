"""The daemon's configuration, read and checked.

Owns `Config` and how a TOML file or a mapping fills it; the options are declared in `daemon.options`. Invariant: a
`Config` that exists is valid; whatever else is a ConfigurationError that names the key, what was got and what is
allowed.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from loader_service.daemon.config.options import PipelineConfig, ServerConfig, StreamConfig, parse_bytes
from loader_service.data.pskd.stream import parse_pipeline
from loader_service.errors import ArgumentError, ConfigurationError, EndpointError
from loader_service.wire.endpoint import socket_path

__all__ = ["Config"]

_SURROGATE = re.compile(r"[\ud800-\udfff]")
"""Half a character, as in a file name that is not UTF-8."""
_MAX_NAME = 100
_TOO_DEEP = "is nested too deeply (or holds itself); flatten `args`"
_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole configuration of a daemon; make one with `Config.load` or `Config.of`."""

    streams: dict[str, StreamConfig]
    server: ServerConfig = ServerConfig()

    @classmethod
    def load(cls, path: str | Path) -> Config:
        """Read a TOML file; its directory is an import path. Raises ConfigurationError."""
        path = Path(path)
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigurationError(f"configuration {path} cannot be read: {error.strerror}") from error
        except ValueError as error:  # TOMLDecodeError, UnicodeDecodeError, or a number of more digits than Python takes
            raise ConfigurationError(f"configuration {path} is no TOML: {error}") from error
        except RecursionError:
            raise ConfigurationError(f"configuration {path} {_TOO_DEEP}") from None
        here = str(path.resolve().parent)
        config = cls.of(content, source=str(path), directory=here)
        paths = [str((Path(here) / entry).resolve()) for entry in config.server.import_paths] + [here]
        return msgspec.structs.replace(config, server=msgspec.structs.replace(config.server, import_paths=paths))

    @classmethod
    def of(
        cls, content: Mapping[str, Any] | Config, source: str = "configuration", directory: str | None = None
    ) -> Config:
        """Check a mapping shaped like the file; a factory may be given as a function. Raises ConfigurationError.

        directory: where the files of pipelines are looked for, by default the current one.
        """
        if isinstance(content, Config):
            return content
        try:
            return cls._of_mapping(content, source, os.getcwd() if directory is None else directory)
        except RecursionError:
            raise ConfigurationError(f"{source} {_TOO_DEEP}") from None

    @classmethod
    def _of_mapping(cls, content: Mapping[str, Any], source: str, directory: str) -> Config:
        top = _convert(_Tables, content, f"{source}: the top level")
        if not top.streams:
            raise ConfigurationError(f"{source}: there is no stream; add a table [streams.NAME] with a factory")
        server = _convert(ServerConfig, top.server, f"{source}: [server]")
        _check_server(server, f"{source}: [server]")
        where = f"{source}: [streams"
        streams = {name: _stream(name, table, f"{where}.{name}]", directory) for name, table in top.streams.items()}
        return cls(streams, server)

    def to_mapping(self) -> dict[str, Any]:
        """As plain values, for another process."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


class _Tables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The two kinds of tables, before each is read by itself, so that an error can name it."""

    streams: dict[str, dict[str, Any]]
    server: dict[str, Any] = {}


_Table = TypeVar("_Table", bound=msgspec.Struct)


def _convert(cls: type[_Table], table: Any, where: str) -> _Table:
    try:
        return msgspec.convert(table, cls)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{where} {_explain(str(error), list(cls.__struct_fields__), table)}") from None


def _explain(problem: str, known: list[str], table: Any) -> str:
    """msgspec's message in the words of the file: the key, what was got, the keys that there are."""
    text, _, place = problem.replace("`object`", "a table").replace("`array`", "a list").partition(" - at `$")
    unknown = re.search(r"unknown field `(.*)`", text)
    if unknown is not None:
        near = difflib.get_close_matches(unknown[1], known, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return f"has no key {unknown[1]!r}; {hint}known keys: {', '.join(known)}"
    key = place.strip("`.").partition("[")[0]
    if not key:
        return text.replace("Object missing required field", "must have the key").replace("Expected", "must be")
    got = table.get(key) if isinstance(table, Mapping) else None
    return f"{key} is {got!r}; {text[0].lower()}{text[1:]}"


def _check_size(value: int | str, where: str) -> None:
    try:
        size = parse_bytes(value)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error.message}") from None
    if size < 0:
        raise ConfigurationError(f"{where} is {value}; it must be at least 0")


def _check_plain(value: Any, where: str) -> None:
    """Raises ConfigurationError where a worker would not get what was given: a date, bytes, 2^64."""
    if isinstance(value, dict) and all(isinstance(key, str) and _is_plain(key) for key in value):
        for key, item in value.items():
            _check_plain(item, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            _check_plain(item, f"{where}[{place}]")
    elif not _is_plain(value):
        raise ConfigurationError(
            f"{where} is {value!r}; args hold plain values only: UTF-8 text, integers in [-2^63, 2^64), numbers, "
            "true and false, lists, tables"
        )


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return not _SURROGATE.search(value)
    if isinstance(value, int):
        return -(2**63) <= value < 2**64
    return value is None or isinstance(value, float)


def _check_server(server: ServerConfig, where: str) -> None:
    _check_size(server.memory_limit, f"{where} memory_limit")
    if any("\0" in path or not _is_plain(path) for path in server.import_paths):
        raise ConfigurationError(f"{where} import_paths is {server.import_paths!r}; they must be paths in UTF-8")
    if server.endpoint:
        try:
            socket_path(server.endpoint)
        except EndpointError as error:
            raise EndpointError(f"{where} {error.message}") from None


def _stream(name: str, table: Mapping[str, Any], where: str, directory: str) -> StreamConfig:
    if not (name.isprintable() and 1 <= len(name) <= _MAX_NAME):
        raise ConfigurationError(f"{where} has an unusable name; give it 1 to {_MAX_NAME} printable characters")
    if "pipeline" in table:
        table = _pipeline(table, where, directory)
    factory = table.get("factory")
    if callable(factory):
        table = {**table, "factory": _importable_name(factory, where)}
    stream = _convert(StreamConfig, table, where)
    _check_size(stream.slot_bytes, f"{where} slot_bytes")
    _check_plain(stream.args, f"{where} args")
    if not _FACTORY.fullmatch(stream.factory):
        raise ConfigurationError(
            f"{where} factory is {stream.factory!r}; write 'module:callable', such as 'mydata.streams:train'"
        )
    return stream


def _pipeline(table: Mapping[str, Any], where: str, directory: str) -> dict[str, Any]:
    if "factory" in table:
        raise ConfigurationError(f"{where} has a factory and a pipeline; a stream is made by one of them")
    config = _convert(PipelineConfig, table, where)
    try:
        parse_pipeline(config.pipeline)
    except ArgumentError as error:
        raise ConfigurationError(f"{where} pipeline: {error.message}") from None
    return config.expanded(directory)


def _importable_name(factory: Any, where: str) -> str:
    """The name under which a worker imports a factory that was given as a function."""
    name = f"{getattr(factory, '__module__', '?')}:{getattr(factory, '__qualname__', repr(factory))}"
    if name.startswith("__main__:") or not _FACTORY.fullmatch(name) or not _stands_at(name, factory):
        raise ConfigurationError(
            f"{where} factory is {name}, which a worker process cannot import; move it to the top level of a "
            "module and give its name, 'module:callable'"
        )
    return name


def _stands_at(name: str, factory: Any) -> bool:
    """Whether it is this object that has the name: a bound method, or a copy, has that of something else."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found is factory or bool(found == factory)
