"""Rates of the container beside numpy on the same bytes: `python -m benchmarks.pskd [--rounds N]`.

It reads random batches from a file of language-model windows and from one of images, by `Reader.read` and by indexing a
numpy.memmap of the same samples, and writes the same samples by `Writer` and by numpy's `tofile`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.timing import Case, print_results, run
from loader_service.data.pskd import Enc, Reader, Writer, write
from loader_service.data.pskd.layout import leaves

_COUNT, _BATCH, _BATCHES = 20_000, 128, 50
_TYPES = {"windows": "(idx[200][seq: 256], idx[200][seq: 256])", "images": "(ℝ[28, 28], idx[10][])"}


def _samples(name: str) -> list[Any]:
    rng = np.random.default_rng(1)
    if name == "windows":
        tokens = rng.integers(0, 200, (_COUNT, 257), np.uint8)
        return [(row[:-1], row[1:]) for row in tokens]
    pixels, labels = rng.standard_normal((2_000, 28, 28)), rng.integers(0, 10, 2_000, np.uint8)
    return list(zip(pixels, labels, strict=True))


def _cases(name: str, directory: Path) -> list[Case]:
    samples, path = _samples(name), directory / f"{name}.psk.d"
    write(path, _TYPES[name], samples)
    reader = Reader(path)
    assert reader.header.layout is not None  # the type tells it
    found = list(leaves(reader.header.layout))
    dtype = np.dtype([(str(place), leaf.dtype(Enc.F64), leaf.shape) for place, leaf in enumerate(found)])
    mapped = np.memmap(path, dtype, "r", reader.header.nbytes)
    rng = np.random.default_rng(2)
    batches = [rng.integers(0, len(samples), _BATCH) for _ in range(_BATCHES)]
    rows = np.array(mapped)

    def by_numpy() -> list[NDArray[Any]]:
        taken = [mapped[batch] for batch in batches]
        return [np.ascontiguousarray(rows[field]) for rows in taken for field in dtype.names or ()]

    def by_rows() -> None:
        with Writer(directory / "again", _TYPES[name]) as writer:
            writer.add_rows(tuple(np.stack(column) for column in zip(*samples, strict=True)))

    def one_by_one() -> None:
        write(directory / "again", _TYPES[name], samples)

    count = _BATCH * _BATCHES
    return [
        Case(f"read {name}", "numpy.memmap", by_numpy, count, "sample"),
        Case(f"read {name}", "Reader.read", lambda: [reader.read(batch) for batch in batches], count, "sample"),
        Case(f"write {name}", "numpy tofile", lambda: rows.tofile(directory / "raw"), len(samples), "sample"),
        Case(f"write {name}", "Writer.add_rows", by_rows, len(samples), "sample"),
        Case(f"write {name}", "write, one by one", one_by_one, len(samples), "sample"),
    ]


def main() -> None:
    """Run all cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        cases = [case for name in _TYPES for case in _cases(name, Path(directory))]
        print_results(run(cases, arguments.rounds))


if __name__ == "__main__":
    main()
