"""The daemon's configuration, read and checked.

Owns `Config` and how a TOML file or a mapping fills it; the options are declared in `config.options`. Invariant: a
`Config` that exists is valid; anything else is a ConfigurationError that names the key, what was got and what is
allowed.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from loader_service.contract.fused import CompiledMode
from loader_service.daemon.config.checker import check_keys, read_table
from loader_service.daemon.config.options import PipelineConfig, ServerConfig, StreamConfig, parse_bytes
from loader_service.data.pskd.stream import parse_pipeline
from loader_service.errors import ArgumentError, ConfigurationError, EndpointError
from loader_service.wire.endpoint import socket_path

__all__ = ["Config"]

_SURROGATE = re.compile(r"[\ud800-\udfff]")
"""Half a character, as in a file name that is not UTF-8."""
_MAX_NAME = 100
_MAX_DEPTH = 64
_PIPELINE_KEYS = [one.name for one in dataclasses.fields(PipelineConfig)]
_SHARED_KEYS = [one.name for one in dataclasses.fields(StreamConfig) if one.name not in ("factory", "args")]
"""The options of a stream that do not depend on whether a factory or a pipeline makes it."""
_TOO_DEEP = "is nested too deeply (or holds itself); flatten `args`"
_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration of a daemon; make one with `Config.load` or `Config.of`."""

    streams: dict[str, StreamConfig]
    server: ServerConfig = field(default_factory=ServerConfig)

    @classmethod
    def load(cls, path: str | Path) -> Config:
        """Read a TOML file, whose directory becomes an import path. Raises ConfigurationError."""
        path = Path(path)
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
            here = str(path.resolve().parent)
        except OSError as error:
            raise ConfigurationError(f"configuration {path} cannot be read: {error.strerror}") from error
        except ValueError as error:  # TOMLDecodeError, UnicodeDecodeError, or a number of more digits than Python takes
            raise ConfigurationError(f"configuration {path} is no TOML: {error}") from error
        except RecursionError:
            raise ConfigurationError(f"configuration {path} {_TOO_DEEP}") from None
        config = cls.of(content, source=str(path), directory=here)
        paths = [str((Path(here) / entry).resolve()) for entry in config.server.import_paths] + [here]
        return dataclasses.replace(config, server=dataclasses.replace(config.server, import_paths=paths))

    @classmethod
    def of(
        cls, content: Mapping[str, Any] | Config, source: str = "configuration", directory: str | None = None
    ) -> Config:
        """Check a mapping that is shaped like the file.

        Args:
            content: the tables; a factory may be given as a function of an importable module.
            source: the name of it all in messages.
            directory: where the files of pipelines are looked for; by default the current one.

        Raises:
            ConfigurationError: with the place, what was got and what it must be.
        """
        if isinstance(content, Config):
            return content
        try:
            return cls._of_mapping(content, source, directory)
        except RecursionError:
            raise ConfigurationError(f"{source} {_TOO_DEEP}") from None

    @classmethod
    def _of_mapping(cls, content: Mapping[str, Any], source: str, directory: str | None) -> Config:
        top = read_table(_Tables, content, f"{source}: the top level")
        if not top.streams:
            raise ConfigurationError(f"{source}: there is no stream; add a table [streams.NAME] with a factory")
        server = read_table(ServerConfig, top.server, f"{source}: [server]")
        _check_server(server, f"{source}: [server]")
        where = f"{source}: [streams"
        streams = {name: _stream(name, table, f"{where}.{name}]", directory) for name, table in top.streams.items()}
        return cls(streams, server)

    def to_mapping(self) -> dict[str, Any]:
        """The configuration as plain values, for another process."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class _Tables:
    """The two kinds of tables, before each is read by itself, so that an error can name it."""

    streams: dict[str, dict[str, Any]]
    server: dict[str, Any] = field(default_factory=dict)


def _check_size(value: int | str, where: str) -> None:
    try:
        size = parse_bytes(value)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error.message}") from None
    if size < 0:
        raise ConfigurationError(f"{where} is {value}; it must be at least 0")


def _check_plain(value: Any, where: str, depth: int = 0) -> None:
    """Raise ConfigurationError where a worker would not get what was given: a date, bytes, 2^64."""
    if depth > _MAX_DEPTH:
        raise ConfigurationError(f"{where} {_TOO_DEEP}")
    if isinstance(value, dict) and all(isinstance(key, str) and _is_plain(key) for key in value):
        for key, item in value.items():
            _check_plain(item, f"{where}.{key}", depth + 1)
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            _check_plain(item, f"{where}[{place}]", depth + 1)
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
    if server.compiled not in get_args(CompiledMode):
        known = ", ".join(map(repr, get_args(CompiledMode)))
        raise ConfigurationError(f"{where} compiled is {server.compiled!r}; it must be one of {known}")
    if server.endpoint:
        try:
            socket_path(server.endpoint)
        except EndpointError as error:
            raise EndpointError(f"{where} {error.message}") from None


def _stream(name: str, table: Mapping[str, Any], where: str, directory: str | None) -> StreamConfig:
    if not (name.isprintable() and 1 <= len(name) <= _MAX_NAME):
        raise ConfigurationError(f"{where} has an unusable name; give it 1 to {_MAX_NAME} printable characters")
    if "pipeline" in table:
        table = _without_pipeline(table, where, directory)
    factory = table.get("factory")
    if callable(factory):
        table = {**table, "factory": _importable_name(factory, where)}
    stream = read_table(StreamConfig, table, where)
    _check_size(stream.slot_bytes, f"{where} slot_bytes")
    _check_plain(stream.args, f"{where} args")
    if not _FACTORY.fullmatch(stream.factory):
        raise ConfigurationError(
            f"{where} factory is {stream.factory!r}; write 'module:callable', such as 'mydata.streams:train'"
        )
    return stream


def _without_pipeline(table: Mapping[str, Any], where: str, directory: str | None) -> dict[str, Any]:
    """The same table with `factory` and `args` in the place of `pipeline` and `names`."""
    if "factory" in table:
        raise ConfigurationError(f"{where} has a factory and a pipeline; a stream is made by one of them")
    check_keys(table, [*_PIPELINE_KEYS, *_SHARED_KEYS], where)
    config = read_table(PipelineConfig, {key: table[key] for key in _PIPELINE_KEYS if key in table}, where)
    try:
        parse_pipeline(config.pipeline)
    except ArgumentError as error:
        raise ConfigurationError(f"{where} pipeline: {error.message}") from None
    shared = {key: table[key] for key in _SHARED_KEYS if key in table}
    return config.factory(directory or _current_directory(where)) | shared


def _current_directory(where: str) -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise ConfigurationError(
            f"{where} pipeline: its file is looked for in the current directory, which is gone; go to one that exists"
        ) from error


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
    """Tell if the name leads to this very object: a bound method, or a copy, has the name of something else."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found is factory or bool(found == factory)
