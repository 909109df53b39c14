"""One build in process: `python -m benchmarks.builds [--rounds N] [--steps N]`.

The reference workload by kernels and by numpy, beside a cold memcpy of 4 MiB into a ring of 8 (M) and the best numpy
build (N) of the same images; token windows of a .npy and a .psk.d file, beside numpy's fancy indexing of a memmap; and
the first batch of datasets from 10^3 to 10^12 samples, at step 0 and at the last.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.lines import BATCH, DEPTH, SLOT_BYTES, Lines, NumpyBuild, Slot, epochs
from benchmarks.timing import Case, print_results, run
from loader_service import ShuffledSampler, StackCollator, Stream
from loader_service.contract.buffers import aligned_empty
from loader_service.contract.fused import CompiledMode, compiles, set_compiled, warm_up
from loader_service.contract.layout import Layout
from loader_service.data import synthetic_lines
from loader_service.data.pskd import LmWindows, PskdDataset, write

_SEQ, _WINDOWS, _VOCAB, _COUNT = 1024, 32, 50_257, 4_096


def _turns(steps: int, act: Callable[[int], object]) -> Callable[[], object]:
    """`act` for the next `steps` numbers."""
    numbers = count()

    def turn() -> None:
        for _ in range(steps):
            act(next(numbers))

    return turn


def _into_ring(stream: Stream, mode: CompiledMode, ring: list[NDArray[np.uint8]]) -> Callable[[int], object]:
    def build(step: int) -> None:
        set_compiled(mode)

        def allocate(layout: Layout) -> NDArray[np.uint8]:
            return ring[step % DEPTH][: layout.nbytes]

        stream.build_into(step, allocate)

    return build


def _modes() -> list[tuple[str, CompiledMode]]:
    set_compiled("auto")
    modes: list[tuple[str, CompiledMode]] = [("numpy", "off")]
    if compiles():
        warm_up()
        modes.append(("kernels", "on"))
    return modes


def _line_cases(steps: int) -> list[Case]:
    ring = [aligned_empty(SLOT_BYTES + 4096) for _ in range(DEPTH)]
    slots = [Slot(memory) for memory in ring]
    sources = np.random.default_rng(0).random((10, slots[0].floats.size), np.float32)
    lines = Lines.load()
    numpy_build, order = NumpyBuild(lines, 0), epochs(len(lines), 0)

    def memcpy(step: int) -> None:
        np.copyto(slots[step % DEPTH].floats, sources[step % len(sources)])

    def best(step: int) -> None:
        numpy_build(next(order), slots[step % DEPTH])

    cases = [
        Case("lines", "M: memcpy of 4 MiB", _turns(steps, memcpy), steps, "batch"),
        Case("lines", "N: the best numpy build", _turns(steps, best), steps, "batch"),
    ]
    for name, mode in _modes():
        for told, augment in (("gain and offset", True), ("no augmentation", False)):
            build = _into_ring(synthetic_lines(augment=augment), mode, ring)
            cases.append(Case("lines", f"Stream by {name}, {told}", _turns(steps, build), steps, "batch"))
    return cases


def _token_cases(steps: int, directory: Path) -> list[Case]:
    tokens = np.random.default_rng(0).integers(0, _VOCAB, _COUNT * _SEQ + 1).astype(np.uint16)
    np.save(directory / "tokens.npy", tokens)
    rows = [(tokens[at : at + _SEQ], tokens[at + 1 : at + 1 + _SEQ]) for at in range(0, _COUNT * _SEQ, _SEQ)]
    write(directory / "tokens.psk.d", f"(idx[{_VOCAB}][{_SEQ}], idx[{_VOCAB}][{_SEQ}])", rows)
    mapped = np.load(directory / "tokens.npy", mmap_mode="r")
    order = np.random.default_rng(1).permutation(_COUNT)

    def fancy(step: int) -> None:
        starts = order[step * _WINDOWS % (_COUNT - _WINDOWS) :][:_WINDOWS] * _SEQ
        mapped[starts[:, np.newaxis] + np.arange(_SEQ)]
        mapped[starts[:, np.newaxis] + np.arange(1, _SEQ + 1)]

    cases = [Case("tokens", "numpy, fancy indexing of a memmap", _turns(steps, fancy), steps, "batch")]
    ring = [aligned_empty(1 << 20) for _ in range(DEPTH)]
    datasets: dict[str, Any] = {
        ".npy": LmWindows(directory / "tokens.npy", _SEQ, _SEQ, _VOCAB),
        ".psk.d": PskdDataset(directory / "tokens.psk.d", ("tokens", "targets")),
    }
    for kind, dataset in datasets.items():
        stream = Stream(dataset, ShuffledSampler(_COUNT, _WINDOWS, 0), StackCollator(), seed=0)
        for name, mode in _modes():
            build = _into_ring(stream, mode, ring)
            cases.append(Case("tokens", f"Stream by {name}, windows of {kind}", _turns(steps, build), steps, "batch"))
    return cases


class _Endless:
    """A dataset of any size whose samples cost nothing."""

    fingerprint = "benchmarks.builds:_Endless"

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int, /) -> NDArray[np.int64]:
        return np.full(16, index)


def _growth_cases() -> list[Case]:
    cases = []
    for power in (3, 6, 9, 12):
        for told, last in (("step 0", False), ("the last step", True)):
            cases.append(Case("growth", f"first batch of 10^{power}, {told}", _first(10**power, last), 1, "batch"))
    return cases


def _first(size: int, last: bool) -> Callable[[], object]:
    seeds = count()  # another order each time: nothing that is kept helps

    def build() -> None:
        stream = Stream(_Endless(size), ShuffledSampler(size, BATCH, next(seeds)), StackCollator(), seed=0)
        stream.build(stream.steps_per_epoch - 1 if last else 0)

    return build


def main() -> None:
    """Run all and print the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.builds", description="Measure one build in process.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=160, help="builds of a case in a round")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ls-builds-") as directory:
        print_results(run(_line_cases(arguments.steps), arguments.rounds))
        print_results(run(_token_cases(arguments.steps, Path(directory)), arguments.rounds))
        print_results(run(_growth_cases(), arguments.rounds))


if __name__ == "__main__":
    main()
