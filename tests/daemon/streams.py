"""Factories that the daemon's tests serve: a small stream, and some that go wrong on purpose."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from typing import Any

from loader_service import ShuffledSampler, Stream
from loader_service.contract.rng import SampleRng
from loader_service.data import synthetic_lines

__all__ = [
    "crashing",
    "deaf",
    "endless",
    "gripping",
    "leaving",
    "lingering",
    "odd",
    "refused",
    "slow",
    "small",
    "stuck",
]
__all__ += ["waning"]

_FOREVER_S = 600.0


def small(seed: int = 3, batch_size: int = 4) -> Stream:
    """40 line images in batches."""
    return synthetic_lines(seed=seed, batch_size=batch_size, count=40)


def odd() -> Stream:
    """Its description has half a character and an integer that no message can carry."""
    stream = small()
    stream.version, stream.sampler = "of the file \udcff", ShuffledSampler(40, 4, -(2**64 - 1))
    return stream


def _sleep(sample: Any, rng: SampleRng) -> Any:
    time.sleep(_FOREVER_S)
    return sample


def stuck() -> Stream:
    """No step of it is ever ready."""
    stream = small()
    stream.transform = _sleep
    return stream


def _grip(sample: Any, rng: SampleRng) -> Any:
    mutex = ctypes.create_string_buffer(64)  # zeros are an unlocked one
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)  # unlike CDLL, PyDLL keeps the GIL
    return sample


def gripping() -> Stream:
    """It blocks in C code that holds the GIL."""
    stream = small()
    stream.transform = _grip
    return stream


def _crash(sample: Any, rng: SampleRng) -> Any:
    ctypes.string_at(0)
    return sample


def crashing() -> Stream:
    """A segmentation fault."""
    stream = small()
    stream.transform = _crash
    return stream


def endless() -> Stream:
    """It is never made."""
    time.sleep(_FOREVER_S)
    return small()


class _Slow:
    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s

    def __call__(self, sample: Any, rng: SampleRng) -> Any:
        time.sleep(self.delay_s)
        return sample


def slow(delay_s: float) -> Stream:
    """Each sample takes `delay_s`."""
    stream = small()
    stream.transform = _Slow(delay_s)
    return stream


def waning(path: str) -> Stream:
    """It can be made while the file is there."""
    if not os.path.exists(path):
        raise FileNotFoundError(f"no data at {path}")
    return small()


def lingering() -> Stream:
    """A factory that leaves a thread behind, as data sets that read ahead do: its process does not end by itself."""
    threading.Thread(target=time.sleep, args=(600,)).start()
    return small()


def leaving(code: int) -> Stream:
    """The worker's process ends while it makes the stream."""
    os._exit(code)


def deaf() -> Stream:
    """The worker hangs up, and lives on."""
    os.closerange(3, 256)
    time.sleep(_FOREVER_S)
    return small()


def refused(path: str) -> Stream:
    """Raises."""
    raise FileNotFoundError(f"no data at {path}")
