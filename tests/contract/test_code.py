"""Digests of code: another body, constant, default or helper is another digest; another comment is none."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from loader_service import StackCollator
from loader_service.contract.code import is_shipped, public_name
from loader_service.contract.fingerprint import describe, function_digest
from loader_service.data import SyntheticLines

BEFORE = '''
import math
import numpy as np
from functools import lru_cache, wraps

SCALE = 2.0
MEANS = [0.5, 0.25]
LOGGER = object()

def helper(x):
    return x + 1

@lru_cache
def cached(x):
    return x * 3

def decorate(function):
    @wraps(function)
    def inner(*given):
        return function(*given)
    return inner

class Tool:
    def use(self, x):
        return x

def act(sample, rng, gain=1.5):
    """Do it."""
    LOGGER
    return helper(sample) * gain * SCALE + MEANS[0] + cached(2) + Tool().use(1) + math.pi + np.pi + (lambda: 5)()

@decorate
def decorated(sample, rng):
    return sample - 1

class Data:
    width = 8

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return self.read(index) * self.width

    @staticmethod
    def read(index):
        return index + 1

    @property
    def double(self):
        return 2 * self.n

    def __repr__(self):
        return "Data"
'''


def load(source: str) -> types.ModuleType:
    """The module of this text, under one name each time."""
    module = types.ModuleType("code_under_test")
    sys.modules["code_under_test"] = module
    exec(compile(source, "code_under_test.py", "exec"), vars(module))
    return module


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    sys.modules.pop("code_under_test", None)


def digests(source: str) -> tuple[Any, ...]:
    module = load(source)
    return describe(module.act), describe(module.decorated), describe(module.Data(4))


CHANGES: list[tuple[str, str, int]] = [
    ("return x + 1", "return x + 2", 0),
    ("return x * 3", "return x * 4", 0),
    ("SCALE = 2.0", "SCALE = 2", 0),
    ("MEANS = [0.5, 0.25]", "MEANS = [0.5, 0.75]", 0),
    ("gain=1.5", "gain=1.25", 0),
    ("(lambda: 5)", "(lambda: 6)", 0),
    ("math.pi", "math.e", 0),
    ("def use(self, x):\n        return x", "def use(self, x):\n        return -x", 0),
    ("return sample - 1", "return sample - 2", 1),
    ("return function(*given)", "return -function(*given)", 1),
    ("width = 8", "width = 9", 2),
    ("return index + 1", "return index + 2", 2),
    ("self.read(index) * self.width", "self.read(index) + self.width", 2),
    ("return 2 * self.n", "return 3 * self.n", 2),
]


@pytest.mark.parametrize(("old", "new", "which"), CHANGES, ids=[new for _, new, _ in CHANGES])
def test_an_edit_changes_the_digest_of_what_uses_it_and_of_nothing_else(old: str, new: str, which: int) -> None:
    assert old in BEFORE
    before, after = digests(BEFORE), digests(BEFORE.replace(old, new))
    assert [one != other for one, other in zip(before, after, strict=True)] == [place == which for place in range(3)]


SAME: list[tuple[str, str]] = [
    ('"""Do it."""', '"""Do it well."""'),
    ("import math\n", "import math\n\n\n# a comment\n"),
    ('return "Data"', 'return "Data!"'),
    ("LOGGER = object()", "LOGGER = object()  # another one"),
]


@pytest.mark.parametrize(("old", "new"), SAME, ids=[new for _, new in SAME])
def test_what_computes_nothing_changes_no_digest(old: str, new: str) -> None:
    assert old in BEFORE
    assert digests(BEFORE) == digests(BEFORE.replace(old, new))


def test_functions_that_refer_to_each_other_have_digests() -> None:
    source = "def even(n):\n    return n == 0 or odd(n - 1)\n\ndef odd(n):\n    return n != 0 and even(n - 1)\n"
    assert describe(load(source).even) != describe(load(source.replace("n != 0", "n > 0")).even)


def test_an_edited_base_class_is_seen_and_one_of_another_package_counts_by_its_name() -> None:
    source = "class Base:\n    def scale(self):\n        return 2\n\nclass Data(Base):\n    pass\n"
    assert describe(load(source).Data()) != describe(load(source.replace("return 2", "return 3")).Data())
    of_others = "from collections.abc import Sized\n\nclass Data(Sized):\n    def __len__(self):\n        return 2\n"
    assert describe(load(of_others).Data()) == describe(load(of_others).Data())


def test_what_is_shipped_is_described_by_its_public_name_and_without_its_code() -> None:
    assert public_name(StackCollator) == "loader_service:StackCollator"
    assert public_name(SyntheticLines) == "loader_service.data:SyntheticLines"
    assert is_shipped(StackCollator)
    assert describe(StackCollator()) == {"class": "loader_service:StackCollator", "arguments": {"name": "data"}}


def test_a_digest_is_the_same_each_time() -> None:
    act = load(BEFORE).act
    assert function_digest(act) == function_digest(act)
    assert digests(BEFORE) == digests(BEFORE)
