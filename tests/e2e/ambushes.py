"""Datasets that do in `__getitem__` what their authors do: start processes, print, end their process."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loader_service import ImageBatchCollator, ImageSample, SequentialSampler, Stream
from tests.e2e.streams import sample

__all__ = ["ending_first", "leaving_children", "printing", "terminating", "with_a_pool"]


@dataclass(frozen=True)
class _Doing:
    """64 samples whose bytes are their indices; each is read after `action(index, text)`."""

    action: Callable[[int, str], object]
    text: str = ""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int, /) -> ImageSample:
        self.action(index, self.text)
        return sample(index)


def _stream(action: Callable[[int, str], object], text: str = "") -> Stream:
    return Stream(_Doing(action, text), SequentialSampler(64, 4), ImageBatchCollator(), seed=0)


def _terminate(index: int, text: str) -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        child.terminate()
        child.wait()


def terminating() -> Stream:
    """Each sample starts a process, and ends it with SIGTERM."""
    return _stream(_terminate)


def _map(index: int, text: str) -> None:
    if index == 0:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(abs, [-1, -2]) == [1, 2]


def with_a_pool() -> Stream:
    """The first sample uses a pool of forked processes, which ends them with SIGTERM."""
    return _stream(_map)


def _leave(index: int, text: str) -> None:
    if index == 0:
        ways: list[dict[str, object]] = [{}, {"process_group": 0}, {"start_new_session": True}]
        for options in ways:
            child = subprocess.Popen(["sleep", "600"], **options)  # type: ignore[call-overload]  # one of three
            with Path(text).open("a") as file:
                file.write(f"{child.pid}\n")


def leaving_children(journal: str) -> Stream:
    """The first sample starts processes, in each way to do that, and leaves them; `journal` gets their pids."""
    return _stream(_leave, journal)


def _print(index: int, text: str) -> None:
    for output in (sys.stdout, sys.stderr):
        print("x" * 20_000, file=output)
    os.write(1, b"y" * 20_000)


def printing() -> Stream:
    """Each sample prints 60 KB."""
    return _stream(_print)


def _end(index: int, text: str) -> None:
    os._exit(7)


def ending_first() -> Stream:
    """The first sample ends its process."""
    return _stream(_end)


def quiet() -> Stream:
    """The same samples, and nothing is done."""
    return _stream(lambda index, text: None)


__all__ += ["quiet"]
