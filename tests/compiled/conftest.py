"""Compiled builds, beside numpy and the scalar reading of the rules: for an environment with numba (extra `fast`).

`nox -s compiled` makes one, and runs the tests of the contract and the data room in it too: there they are built by
kernels. Elsewhere this folder is not collected.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from loader_service.contract.fused import set_compiled

collect_ignore_glob = [] if find_spec("numba") else ["test_*.py"]


@pytest.fixture(autouse=True)
def _chosen_again() -> Iterator[None]:
    yield
    set_compiled("auto")
