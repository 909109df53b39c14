"""Fingerprints: equal in two processes, unequal after any change, refused where they would be a guess."""

from __future__ import annotations

import functools
import json
import math
import os
import re
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
from dataclasses import InitVar, dataclass, replace
from enum import Enum
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest

from loader_service.contract.augment import GainOffset
from loader_service.contract.collate import ImageBatchCollator
from loader_service.contract.fingerprint import describe, digest
from loader_service.contract.rng import SampleRng
from loader_service.contract.sample import ImageSample
from loader_service.contract.samplers import SequentialSampler, ShuffledSampler
from loader_service.contract.stream import Stream
from loader_service.data import SyntheticLines, synthetic_lines
from loader_service.errors import FingerprintError

ELSEWHERE = """
from loader_service.contract.fingerprint import describe, digest
from loader_service.data import synthetic_lines
print(synthetic_lines(seed=7, count=256).fingerprint)
print(digest(describe({"a": {"x", "y", "z"}, "b": frozenset("pqr")})))
"""


def keep(sample: ImageSample, rng: SampleRng) -> ImageSample:
    return sample


def keep_too(sample: ImageSample, rng: SampleRng) -> ImageSample:
    return sample


class Colour(Enum):
    RED = 1
    BLUE = 2


class Keeper:
    """Keeps its arguments, one of them under a private name."""

    def __init__(self, size: int, mode: str) -> None:
        self.size, self._mode = size, mode

    def transform(self, sample: ImageSample, rng: SampleRng) -> ImageSample:
        return sample


class Forgetful:
    def __init__(self, size: int) -> None:
        self.double = 2 * size


class Described:
    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint


class Bare:
    """Takes no arguments; what it has was set later, or is cached."""

    @functools.cached_property
    def table(self) -> list[int]:
        return [1, 2, 3]


class Slotted:
    __slots__ = ("gain",)
    gain: int


@dataclass(frozen=True)
class Point:
    x: int


class Segment(Point):
    """Not a dataclass itself: its own argument is no field."""

    def __init__(self, x: int, length: int) -> None:
        super().__init__(x)
        object.__setattr__(self, "length", length)


def slotted(gain: int) -> Slotted:
    thing = Slotted()
    thing.gain = gain
    return thing


def bare(**attributes: Any) -> Bare:
    thing = Bare()
    vars(thing).update(attributes)
    return thing


def make_stream(**parts: Any) -> Stream:
    stream = synthetic_lines(seed=7, count=256)
    whole: dict[str, Any] = {
        "dataset": stream.dataset,
        "sampler": stream.sampler,
        "collator": stream.collator,
        "seed": 7,
    }
    return Stream(**whole | parts)


def test_two_processes_agree() -> None:
    answers = set()
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-W", "error", "-c", ELSEWHERE]
        answers.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    here = digest(describe({"a": {"x", "y", "z"}, "b": frozenset("pqr")}))
    assert answers == {f"{make_stream().fingerprint}\n{here}\n"}


CHANGES: dict[str, dict[str, Any]] = {
    "seed": {"seed": 8},
    "sampler seed": {"sampler": ShuffledSampler(256, 128, 8)},
    "sampler n": {"sampler": ShuffledSampler(255, 128, 7)},
    "batch size": {"sampler": ShuffledSampler(256, 64, 7)},
    "drop last": {"sampler": ShuffledSampler(256, 128, 7, drop_last=False)},
    "sampler class": {"sampler": SequentialSampler(256, 128)},
    "dataset seed": {"dataset": SyntheticLines(256, seed=8)},
    "dataset length": {"dataset": SyntheticLines(257, seed=7)},
    "dataset height": {"dataset": SyntheticLines(256, height=16, seed=7)},
    "transform": {"transform": keep},
    "other transform": {"transform": keep_too},
    "bound transform": {"transform": Keeper(1, "a").transform},
    "other object": {"transform": Keeper(2, "a").transform},
    "partial": {"transform": functools.partial(keep)},
    "width multiple": {"collator": ImageBatchCollator(8, augmentation=GainOffset())},
    "pad value": {"collator": ImageBatchCollator(4, -0.0, GainOffset())},
    "no augmentation": {"collator": ImageBatchCollator(4)},
    "augmentation": {"collator": ImageBatchCollator(4, augmentation=GainOffset(gain_low=0.5))},
    "version": {"version": "1"},
}


def test_each_changed_part_changes_the_fingerprint() -> None:
    prints = {name: make_stream(**parts).fingerprint for name, parts in CHANGES.items()}
    prints["unchanged"] = make_stream().fingerprint
    assert len(set(prints.values())) == len(prints)


