"""Converting arrays, tables and JSON to containers, and containers to them.

Owns `import_samples` and `export_samples`. Invariant: converted there and back, every number is exactly what it was.
Fails with DataError (E9004: values that are no data; E9005: shapes or lengths that differ), and with ArgumentError for
an unknown suffix.

    .npy      one array [N, ...]       <-> one leaf
    .npz      arrays of equal N        <-> a tuple in the order of their names (names of digits as numbers): "0", "1", …
    .csv      N rows of C numbers      <-> ℝ[C], or the leaves of the given type flattened one behind the other
    .jsonl    N lines, each a tree     <-> the given type; a tuple is a list
"""

from __future__ import annotations

import csv
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from loader_service.data.pskd.layout import Enc, Layout, Leaf, flatten, leaves, unflatten
from loader_service.data.pskd.reader import Reader
from loader_service.data.pskd.types import parse_type
from loader_service.data.pskd.writer import Writer
from loader_service.errors import ArgumentError, DataError

__all__ = ["ConvertOptions", "Progress", "export_samples", "import_samples", "open_reader", "row_ranges"]

Progress = Callable[[int, int | None], None]
"""A callback that gets the number of samples done and, where it is known, of all samples."""

_CHUNK_BYTES = 1 << 22
_PROGRESS_SAMPLES = 1024
_UNREADABLE = (ValueError, TypeError, EOFError, ArithmeticError, MemoryError, RuntimeError, BadZipFile, zlib.error)
_LARGEST = int(np.finfo(np.float64).max)
_SUFFIXES = ".npy, .npz, .csv, .jsonl and .psk.d"


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """Options of an import.

    Attributes:
        type_text: The sample type; None to guess it from the arrays.
        bound: N of a guessed `idx[N]`; None for the largest value + 1.
        encodings: One for each leaf; empty to take those of the source.
    """

    type_text: str | None = None
    bound: int | None = None
    encodings: tuple[Enc, ...] = ()


@dataclass(frozen=True, slots=True)
class _Samples:
    """Samples on their way into a container.

    Attributes:
        type_text: The sample type.
        encodings: One for each leaf; empty for f64 throughout.
        count: Number of samples; None where it is not known before the end.
        rows: Some samples after the other: trees with a leading axis.
    """

    type_text: str
    encodings: tuple[Enc, ...]
    count: int | None
    rows: Iterator[Any]


def import_samples(source: Path, target: Path, options: ConvertOptions, progress: Progress) -> int:
    """Write a container from a file of another format, or from another container.

    Args:
        source: The file; its suffix tells the format.
        target: The container.
        options: Type, bound and encodings.
        progress: Called now and then.

    Returns:
        The number of samples.

    Raises:
        DataError, FileAccessError, ArgumentError: If the source cannot be converted; then there is no target.
    """
    samples = _samples(source, options)
    with Writer(target, samples.type_text, encodings=options.encodings or samples.encodings) as writer:
        for rows in samples.rows:
            writer.add_rows(rows)
            if samples.count is not None or writer.count % _PROGRESS_SAMPLES == 0:
                progress(writer.count, samples.count)
    return writer.count


def export_samples(reader: Reader, suffix: str, file: IO[bytes], progress: Progress) -> None:
    """Write all samples of a container in another format.

    Args:
        reader: The container.
        suffix: .npy, .npz, .csv or .jsonl.
        file: Where the result is written.
        progress: Called now and then.

    Raises:
        DataError: If the format cannot hold the samples.
        ArgumentError: If the suffix is unknown.
    """
    export = {".npy": _to_npy, ".npz": _to_npz, ".csv": _to_csv, ".jsonl": _to_jsonl}.get(suffix)
    if export is None:
        raise ArgumentError(f"the suffix {suffix!r} is unknown; {_SUFFIXES} can be written")
    export(reader, file, progress)


def open_reader(path: Path, type_text: str | None = None) -> Reader:
    """Open a container to convert or compare it.

    Args:
        path: The file.
        type_text: The type of a `params` file; of another file it must be the file's own.

    Raises:
        DataError: E9005 if the file is of another type; otherwise as `Reader`.
    """
    reader = Reader(path, reals="stored")
    layout = None if type_text is None else parse_type(type_text)
    if layout is None or layout == reader.header.layout:
        return reader
    if reader.header.layout is not None:
        raise DataError("E9005", f"the file is of the type {reader.header.type_text}, not {type_text}")
    return reader.with_layout(layout)


