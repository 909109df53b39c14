"""Compiled code is kept on disk, and a machine where nothing can be written still builds the same batches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from loader_service.augment import image_kernel
from loader_service.contract.fused import set_compiled, warm_up
from loader_service.data import synthetic_lines

BUILD = """
from loader_service.contract.fused import set_compiled, warm_up
from loader_service.data import synthetic_lines
set_compiled("on")
warm_up()
print(synthetic_lines(count=64, batch_size=8).build(3).digest())
"""
NO_DIRECTORY = """
from numba.core import caching
caching.CacheImpl._locator_classes = []
"""
FULL_DISK = """
import errno
from numba.core import caching
def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")
caching.IndexDataCacheFile._open_for_write = full
"""


def digest(code: str, directory: Path) -> str:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(directory)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ambush", ["", NO_DIRECTORY, FULL_DISK], ids=["writeable", "no directory", "full disk"])
def test_the_batch_is_the_same_whatever_can_be_written(ambush: str, tmp_path: Path) -> None:
    set_compiled("off")
    expected = synthetic_lines(count=64, batch_size=8).build(3).digest()
    assert digest(ambush + BUILD, tmp_path) == expected
    kept = list(tmp_path.rglob("*.nbc"))
    assert bool(kept) == (ambush == "")
    if kept:
        written = {path: path.stat().st_mtime_ns for path in kept}
        assert digest(BUILD, tmp_path) == expected
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")} == written, "read, not made again"


def test_a_kernel_that_is_at_no_module_is_left_until_it_is_used() -> None:
    set_compiled("on")
    before = warm_up()

    @image_kernel
    def broken(image: np.ndarray, rng: np.ndarray, options: np.ndarray) -> None:
        image.no_such_attribute()  # type: ignore[attr-defined]  # what no compiler takes

    assert warm_up() == before
    assert repr(broken()) == f"{broken.__qualname__}()"
