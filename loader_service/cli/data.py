"""`loader-service data`: containers, vocabularies and token files on the command line.

Owns `add_data_commands`. Invariant: an output appears complete or not at all; standard output carries the result alone,
and the progress of long work goes to standard error, where that is a terminal. Whatever is wrong is one
LoaderServiceError, also what the operating system says of a file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from loader_service.cli.progress import progress
from loader_service.contract.checks import checked_int
from loader_service.data.pskd.convert import (
    ConvertOptions,
    Progress,
    export_samples,
    import_samples,
    open_reader,
    row_ranges,
)
from loader_service.data.pskd.diff import diff
from loader_service.data.pskd.layout import Enc, Leaf, Tuple
from loader_service.data.pskd.reader import Reader, info
from loader_service.data.pskd.text import char_vocab, decode_text, encode
from loader_service.data.pskd.writer import Writer
from loader_service.errors import ArgumentError, DataError

__all__ = ["add_data_commands"]

_SUFFIX = ".psk.d"

_Command = Callable[[argparse.Namespace], int]
_Commands = argparse._SubParsersAction


@contextmanager
def _progress(what: str) -> Iterator[Progress]:
    """Called with the samples that are done and their number: a bar on a terminal, else nothing."""
    with progress(sys.stderr, transient=True) as add_bar:
        tick = add_bar(what)
        yield lambda done, total: tick(done, total)


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the name `path` when the block ends, and is gone when it fails. Raises OSError."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _output(path: Path) -> Path:
    """`path`, where a file may take its name. Raises ArgumentError for a device or a pipe, which a rename would end."""
    if path.exists() and not path.is_file():
        raise ArgumentError(f"{path} is no regular file; an output takes the place of what has its name")
    return path


def _container(path: Path) -> Path:
    if not path.name.endswith(_SUFFIX):
        raise ArgumentError(f"{path} does not end in {_SUFFIX}; a container's name does")
    return path


def _print(text: str, end: str = "\n") -> None:
    try:
        sys.stdout.write(text + end)
    except UnicodeEncodeError as error:
        raise DataError("E9004", f"the output's encoding, {error.encoding}, has no {text[error.start]!r}") from None


def _text(path: Path) -> str:
    """A file's characters as they are, line ends too. Raises DataError E9004."""
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError("E9004", f"{path} is no UTF-8 at byte {error.start}") from None


def _vocabulary(path: Path) -> list[str]:
    """The tokens in a JSON list. Raises DataError E9004."""
    try:
        found = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise error if isinstance(error, DataError) else DataError("E9004", f"{path} is no JSON: {error}") from None
    if not isinstance(found, list) or not all(isinstance(token, str) for token in found):
        raise DataError("E9004", f"{path} is no list of texts, as a vocabulary is")
    if len(set(found)) < len(found):
        raise DataError("E9004", f"{path} has a token twice; the place of a token in a vocabulary is its number")
    return found


def _info(arguments: argparse.Namespace) -> int:
    checked_int("n", arguments.n, 0, 2**63)
    _print(info(arguments.file, arguments.n))
    return 0


def _vocab(arguments: argparse.Namespace) -> int:
    vocab = json.dumps(char_vocab(_text(arguments.text)), ensure_ascii=False)
    if arguments.output is None:
        _print(vocab)
        return 0
    with _replacing(_output(arguments.output)) as file:
        file.write(vocab.encode() + b"\n")
    return 0


def _tokens(arguments: argparse.Namespace) -> tuple[NDArray[np.unsignedinteger], int]:
    """The tokens of the text file, [characters], and V, at least 1."""
    text = _text(arguments.text)
    vocab = char_vocab(text) if arguments.vocab is None else _vocabulary(arguments.vocab)
    return encode(text, vocab), max(1, len(vocab))