def row_ranges(count: int, found: Sequence[Leaf]) -> Iterator[tuple[int, int]]:
    """Cut the samples into ranges [start, stop), in order, each of a few MiB."""
    rows = max(1, _CHUNK_BYTES // max(64, 8 * sum(leaf.size for leaf in found)))
    return ((start, min(start + rows, count)) for start in range(0, count, rows))


def _samples(source: Path, options: ConvertOptions) -> _Samples:
    if source.name.endswith(".psk.d"):
        reader = open_reader(source, options.type_text)
        header = reader.header
        ranges = row_ranges(len(reader), list(leaves(_layout(reader))))
        rows = (reader.read(np.arange(start, stop)) for start, stop in ranges)
        return _Samples(options.type_text or header.type_text, header.encodings or (), header.count, rows)
    if source.suffix in (".npy", ".npz"):
        return _array_samples(source, options)
    if source.suffix == ".csv":
        return _csv_samples(source, options.type_text)
    if source.suffix != ".jsonl":
        raise ArgumentError(f"the suffix of {source.name} is unknown; {_SUFFIXES} can be read")
    if options.type_text is None:
        raise ArgumentError("JSON lines do not tell their type; give one, such as (idx[64][seq: 8], ℝ[4])")
    return _Samples(options.type_text, (), None, _json_values(source, parse_type(options.type_text)))


def _arrays(source: Path) -> list[NDArray[Any]]:
    """Read the arrays of a file, in the order of their names. Raises DataError."""
    try:
        if source.suffix == ".npy":
            arrays = [np.asarray(np.lib.format.open_memmap(source, mode="r"))]
        else:
            with source.open("rb") as file, np.load(file, allow_pickle=False) as loaded:
                names = sorted(loaded.files, key=lambda name: (0, int(name), "") if name.isdecimal() else (1, 0, name))
                arrays = [np.asarray(loaded[name]) for name in names]
    except _UNREADABLE as error:
        raise DataError("E9004", f"{source.name} holds no arrays that can be read: {error}") from None
    wrong = [array.dtype for array in arrays if array.dtype.kind not in "biuf"]
    if wrong:
        raise DataError("E9004", f"{source.name} holds {wrong[0]}; only numbers are data")
    shapes = [list(array.shape) for array in arrays]
    if [] in shapes or len({shape[0] for shape in shapes}) != 1:
        raise DataError("E9005", f"{source.name} has arrays of {shapes}; one length N is needed, the first axis of all")
    return [array.view(np.uint8) if array.dtype.kind == "b" else array for array in arrays]


def _leaf_text(array: NDArray[Any], bound: int | None) -> str:
    if array.dtype.kind == "f":
        return f"ℝ{list(array.shape[1:])}"
    if array.size and int(array.min()) < 0:
        raise DataError("E9004", f"an array holds {array.min()}, and an idx no number below 0; give a type with ℝ")
    return f"idx[{(int(array.max()) + 1 if array.size else 1) if bound is None else bound}]{list(array.shape[1:])}"


def _array_samples(source: Path, options: ConvertOptions) -> _Samples:
    arrays = _arrays(source)
    text = options.type_text
    if text is None:
        parts = [_leaf_text(array, options.bound) for array in arrays]
        text = parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
    layout = parse_type(text)
    found = list(leaves(layout))
    if len(found) != len(arrays):
        raise DataError("E9005", f"{source.name} has {len(arrays)} arrays, the type {len(found)} leaves")
    narrow = [array.dtype.str[1:] in ("f2", "f4") for array in arrays]
    encodings = [Enc.F32 if one and leaf.bound is None else Enc.F64 for one, leaf in zip(narrow, found, strict=True)]
    ranges = row_ranges(len(arrays[0]), found)
    rows = (unflatten(layout, (array[start:stop] for array in arrays)) for start, stop in ranges)
    return _Samples(text, tuple(encodings), len(arrays[0]), rows)


def _text_lines(source: Path) -> Iterator[str]:
    """Read the lines of a UTF-8 text. Raises DataError E9004."""
    with source.open(encoding="utf-8-sig", newline="") as file:
        try:
            yield from file
        except UnicodeDecodeError as error:
            raise DataError("E9004", f"{source.name} is no UTF-8: {error}") from None


def _number(text: str) -> int | float | None:
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        return float(text)
    return None


def _csv_rows(source: Path) -> Iterator[tuple[int, list[str]]]:
    rows = csv.reader(_text_lines(source), strict=True)
    try:
        yield from ((rows.line_num, row) for row in rows)
    except csv.Error as error:
        raise DataError("E9004", f"line {rows.line_num} of {source.name} is no CSV: {error}") from None


def _csv_samples(source: Path, type_text: str | None) -> _Samples:
    first = next(_csv_rows(source), (0, []))[1]
    if type_text is None and not first:
        raise DataError("E9004", f"{source.name} begins with no row, so its columns cannot be counted; give a type")
    text = type_text or f"ℝ[{len(first)}]"
    layout = parse_type(text)
    found = list(leaves(layout))
    width = sum(leaf.size for leaf in found)

    def rows() -> Iterator[Any]:
        for place, (line, row) in enumerate(_csv_rows(source)):
            cells = [_number(cell) for cell in row]
            if (place == 0 and row and all(cell is None for cell in cells)) or (width and not row):
                continue  # names of columns, or nothing
            if len(row) != width:
                raise DataError("E9005", f"line {line} has {len(row)} cells; the type {text} has {width}")
            if None in cells:
                column = cells.index(None)
                raise DataError("E9004", f"line {line}, column {column} is {row[column]!r}; it must be a number")
            rest = iter(cells)
            parts = [_leaf(list(islice(rest, leaf.size)), leaf, f"line {line}") for leaf in found]
            yield unflatten(layout, (part.reshape(1, *leaf.shape) for part, leaf in zip(parts, found, strict=True)))

    return _Samples(text, (), None, rows())


def _json_values(source: Path, layout: Layout) -> Iterator[Any]:
    for line, text in enumerate(_text_lines(source), 1):
        if not text.strip():
            continue
        try:
            tree = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError("E9004", f"line {line} of {source.name} is no JSON: {error}") from None
        parts = zip(flatten(layout, tree, f"line {line}"), leaves(layout), strict=True)
        yield unflatten(layout, iter([_leaf(part, leaf, f"line {line}")[np.newaxis] for part, leaf in parts]))


def _leaf(value: Any, leaf: Leaf, where: str) -> NDArray[Any]:
    """Make an array of Python numbers in which none of them has changed. Raises DataError."""
    array = np.array(value, dtype=object)
    if array.size == leaf.size == 0:
        array = array.reshape(leaf.shape)  # [] also stands for the shape [0, 3]
    for one in array.reshape(-1).tolist():
        if isinstance(one, list):
            raise DataError("E9005", f"{where} holds lists of several lengths; its type says {list(leaf.shape)}")
        if isinstance(one, bool) or not isinstance(one, int if leaf.bound is not None else int | float):
            what = "a real leaf holds numbers" if leaf.bound is None else "an idx holds integers"
            raise DataError("E9004", f"{where} holds {one!r}; {what}")
        if leaf.bound is None and isinstance(one, int) and (abs(one) > _LARGEST or int(float(one)) != one):
            raise DataError("E9004", f"{where} holds {one}, which is no number of f64")
    return array if leaf.bound is not None else array.astype(np.float64)


def _layout(reader: Reader) -> Layout:
    if reader.header.layout is None:
        raise DataError("E9001", f"the type {reader.header.type_text!r} does not tell its layout; give its type")
    return reader.header.layout


def _batches(reader: Reader, progress: Progress) -> Iterator[list[NDArray[Any]]]:
    """Read the leaves of some samples after the other, each [n, *shape]."""
    layout = _layout(reader)
    for start, stop in row_ranges(len(reader), list(leaves(layout))):
        yield list(flatten(layout, reader.read(np.arange(start, stop))))
        progress(stop, len(reader))


def _write_array(reader: Reader, place: int, file: IO[bytes], progress: Progress) -> None:
    """Write leaf `place` of all samples as an array [N, *shape] in numpy's format, a few MiB at a time."""
    empty: NDArray[Any] = list(flatten(_layout(reader), reader.read([])))[place]  # [0, *shape]
    header = {"descr": empty.dtype.str, "fortran_order": False, "shape": (len(reader), *empty.shape[1:])}
    np.lib.format.write_array_header_1_0(file, header)
    if 0 not in empty.shape[1:]:
        for values in _batches(reader, progress):
            file.write(values[place].tobytes())


def _to_npy(reader: Reader, file: IO[bytes], progress: Progress) -> None:
    if not isinstance(_layout(reader), Leaf):
        raise DataError("E9005", f"the type {reader.header.type_text} is no single leaf; .npz holds several arrays")
    _write_array(reader, 0, file, progress)


def _to_npz(reader: Reader, file: IO[bytes], progress: Progress) -> None:
    with ZipFile(file, "w") as archive:
        for place in range(len(list(leaves(_layout(reader))))):
            with archive.open(f"{place}.npy", "w", force_zip64=True) as member:
                _write_array(reader, place, member, progress)


def _to_csv(reader: Reader, file: IO[bytes], progress: Progress) -> None:
    text = TextIOWrapper(file, encoding="utf-8", newline="")
    rows = csv.writer(text, lineterminator="\n")
    for values in _batches(reader, progress):
        flat = [value.reshape(len(value), value[0].size).tolist() for value in values]  # each [n, size]
        rows.writerows(chain(*parts) for parts in zip(*flat, strict=True))
    text.detach()


def _to_jsonl(reader: Reader, file: IO[bytes], progress: Progress) -> None:
    layout, text = _layout(reader), TextIOWrapper(file, encoding="utf-8", newline="")
    for values in _batches(reader, progress):
        lists = [value.tolist() for value in values]
        for row in zip(*lists, strict=True):
            tree = unflatten(layout, iter(row))
            try:
                text.write(json.dumps(tree, allow_nan=False) + "\n")
            except ValueError:
                raise DataError("E9004", f"a sample is {tree}; JSON has neither NaN nor infinities") from None
    text.detach()