def test_a_seed_and_its_twos_complement_are_one() -> None:
    assert make_stream(seed=-1).fingerprint == make_stream(seed=2**64 - 1).fingerprint


def test_reading_samples_does_not_change_a_fingerprint() -> None:
    stream = make_stream()
    before = stream.fingerprint
    stream.build(0)
    assert make_stream(dataset=stream.dataset).fingerprint == before


DIFFERENT: list[list[Any]] = [
    [1, 1.0, "1", b"1", True, None, np.int64(1), np.int32(1), [1], (1,), {1}, {"1": 1}],
    [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324],
    [b"", b"\0", ""],
    [np.zeros(2), np.zeros(3), np.zeros((2, 1)), np.zeros(2, np.float32), np.ones(2), np.zeros((1, 2))],
    [np.dtype("<f4"), np.dtype(">f4"), "<f4"],
    [Colour.RED, Colour.BLUE, Colour],
    [PurePosixPath("a"), PurePosixPath("b"), "a"],
    [keep, keep_too, len, math.sqrt, math.sin, np.array],
    [functools.partial(pow, 1), functools.partial(pow, 2), functools.partial(pow, exp=1), pow],
    [Keeper(1, "a"), Keeper(2, "a"), Keeper(1, "b"), Keeper(1, "a").transform, Keeper.transform],
    [Described("a"), Described("b")],
    [bare(), bare(gain=1), bare(gain=2), Bare],
    [[1].index, [2].index],
    [Point(1), Point(2), Segment(1, 5), Segment(1, 6)],
    [1j, -1j, complex(-0.0, 1), [0.0, 1.0]],
    [range(3), range(1, 3), range(0, 3, 2), [0, 1, 2]],
    [Fraction(1, 2), Fraction(1, 3)],
    [slotted(1), slotted(2)],
    [np.add, np.multiply],
]


@pytest.mark.parametrize("values", DIFFERENT, ids=lambda values: re.sub(" at 0x[0-9a-f]+", "", repr(values))[:40])
def test_different_values_have_different_descriptions(values: list[Any]) -> None:
    assert len({digest(describe(value)) for value in values}) == len(values)


def test_equal_values_have_equal_descriptions() -> None:
    strided = np.arange(12).reshape(3, 4)[:, ::2]
    assert describe(strided) == describe(strided.copy())
    assert describe(Keeper(1, "a")) == describe(Keeper(1, "a"))
    assert digest(describe({"a": 1, "b": 2})) != digest(describe({"b": 2, "a": 1})), "the order names a tree's tensors"


def test_what_an_object_has_cached_is_no_part_of_it() -> None:
    used = bare(gain=1)
    assert used.table == [1, 2, 3]
    assert describe(used) == describe(bare(gain=1))


def local_function() -> Callable[..., Any]:
    def shift(sample: ImageSample, rng: SampleRng) -> ImageSample:
        return sample

    return shift


def local_object() -> object:
    @dataclass
    class Local:
        gain: int = 1

    return Local()


@pytest.mark.parametrize(
    "vague",
    [
        lambda sample, rng: sample,
        local_function(),
        local_object(),
        type(local_object()),
        functools.partial(local_function(), 1),
        np.frompyfunc(len, 1, 1),
        np.array([object()]),
    ],
    ids=lambda vague: type(vague).__name__,
)
def test_what_cannot_be_told_apart_is_refused_by_name(vague: Any) -> None:
    with pytest.raises(FingerprintError, match=r"^E1102: transform is .*`?version`?"):
        describe(vague, "transform")


def test_a_class_that_forgets_its_argument_is_refused_with_the_arguments_name() -> None:
    with pytest.raises(FingerprintError, match=r"dataset\.source is .*Forgetful that keeps no .*'size'"):
        describe({"source": Forgetful(3)}, "dataset")


def test_a_version_stands_for_what_cannot_be_described() -> None:
    closures = {"transform": lambda sample, rng: sample}
    with pytest.raises(FingerprintError, match="transform is"):
        _ = make_stream(**closures).fingerprint
    first, second = make_stream(**closures, version="1"), make_stream(**closures, version="2")
    assert first.fingerprint == make_stream(**closures, version="1").fingerprint != second.fingerprint


def test_a_version_still_tells_samplers_and_seeds_apart() -> None:
    sampler = make_stream().sampler
    assert isinstance(sampler, ShuffledSampler)
    streams = [
        make_stream(version="1"),
        make_stream(version="1", seed=8),
        make_stream(version="1", sampler=replace(sampler, batch_size=2)),
    ]
    assert len({stream.fingerprint for stream in streams}) == 3


