"""The names at the top of the package: all there, all shown, none loaded before it is used."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import loader_service
from loader_service import (
    BatchContext,
    BucketedSampler,
    ImageBatchCollator,
    ImageSample,
    Layout,
    Loader,
    MixingSampler,
    PadCollator,
    RngArray,
    SampleRng,
    SequentialSampler,
    Shard,
    ShuffledSampler,
    SlotError,
    StackCollator,
    Stream,
)
from loader_service.augment import Blur, Compose, Erase, GainOffset, Noise, Shear
from loader_service.data import SyntheticLines


@pytest.mark.parametrize("name", loader_service.__all__)
def test_a_public_name_is_there_and_shown(name: str) -> None:
    assert getattr(loader_service, name) is not None
    assert name in dir(loader_service)


def test_names_are_shown_before_they_are_used_and_nothing_is_loaded_for_it() -> None:
    code = (
        "import sys, loader_service\n"
        "assert set(loader_service.__all__) <= set(dir(loader_service))\n"
        "assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_name_that_there_is_not_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Steam'"):
        _ = loader_service.Steam


IMAGE = ImageSample(np.zeros((1, 2, 3), np.float32), np.zeros(2, np.int32), 5)
VALUES: list[Any] = [
    SampleRng(7),
    RngArray([1, 2]),
    Shard(1, 4),
    SequentialSampler(10, 2),
    ShuffledSampler(10, 2, 3),
    BucketedSampler([3, 1, 2], 1, 2, 5),
    MixingSampler([3, 4], [1, 2], 2, 5),
    StackCollator(),
    PadCollator(2, {"ids": 3}),
    ImageBatchCollator(4, augmentation=GainOffset()),
    GainOffset(),
    Noise(),
    Blur(),
    Shear(),
    Erase(),
    Compose(GainOffset(), Blur()),
    Layout.plan([("a", "f4", [2])]),
    Layout.plan([("a", "f4", [2])]).tensors[0],
    BatchContext(1, 2, 3, np.arange(4)),
    IMAGE,
    SlotError(3, ValueError("text")),
    SyntheticLines(10),
    Stream([1, 2], SequentialSampler(2, 1), StackCollator(), seed=0),
    Stream([1, 2], SequentialSampler(2, 1), StackCollator(), seed=0).explain(1),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_a_value_survives_copies_and_pickle(value: Any, again: Any) -> None:
    assert type(again(value)) is type(value)
    assert repr(again(value)) == repr(value)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_says_what_it_is(value: Any) -> None:
    assert repr(value).startswith(type(value).__name__)
    assert " object at 0x" not in repr(value)
    assert len(repr(value)) < 1000


def test_streams_and_loaders_say_what_they_are_made_of() -> None:
    stream = Stream(SyntheticLines(10), ShuffledSampler(10, 2, 3), ImageBatchCollator(), seed=7, version="1")
    for part in ("SyntheticLines", "ShuffledSampler(n=10, batch_size=2, seed=3", "ImageBatchCollator", "seed=7"):
        assert part in repr(stream)
    assert repr(Loader(stream, 4)) == f"Loader({stream!r}, next step 4)"
