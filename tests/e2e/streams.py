"""Factories that the end-to-end tests serve: small streams, and datasets that misbehave on purpose."""

from __future__ import annotations

import ctypes
import io
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loader_service import ImageBatchCollator, ImageSample, PadCollator, ShuffledSampler, StackCollator, Stream
from loader_service.contract.rng import SampleRng
from loader_service.contract.samplers import SequentialSampler
from loader_service.data import SyntheticLines, synthetic_lines

__all__ = [
    "bad_transform",
    "corrupt",
    "dying",
    "ending",
    "growing",
    "hanging",
    "impure",
    "leaving",
    "odd_ones",
    "outlier",
    "padded",
    "short_last",
    "shuffled_slow",
    "slow",
    "small",
    "two_arguments",
]


def small(seed: int = 3, batch_size: int = 4) -> Stream:
    """50 line images with augmentation: 12 steps an epoch, shuffled."""
    return synthetic_lines(seed=seed, batch_size=batch_size, count=50)


def sample(index: int, width: int = 8) -> ImageSample:
    """A sample whose bytes are its index."""
    return ImageSample(np.full((1, 4, width), index, np.float32), np.array([index], np.int32), index)


@dataclass(frozen=True)
class Counted:
    """64 samples whose bytes are their indices; every read leaves a byte in `journal`."""

    journal: str = ""
    delay_s: float = 0.0

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int, /) -> ImageSample:
        if self.journal:
            with Path(self.journal).open("ab") as file:
                file.write(bytes([index]))
        time.sleep(self.delay_s)
        return sample(index)


def slow(delay_s: float = 0.0, journal: str = "") -> Stream:
    """Batches of 4 in order; each sample takes `delay_s`."""
    return Stream(Counted(journal, delay_s), SequentialSampler(64, 4), ImageBatchCollator(), seed=0)


@dataclass(frozen=True)
class Growing:
    """Sample i is i + 1 times as wide as sample 0: later batches need more memory."""

    unit: int = 64

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int, /) -> ImageSample:
        return sample(index, self.unit * (index + 1))


def growing(unit: int = 64) -> Stream:
    return Stream(Growing(unit), SequentialSampler(48, 4), ImageBatchCollator(), seed=0)


@dataclass(frozen=True)
class Outlier:
    """Samples of 4 KiB; those of one batch are 256 times as large."""

    step: int

    def __len__(self) -> int:
        return 4 * 64

    def __getitem__(self, index: int, /) -> ImageSample:
        return sample(index, 65536 if index // 4 == self.step else 256)


def outlier(step: int) -> Stream:
    return Stream(Outlier(step), SequentialSampler(256, 4), ImageBatchCollator(), seed=0)


class TwoArgumentError(Exception):
    """An exception that cannot be made again from its text alone."""

    def __init__(self, path: str, offset: int) -> None:
        super().__init__(f"bad record in {path} at {offset}")


@dataclass(frozen=True)
class Raising:
    bad: int

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int, /) -> ImageSample:
        if index == self.bad:
            raise TwoArgumentError("corpus.bin", 1234)
        return sample(index)


def two_arguments(bad: int = 37) -> Stream:
    return Stream(Raising(bad), SequentialSampler(64, 4), ImageBatchCollator(), seed=0)