def _wrapped(gain: int) -> Callable[..., Any]:
    @functools.wraps(describe)
    def scale(*given: Any) -> Any:
        return gain

    return scale


class Longer(list[int]):
    """A list with a state of its own."""


@pytest.mark.parametrize(
    "value",
    [
        _wrapped(1),
        Longer([1]),
        np.zeros(2, [("a", "i4"), ("b", "f4")]),
        np.ma.masked_array([1, 2], [True, False]),
    ],
    ids=["wrapper", "subclass", "structured", "masked"],
)
def test_what_would_be_a_guess_is_refused(value: Any) -> None:
    with pytest.raises(FingerprintError):
        digest(describe(value))


def test_numbers_of_any_length_are_described() -> None:
    assert len({digest(describe(number)) for number in (10**5000, 10**5000 + 1, -(10**5000), 2**64, 2**64 - 1)}) == 5


def test_what_holds_itself_is_refused() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(FingerprintError, match="RecursionError"):
        describe(cycle)


@dataclass
class FromEnvironment:
    """An InitVar is an argument that no field keeps."""

    root: InitVar[str] = "data"
    size: int = 3

    def __post_init__(self, root: str) -> None:
        self.places = [root] * self.size


class Root:
    def __init__(self, root: str) -> None:
        self.root = root


class Branch(Root):
    """Its own constructor takes nothing; what its base gets comes from elsewhere."""

    def __init__(self) -> None:
        super().__init__(os.environ["FINGERPRINT_ROOT"])


class Blind(Root):
    def __init__(self, root: str) -> None:
        super().__init__(root)
        del self.root


class HandsOn(Root):
    def __init__(self, size: int, **others: Any) -> None:
        super().__init__(**others)
        self.size = size


class Seeing:
    """Keeps its argument, and what it found with it; a lock cannot be described, and need not be."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.found = os.environ["FINGERPRINT_ROOT"]
        self.lock = threading.Lock()


def test_an_argument_that_only_post_init_sees_is_refused() -> None:
    with pytest.raises(FingerprintError, match="keeps no attribute for its argument 'root'"):
        describe(FromEnvironment("a"))


def test_arguments_of_base_classes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for root in ("a", "b"):
        monkeypatch.setenv("FINGERPRINT_ROOT", root)
        found.append(describe(Branch()))
    assert found[0] != found[1]
    assert found[0]["arguments"] == {"root": "a"}
    assert describe(HandsOn(1, root="a"))["arguments"] == {"size": 1, "root": "a"}
    with pytest.raises(FingerprintError, match="keeps no attribute for its argument 'root'"):
        describe(Blind("a"))


def test_what_an_object_found_beside_its_arguments_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for root in ("a", "b"):
        monkeypatch.setenv("FINGERPRINT_ROOT", root)
        found.append(describe(Seeing(3)))
    assert found[0]["attributes"] == {"found": "a", "lock": {"undescribed": "_thread:lock"}}
    assert found[1]["attributes"]["found"] == "b"


LONG: list[Any] = [
    [f"image_{place}.png" for place in range(10**5)],
    [{"path": f"{place}", "label": place} for place in range(10**4)],
    {f"{place}": place for place in range(10**5)},
    {f"{place}" for place in range(10**5)},
    tuple(PurePosixPath(f"{place}") for place in range(10**4)),
    "x" * 10**6,
    b"x" * 10**6,
    10**10000,
    [["x" * 200] * 60] * 60,
    np.zeros(10**6),
    Keeper(1, "x" * 10**6),
    [Keeper(place, "a") for place in range(200)],
]


@pytest.mark.parametrize("value", LONG, ids=lambda value: type(value).__name__)
def test_the_description_of_a_long_value_is_short(value: Any) -> None:
    description = describe(value)
    assert len(json.dumps(description)) < 5000
    assert describe(value) == description


def test_another_item_of_a_long_value_is_another_description() -> None:
    names = [f"image_{place}.png" for place in range(10**5)]
    assert describe(names) != describe([*names[:-1], "image_x.png"])
    assert describe(dict.fromkeys(names, 1)) != describe(dict.fromkeys(names, 2))
    assert describe(set(names)) != describe(set(names[:-1]))


def test_more_objects_than_can_be_described_in_a_bounded_time_are_refused() -> None:
    with pytest.raises(FingerprintError, match="at a bounded cost"):
        describe([Keeper(1, "a")] * 100_001)


def test_a_mapped_file_of_a_gibibyte_is_described_at_once(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "data", np.uint8, "w+", shape=(1 << 30,))
    tracemalloc.start()
    try:
        description = describe(mapped)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    mapped[-1] = 1
    assert describe(mapped) != description
