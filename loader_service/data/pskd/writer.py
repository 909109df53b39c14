"""Writing samples to a container file.

Owns `Writer`, `write` and `write_encoded`. Invariant: the file appears under its name complete or not at all (R91): it
is written beside its place, its count patched, synced, then renamed. It holds exactly the numbers that were given
(R90): a value that its leaf's encoding cannot hold is DataError E9004, which names sample, leaf and element.
"""

from __future__ import annotations

import math
import os
import struct
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.checks import shown
from loader_service.data.files import checked_path, file_error
from loader_service.data.pskd.header import VERSION, VERSION_ENCODED, Header, check_encodings
from loader_service.data.pskd.layout import Enc, Layout, Leaf, check_arrays, checked_encodings, flatten, leaves
from loader_service.data.pskd.types import layout_of
from loader_service.errors import ArgumentError, DataError

__all__ = ["Writer", "write", "write_encoded"]


class Writer:
    """A container that is written sample by sample, for more samples than memory holds.

    Use it with `with`: after an error there is no file. The file is of version 2 only where a leaf is narrower than f64
    (R79).

    Args:
        path: Where the file appears when it is complete; a regular file there is replaced.
        type_text: The sample type.
        encodings: One for each leaf in storage order; empty for f64 throughout.
        layout: The leaves of a `params` type, or names for the parts of a tuple.

    Attributes:
        count: Number of samples written.

    Raises:
        DataError: If type, encodings and layout do not fit each other.
        FileAccessError: If no file can be made there.
        ArgumentError: If an argument is of the wrong kind.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        type_text: str,
        *,
        encodings: Sequence[Enc] = (),
        layout: Layout | None = None,
    ) -> None:
        self._path = checked_path("path", path)
        self._layout = layout_of(type_text, layout)
        self._leaves = list(leaves(self._layout))
        self._encodings = checked_encodings("encodings", encodings) or (Enc.F64,) * len(self._leaves)
        if len(self._encodings) != len(self._leaves):
            raise DataError("E9005", f"{len(self._encodings)} encodings are given for {len(self._leaves)} leaves")
        check_encodings(self._leaves, self._encodings)
        check_arrays(self._leaves)
        narrow = any(enc is not Enc.F64 for enc in self._encodings)
        version, written = (VERSION_ENCODED, self._encodings) if narrow else (VERSION, None)
        self._header = Header(version, type_text, self._layout, 0, written, 0)
        self.count = 0
        self._part, self._file = _create_part(self._path)
        self._file.write(b"\0" * 4 + self._header.write()[4:])  # no magic yet: until it is whole it is no such file

    def add(self, sample: Any) -> None:
        """Append one sample.

        Args:
            sample: The tree of the layout, with numbers or arrays of the leaves' shapes.

        Raises:
            DataError: E9004 for a value that cannot be stored, E9005 for another tree or shape; nothing of the sample
                is written then.
            ArgumentError: If the writer is closed.
        """
        self._check_open()
        parts = []
        for place, value in enumerate(flatten(self._layout, sample, f"sample {self.count}")):
            where = _Location(self.count, place)
            parts.append(_encoded(value, self._leaves[place], self._encodings[place], where).tobytes())
        self._file.write(b"".join(parts))
        self.count += 1

    def add_rows(self, rows: Any) -> None:
        """Append many samples at once.

        Args:
            rows: The tree of the layout, with arrays [N, *shape].

        Raises:
            DataError: As `add`; nothing of the rows is written then.
            ArgumentError: If the writer is closed.
        """
        self._check_open()
        parts = enumerate(flatten(self._layout, rows, "rows"))
        columns = [_array(value, _Location(self.count, place, rows=True)) for place, value in parts]
        numbers = {column.shape[0] if column.ndim else 0 for column in columns}
        if len(numbers) != 1:
            raise DataError("E9005", f"the leaves of the rows have {sorted(numbers)} samples; all must have as many")
        count = numbers.pop()
        stored = [np.empty((count, 0), np.uint8)]
        for place, (leaf, enc) in enumerate(zip(self._leaves, self._encodings, strict=True)):
            many = Leaf(leaf.bound, (count, *leaf.shape))
            encoded = _encoded(columns[place], many, enc, _Location(self.count, place, rows=True))
            if encoded.size:
                flat = np.ascontiguousarray(encoded).reshape(count, -1)  # [count, *shape] -> [count, size]
                stored.append(flat.view(np.uint8))  # [count, bytes]
        self._file.write(np.concatenate(stored, axis=1).tobytes())
        self.count += count

    def close(self) -> None:
        """Finish the file and give it its name. Raises OSError where that fails; then there is no file. Idempotent."""
        if self._file.closed:
            return
        try:
            self._finish()
        except BaseException:
            self.abort()
            raise

    def _check_open(self) -> None:
        if self._file.closed:
            raise ArgumentError(f"the writer of {self._path} is closed; add samples before it is, or make another one")

    def _finish(self) -> None:
        self._file.seek(0)
        self._file.write(self._header.write()[:4])
        self._file.seek(self._header.count_offset)
        self._file.write(struct.pack("<Q", self.count))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.chmod(self._part, 0o666 & ~_umask())
        self._part.replace(self._path)

    def abort(self) -> None:
        """Give up, and leave no file. Idempotent; after `close` it changes nothing."""
        try:
            self._file.close()
        finally:
            self._part.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


def _create_part(path: Path) -> tuple[Path, IO[bytes]]:
    """Make the file beside `path` that becomes it. Raises ArgumentError, FileAccessError."""
    try:
        if path.exists() and not path.is_file():
            raise ArgumentError(f"{path} is no regular file, and would be replaced by one; name another")
        number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    except OSError as error:
        raise file_error(path, error) from error
    return Path(name), os.fdopen(number, "wb")


def _umask() -> int:
    current = os.umask(0o077)
    os.umask(current)
    return current


def _encoded(value: Any, leaf: Leaf, enc: Enc, where: _Location) -> NDArray[Any]:
    """Convert a value to what is stored. Raises DataError."""
    array = _array(value, where)
    if array.shape != leaf.shape:
        raise DataError("E9005", f"{where} has the shape {list(array.shape)}; its type says {list(leaf.shape)}")
    return _encoded_real(array, enc, where) if leaf.bound is None else _encoded_idx(array, leaf, leaf.bound, where)


def _array(value: Any, where: _Location) -> NDArray[Any]:
    if isinstance(value, np.ma.MaskedArray):
        raise DataError("E9004", f"{where} is a masked array, and a file has no mask; give what `.filled(…)` returns")
    try:
        array = np.asarray(value)
        if array.dtype == "<f8" and not isinstance(value, np.ndarray) and (np.abs(array) >= 2.0**53).any():
            array = np.asarray(value, object)  # numpy makes floats of [2**63 + 1, 1], rounded
    except Exception as error:  # ragged lists, or whatever an `__array__` of the caller's raises
        raise DataError("E9005", f"{where} is no array: {error}") from None
    return array


@dataclass(frozen=True, slots=True)
class _Location:
    """The place of values, for errors.

    Attributes:
        sample: Number of the first sample.
        leaf: Number of the leaf.
        rows: True if a leading axis counts samples from the first one on.
    """

    sample: int
    leaf: int
    rows: bool = False

    def __str__(self) -> str:
        return f"{'samples from' if self.rows else 'sample'} {self.sample}, leaf {self.leaf}"

    def element(self, place: list[int]) -> str:
        """Name one element by its place in the array."""
        if not self.rows:
            return f"{self}, element {place}"
        return f"sample {self.sample + place[0]}, leaf {self.leaf}, element {place[1:]}"


def _fail(where: _Location, array: NDArray[Any], wrong: NDArray[Any], problem: str) -> DataError:
    place = np.argwhere(wrong)[0].tolist()
    value = array[tuple(place)]
    told = str(value) if isinstance(value, np.generic) else shown(value)
    return DataError("E9004", f"{where.element(place)} is {told}; {problem}")


def _encoded_idx(array: NDArray[Any], leaf: Leaf, bound: int, where: _Location) -> NDArray[Any]:
    wrong = _not_numbers(array, "iu", Integral)
    if array.size and not wrong.any():
        wrong = np.asarray((array < 0) | (array >= bound), bool)
    if wrong.any():
        raise _fail(where, array, wrong, f"an idx[{bound}] is an integer in [0, {bound})")
    return array.astype(leaf.dtype(Enc.F64))


def _encoded_real(array: NDArray[Any], enc: Enc, where: _Location) -> NDArray[Any]:
    wrong = _not_numbers(array, "iuf", Real)
    if wrong.any():
        raise _fail(where, array, wrong, f"that is {array.dtype}, and ℝ holds numbers")
    exact = _rounded(array)
    wrong = ~np.isfinite(exact) | _differ(exact, array)
    if wrong.any():
        raise _fail(where, array, wrong, "ℝ has neither NaN nor infinities, and a file holds numbers of f64")
    if enc is Enc.F64:
        return exact
    with np.errstate(over="ignore", under="ignore"):
        single = exact.astype("<f4")
    bits = single.view("<u4")
    wrong = single.astype("<f8") != exact
    if enc is Enc.BF16:
        wrong |= (bits & np.uint32(0xFFFF)) != 0
    if wrong.any():
        raise _fail(where, array, wrong, f"that is no number of {enc.name.lower()}")
    return single if enc is Enc.F32 else (bits >> np.uint32(16)).astype("<u2")


def _not_numbers(array: NDArray[Any], kinds: str, kind: type) -> NDArray[np.bool_]:
    """Mark the elements that are no numbers of `kind`, as the dtypes of `kinds` are; a bool never is."""
    if array.dtype.kind != "O" or not array.size:
        return np.full(array.shape, array.dtype.kind not in kinds)
    found = [isinstance(value, bool) or not isinstance(value, kind) for value in array.flat]
    return np.array(found).reshape(array.shape)


def _rounded(array: NDArray[Any]) -> NDArray[np.float64]:
    """Round to the nearest numbers of f64, and to an infinity beyond them."""
    if array.dtype.kind == "O" and array.size:
        return np.array([_nearest(value) for value in array.flat]).reshape(array.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype("<f8")


def _nearest(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _differ(exact: NDArray[np.float64], array: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark the elements that are not the same number. numpy compares integers with floats as floats, rounded."""
    differ = np.asarray(exact != array, bool)
    if array.dtype.kind in "iu":
        large = np.abs(exact) >= 2.0**53
        differ[large] = exact[large].astype(object) != array[large].astype(object)
    return differ


def write_encoded(
    path: str | PathLike[str],
    type_text: str,
    samples: Iterable[Any],
    encodings: Sequence[Enc],
    layout: Layout | None = None,
) -> None:
    """Write a container, each real leaf in its encoding.

    Args:
        path, type_text, encodings, layout: As of `Writer`.
        samples: Each as `Writer.add` takes it.

    Raises:
        DataError, FileAccessError, ArgumentError: As `Writer`; then there is no file.
    """
    given = _iterated(samples)
    with Writer(path, type_text, encodings=encodings, layout=layout) as writer:
        for sample in given:
            writer.add(sample)


def write(path: str | PathLike[str], type_text: str, samples: Iterable[Any], layout: Layout | None = None) -> None:
    """Write a container with every real leaf in f64: a file of version 1. Arguments and errors as `write_encoded`."""
    write_encoded(path, type_text, samples, (), layout)


def _iterated(samples: Iterable[Any]) -> Iterator[Any]:
    try:
        return iter(samples)
    except TypeError:
        raise ArgumentError(f"samples is {shown(samples)}; it must be a sequence or an iterator of samples") from None
