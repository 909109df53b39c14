"""Factories that the daemon's tests serve: a small stream, and some that go wrong on purpose."""

from __future__ import annotations

import os
import time
from typing import Any

from loader_service import Stream
from loader_service.core.collate import ImageBatchCollator
from loader_service.core.rng import SampleRng
from loader_service.data import synthetic_lines

__all__ = ["deaf", "leaving", "odd", "refused", "small", "stuck"]

_FOREVER_S = 600.0


def small(seed: int = 3, batch_size: int = 4) -> Stream:
    """40 line images in batches."""
    return synthetic_lines(seed=seed, batch_size=batch_size, count=40)


def odd() -> Stream:
    """Its description has half a character and an integer that no message can carry."""
    stream = small()
    stream.version, stream.collator = "of the file \udcff", ImageBatchCollator(pad_value=-(2**64 - 1))
    return stream


def _sleep(sample: Any, rng: SampleRng) -> Any:
    time.sleep(_FOREVER_S)
    return sample


def stuck() -> Stream:
    """No step of it is ever ready."""
    stream = small()
    stream.transform = _sleep
    return stream


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