@dataclass(frozen=True)
class Pictures:
    """64 JPEG files in memory, of which number `truncated` ends early."""

    truncated: int

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int, /) -> ImageSample:
        from PIL import Image

        file = io.BytesIO()
        Image.fromarray(np.full((16, 16), index, np.uint8)).save(file, "jpeg")
        data = file.getvalue()
        with Image.open(io.BytesIO(data[: len(data) // 2] if index == self.truncated else data)) as image:
            pixels = np.asarray(image, np.float32)
        return ImageSample(pixels[None], np.array([index], np.int32), index)  # [H, W] -> [1, H, W]


def corrupt(truncated: int = 37) -> Stream:
    return Stream(Pictures(truncated), SequentialSampler(64, 4), ImageBatchCollator(), seed=0)


@dataclass(frozen=True)
class Dying:
    """Ends its own process at sample `bad`, `times` times in all (counted in the file `journal`)."""

    journal: str
    bad: int
    times: int

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int, /) -> ImageSample:
        if index == self.bad:
            with Path(self.journal).open("ab") as file:
                file.write(b".")
            if Path(self.journal).stat().st_size <= self.times:
                self.end()
        return sample(index)

    def end(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def dying(journal: str, bad: int = 21, times: int = 1) -> Stream:
    return Stream(Dying(journal, bad, times), SequentialSampler(64, 4), ImageBatchCollator(), seed=0)


def shuffled_slow(delay_s: float = 0.002, seed: int = 5) -> Stream:
    return Stream(Counted(delay_s=delay_s), ShuffledSampler(64, 4, seed), ImageBatchCollator(), seed=seed)


@dataclass(frozen=True)
class Ending:
    """Raises what would end a process, at sample 37."""

    kind: str

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int, /) -> ImageSample:
        if index == 37:
            raise {"SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt, "GeneratorExit": GeneratorExit}[
                self.kind
            ](7)
        return sample(index)


def ending(kind: str) -> Stream:
    return Stream(Ending(kind), SequentialSampler(64, 4), ImageBatchCollator(), seed=0)


def leaving() -> Stream:
    raise SystemExit(7)


def deadlock() -> None:
    """Lock a mutex twice, in C code that holds the GIL: unlike CDLL, PyDLL keeps it."""
    mutex = ctypes.create_string_buffer(64)  # zeros are an unlocked one
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)


class Hanging(Dying):
    """The same, but that it blocks in C code that holds the GIL."""

    def end(self) -> None:
        deadlock()


def hanging(journal: str, bad: int = 21, times: int = 1) -> Stream:
    return Stream(Hanging(journal, bad, times), SequentialSampler(64, 4), ImageBatchCollator(), seed=0)


@dataclass(frozen=True)
class Impure:
    """One pixel of samples 12 and 14 is the number of the process; sample 21 can be read once only."""

    journal: str = ""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int, /) -> ImageSample:
        made = sample(index)
        if self.journal and index in (12, 14):
            made.image[0, 1, 2] = os.getpid()
        if self.journal and index == 21:
            Path(self.journal).open("x").close()
        return made


def impure(journal: str = "") -> Stream:
    return Stream(Impure(journal), SequentialSampler(64, 4), ImageBatchCollator(), seed=0)


@dataclass(frozen=True)
class OddOnes:
    """Sample 37 is of another `kind` than the others."""

    kind: str

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        odd = {"shape": np.zeros((3, 3), np.float32), "dtype": np.zeros((2, 3), np.float64), "type": "text"}
        return {"x": odd[self.kind] if index == 37 else np.full((2, 3), index, np.float32)}


def odd_ones(kind: str) -> Stream:
    return Stream(OddOnes(kind), SequentialSampler(64, 4), StackCollator(), seed=0)


def short_last() -> Stream:
    """50 samples in batches of 4, the last of two: 13 steps an epoch."""
    return Stream(SyntheticLines(50), ShuffledSampler(50, 4, 2, drop_last=False), ImageBatchCollator(4), seed=2)


@dataclass(frozen=True)
class Sequences:
    """40 samples of tokens, sample i of length i % 7."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        return {"ids": np.arange(index % 7, dtype=np.int32), "index": np.int64(index)}


def padded() -> Stream:
    return Stream(Sequences(), ShuffledSampler(40, 4, 1), PadCollator(), seed=1)


def _divide(made: ImageSample, rng: SampleRng) -> ImageSample:
    return ImageSample(made.image * np.float32(1 // (made.label - 2)), made.target, made.label)


def bad_transform() -> Stream:
    """A transform that fails for sample 2."""
    return Stream(Counted(), SequentialSampler(64, 4), ImageBatchCollator(), transform=_divide, seed=0)
