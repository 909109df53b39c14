"""The streams of a soak: the bytes that the checks expect, one outlier an epoch, and children that end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.processes import processes_with_environment
from benchmarks.soak.streams import CHILD_COMMAND, OutlierLines, make_streams, outlier_lines
from tests.e2e.harness import ROOT


@pytest.mark.parametrize("seed", [0, 5])
def test_one_batch_of_an_epoch_is_an_outlier(seed: int) -> None:
    stream = outlier_lines(seed)
    sizes = [stream.layout(step).nbytes for step in range(stream.steps_per_epoch)]
    assert sum(size > 1 << 20 for size in sizes) == 1
    assert sorted(sizes)[-2] <= 140_000


def test_the_widths_that_are_told_are_those_of_the_images() -> None:
    dataset = OutlierLines(3)
    indices = np.array([0, 7, 199])
    assert dataset.widths(indices).tolist() == [dataset[index].image.shape[2] for index in indices.tolist()]


_READ = """
from benchmarks.soak.streams import process_lines
print(*(process_lines(4).build(step).digest() for step in range(3)))
"""


def test_a_dataset_that_starts_processes_gives_the_bytes_of_the_plain_one(tmp_path: Path) -> None:
    """In a process of its own, which leaves one child running; that is what the daemon must end."""
    mark = f"{os.getpid()} soak streams"
    environment = {**os.environ, "A_MARK_OF_THIS_TEST": mark}
    command = [sys.executable, "-W", "ignore", "-c", _READ]
    with (tmp_path / "digests").open("w") as output:  # a pipe would stay open as long as the child lives
        subprocess.run(command, stdout=output, cwd=ROOT, env=environment, check=True)
    expected = [make_streams(4)["processes"].build(step).digest() for step in range(3)]
    assert (tmp_path / "digests").read_text().split() == expected
    left = list(processes_with_environment("A_MARK_OF_THIS_TEST", mark))
    assert [command.split() for _, command in left] == [CHILD_COMMAND]
    for pid, _ in left:
        os.kill(pid, 9)