def _write(output: Path, type_text: str, rows: Iterable[Any], total: int) -> int:
    """Write `rows`, each the tree of many samples with a leading axis; `total` samples in all."""
    with _progress(output.name) as tick, Writer(output, type_text) as writer:
        for some in rows:
            writer.add_rows(some)
            tick(writer.count, total)
    _print(f"{output}: {total} samples of {type_text}")
    return 0


def _encode(arguments: argparse.Namespace) -> int:
    output = _output(_container(arguments.output))
    tokens, size = _tokens(arguments)
    some = (tokens[start:stop] for start, stop in row_ranges(len(tokens), [Leaf(size, ())]))
    return _write(output, f"idx[{size}][]", some, len(tokens))


def _windows(arguments: argparse.Namespace) -> int:
    output, seq = _output(_container(arguments.output)), checked_int("seq", arguments.seq, 1, 2**63 - 1)
    stride = checked_int("stride", seq if arguments.stride is None else arguments.stride, 1, 2**63 - 1)
    tokens, size = _tokens(arguments)
    count = max(0, (len(tokens) - seq - 1) // stride + 1)
    pairs = sliding_window_view(tokens, seq + 1)[::stride] if count else tokens  # [count, seq + 1], a view
    some = (pairs[start:stop] for start, stop in row_ranges(count, [Leaf(size, (2, seq))]))
    windows = ((pair[:, :-1], pair[:, 1:]) for pair in some)  # each [n, seq]
    leaf = f"idx[{size}][seq: {seq}]"
    return _write(output, f"({leaf}, {leaf})", windows, count)


def _decode(arguments: argparse.Namespace) -> int:
    reader, vocab = Reader(_container(arguments.file)), _vocabulary(arguments.vocab)
    layout = reader.header.layout
    parts = layout.parts if isinstance(layout, Tuple) else (layout,)
    leaf = parts[0]
    if not isinstance(leaf, Leaf) or leaf.bound is None or not (len(parts) == 1 or parts == (leaf, leaf)):
        raise DataError(
            "E9005", f"the file is of {reader.header.type_text}; tokens are one idx leaf, or windows of them"
        )
    if leaf.bound != max(1, len(vocab)):
        raise DataError("E9005", f"the file's tokens are idx[{leaf.bound}], and the vocabulary has {len(vocab)}")
    end = "\n" if len(parts) == 2 else ""
    for start, stop in row_ranges(len(reader) if leaf.size or end else 0, [leaf, leaf]):
        tree = reader.read(np.arange(start, stop))
        inputs = tree[0] if len(parts) == 2 else tree  # [n, *shape]
        if end:
            _print("".join(decode_text(window, vocab) + end for window in inputs), "")
        else:
            _print(decode_text(inputs, vocab), "")
    return 0


def _encodings(text: str | None) -> tuple[Enc, ...]:
    names = [] if text is None else [name.strip().upper() for name in text.split(",")]
    unknown = next((name for name in names if name not in Enc.__members__), None)
    if unknown is not None:
        raise ArgumentError(f"the encoding {unknown.lower()!r} is unknown; one is f64, f32 or bf16")
    return tuple(Enc[name] for name in names)


def _convert(arguments: argparse.Namespace) -> int:
    source, target = arguments.input, _output(arguments.output)
    if arguments.bound is not None:
        checked_int("bound", arguments.bound, 1, 2**64 - 1)
    options = ConvertOptions(arguments.type, arguments.bound, _encodings(arguments.encodings))
    with _progress(target.name) as tick:
        if target.name.endswith(_SUFFIX):
            count = import_samples(source, target, options, tick)
        else:
            if not source.name.endswith(_SUFFIX):
                raise ArgumentError(f"neither {source.name} nor {target.name} ends in {_SUFFIX}; one is a container")
            if options.encodings or options.bound is not None:
                raise ArgumentError(f"encodings and a bound are a container's; {target.name} is none")
            reader = open_reader(source, options.type_text)
            with _replacing(target) as file:
                export_samples(reader, target.suffix, file, tick)
            count = len(reader)
    _print(f"{target}: {count} samples")
    return 0


def _diff(arguments: argparse.Namespace) -> int:
    checked_int("n", arguments.n, 0, 2**31)
    with _progress("compared") as tick:
        found = diff(arguments.first, arguments.second, arguments.type, arguments.n, tick)
    lines = list(found.headers)
    lines += [f"{one.where}: {one.first!r} and {one.second!r}" for one in found.first]
    if found.count:
        lines.append(f"{found.count} values differ, by at most {found.largest!r}")
    _print("\n".join(lines) if lines else "the same")
    return 0 if found.same else 1


def _of_files(command: _Command) -> _Command:
    """The command with what the operating system says of a file as an ArgumentError."""

    def guarded(arguments: argparse.Namespace) -> int:
        try:
            return command(arguments)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise ArgumentError(f"{error.filename or 'a file'}: {error.strerror or error}") from None

    return guarded


def _add_text(commands: _Commands[argparse.ArgumentParser]) -> None:
    vocab = commands.add_parser("vocab", help="the characters of a text, as a JSON list")
    vocab.add_argument("text", type=Path, help="UTF-8")
    vocab.add_argument("-o", "--output", type=Path, metavar="VOCAB.json", help="default: standard output")
    vocab.set_defaults(command=_of_files(_vocab))
    for name, command, words in (
        ("encode", _encode, "a text's characters as samples idx[V][]"),
        ("windows", _windows, "a text as windows (idx[V][seq: S], idx[V][seq: S]) for language models"),
    ):
        parser = commands.add_parser(name, help=words)
        parser.add_argument("text", type=Path, help="UTF-8")
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT.psk.d")
        parser.add_argument("--vocab", type=Path, metavar="VOCAB.json", help="default: the text's own")
        parser.set_defaults(command=_of_files(command))
        if name == "windows":
            parser.add_argument("--seq", type=int, required=True, help="tokens in a window")
            parser.add_argument("--stride", type=int, help="tokens from one window to the next (default: seq)")
    decode = commands.add_parser("decode", help="the text of a token file, or of the inputs of windows, one a line")
    decode.add_argument("file", type=Path, metavar="FILE.psk.d")
    decode.add_argument("--vocab", type=Path, required=True, metavar="VOCAB.json")
    decode.set_defaults(command=_of_files(_decode))


def _add_files(commands: _Commands[argparse.ArgumentParser]) -> None:
    convert = commands.add_parser("convert", help="a container from .npy, .npz, .csv or .jsonl, and back")
    convert.add_argument("input", type=Path)
    convert.add_argument("output", type=Path)
    convert.add_argument("--type", help="the samples' type, instead of the one that the input suggests")
    convert.add_argument("--bound", type=int, help="N of idx[N], instead of the largest value + 1")
    convert.add_argument("--encodings", help="one for each leaf: f64, f32 or bf16, with commas between")
    convert.set_defaults(command=_of_files(_convert))
    different = commands.add_parser("diff", help="two containers, value for value; exit code 1 where they differ")
    different.add_argument("first", type=Path)
    different.add_argument("second", type=Path)
    different.add_argument("--type", help="the layout of `params` files")
    different.add_argument("-n", type=int, default=10, help="differences to show")
    different.set_defaults(command=_of_files(_diff))


def add_data_commands(commands: _Commands[argparse.ArgumentParser]) -> None:
    """Add `data` and its commands to those of `loader-service`."""
    data = commands.add_parser("data", help="make, show, convert and compare .psk.d containers")
    own = data.add_subparsers(required=True, metavar="COMMAND")
    show = own.add_parser("info", help="the header and the first samples")
    show.add_argument("file", type=Path)
    show.add_argument("-n", type=int, default=3, help="samples to show")
    show.set_defaults(command=_of_files(_info))
    _add_text(own)
    _add_files(own)
