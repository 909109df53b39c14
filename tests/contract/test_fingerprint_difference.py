"""Differences between two streams, in words; and an empty text exactly where their fingerprints are equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loader_service import explain_difference
from loader_service.contract.augment import Blur, Compose, GainOffset, Noise
from loader_service.contract.collate import ImageBatchCollator, PadCollator, StackCollator
from loader_service.contract.fingerprint import describe
from loader_service.contract.rng import SampleRng
from loader_service.contract.sample import ImageSample
from loader_service.contract.samplers import BucketedSampler, MixingSampler, SequentialSampler, ShuffledSampler
from loader_service.contract.stream import Stream
from loader_service.data import ConcatDataset, SyntheticLines
from loader_service.errors import FingerprintError

PARTS: dict[str, Any] = {
    "dataset": SyntheticLines(256),
    "sampler": ShuffledSampler(256, 8, 7),
    "collator": ImageBatchCollator(4, augmentation=GainOffset()),
    "seed": 7,
}


def keep(sample: ImageSample, rng: SampleRng) -> ImageSample:
    return sample


def make_stream(**changes: Any) -> Stream:
    return Stream(**PARTS | changes)


AUGMENTED = "collator.arguments.augmentation"
CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"seed": 8}, "seed: 7 here, 8 there"),
    ({"sampler": ShuffledSampler(256, 8, 6)}, "sampler.arguments.seed: 7 here, 6 there"),
    ({"sampler": ShuffledSampler(256, 16, 7)}, "sampler.arguments.batch_size: 8 here, 16 there"),
    ({"sampler": ShuffledSampler(255, 8, 7)}, "sampler.arguments.n: 256 here, 255 there"),
    ({"sampler": ShuffledSampler(256, 8, 7, False)}, "sampler.arguments.drop_last: true here, false there"),
    ({"dataset": SyntheticLines(300)}, "dataset.arguments.count: 256 here, 300 there"),
    ({"dataset": SyntheticLines(300)}, "dataset.length: 256 here, 300 there"),
    ({"dataset": SyntheticLines(256, height=16)}, "dataset.arguments.height: 32 here, 16 there"),
    ({"dataset": ConcatDataset([SyntheticLines(256)])}, '"loader_service.data:ConcatDataset" there'),
    ({"transform": keep}, f'transform: null here, {{"function": "{__name__}:keep", "code": '),
    ({"transform": keep}, 'shard_padding: "global" here, "own" there'),
    ({"collator": ImageBatchCollator(8, 0.0, GainOffset())}, "collator.arguments.width_multiple: 4 here, 8 there"),
    ({"collator": ImageBatchCollator(4, 0.5, GainOffset())}, "collator.arguments.pad_value: 0.0 here, 0.5 there"),
    (
        {"collator": ImageBatchCollator(4, 0.0, GainOffset(0.5))},
        f"{AUGMENTED}.arguments.gain_low: 0.75 here, 0.5",
    ),
    ({"collator": ImageBatchCollator(4)}, f"{AUGMENTED}: {{"),
    (
        {"collator": ImageBatchCollator(4, 0.0, Blur())},
        f'{AUGMENTED}.class: "loader_service.augment:GainOffset"',
    ),
    ({"collator": StackCollator()}, 'collator.class: "loader_service:ImageBatch'),
    ({"collator": StackCollator()}, 'collator.arguments.name: nothing here, "data" there'),
    ({"version": "1"}, 'version: nothing here, "1" there'),
]


@pytest.mark.parametrize(("changes", "words"), CHANGES, ids=[words for _, words in CHANGES])
def test_each_changed_part_is_named_in_words(changes: dict[str, Any], words: str) -> None:
    here, there = make_stream(), make_stream(**changes)
    assert here.fingerprint != there.fingerprint
    assert words in explain_difference(here, there)
    assert explain_difference(there, here).count("\n") == explain_difference(here, there).count("\n")
    assert explain_difference(here.description, there.description) == explain_difference(here, there)


ALONE = [changes for changes, words in CHANGES if words.startswith(("seed", "sampler.arguments"))]


@pytest.mark.parametrize("changes", ALONE, ids=str)
def test_nothing_else_is_named(changes: dict[str, Any]) -> None:
    assert "\n" not in explain_difference(make_stream(), make_stream(**changes))


VARIANTS: list[dict[str, Any]] = [
    {},
    {"sampler": SequentialSampler(256, 8)},
    {"sampler": MixingSampler([100, 156], [1, 2], 8, 7)},
    {"sampler": MixingSampler([100, 156], [2, 4], 8, 7)},
    {"sampler": MixingSampler([100, 156], [1, 2], 8, 7, steps_per_epoch=5)},
    {"sampler": BucketedSampler(np.arange(256), 8, 4, 7)},
    {"sampler": BucketedSampler(np.arange(256)[::-1], 8, 4, 7)},
    {"sampler": BucketedSampler(np.arange(256), 8, 5, 7)},
    {"collator": PadCollator()},
    {"collator": PadCollator(2)},
    {"collator": PadCollator(pad_value=-1)},
    {"collator": ImageBatchCollator(augmentation=Compose(GainOffset(), Noise()))},
    {"collator": ImageBatchCollator(augmentation=Compose(Noise(), GainOffset()))},
    {"collator": ImageBatchCollator(augmentation=Compose(Noise()))},
    {"dataset": ConcatDataset([SyntheticLines(100), SyntheticLines(156)])},
    {"dataset": ConcatDataset([SyntheticLines(156), SyntheticLines(100)])},
]


def test_the_text_is_empty_exactly_where_fingerprints_are_equal() -> None:
    streams = [make_stream(**changes) for changes in VARIANTS]
    twins = [make_stream(**changes) for changes in VARIANTS]
    for i, stream in enumerate(streams):
        for j, twin in enumerate(twins):
            equal = stream.fingerprint == twin.fingerprint
            assert equal == (i == j)
            assert (explain_difference(stream, twin) == "") == equal


@pytest.mark.parametrize(
    ("ours", "theirs"), [(True, 1), (1, True), (0, False), ([1], [True]), ({"a": 0}, {"a": False})]
)
def test_values_that_compare_equal_but_are_described_apart_are_told(ours: Any, theirs: Any) -> None:
    assert "here" in explain_difference(ours, theirs)


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        ({"a": [1, 2]}, {"a": [1, 3]}, "a[1]: 2 here, 3 there"),
        ({"a": [1, 2]}, {"a": [1]}, "a: [1, 2] here, [1] there"),
        ({"a": 1}, {}, "a: 1 here, nothing there"),
        ({}, {"a": None}, "a: nothing here, null there"),
        (1, 2, "all: 1 here, 2 there"),
        (describe({"a": 0.5}), describe({"a": -0.0}), "dict.a: 0.5 here, -0.0 there"),
        (describe({"a": 0.5}), describe({"a": (1,)}), 'dict.a: 0.5 here, {"tuple": [1]} there'),
        (describe({"float": 0.5}), describe({"float": 1.5}), "dict.float: 0.5 here, 1.5 there"),
        (describe({"float": "x"}), describe({"float": 2}), 'dict.float: "x" here, 2 there'),
    ],
)
def test_differences_in_lists_and_missing_parts_are_placed(ours: Any, theirs: Any, words: str) -> None:
    assert explain_difference(ours, theirs) == words


def test_a_stream_knows_nothing_of_workers_prefetch_and_endpoint() -> None:
    description = make_stream().description
    parts = ["contract", "seed", "shard_padding", "sampler", "dataset", "transform", "collator"]
    assert list(description) == parts
    assert not any(word in str(description) for word in ("worker", "prefetch", "endpoint"))


def test_a_lambda_is_refused_by_name_unless_a_version_stands_for_it() -> None:
    lambdas: dict[str, Any] = {"transform": lambda sample, rng: sample}
    with pytest.raises(FingerprintError, match=r"transform is .*<lambda>.*give the stream a `version`"):
        explain_difference(make_stream(**lambdas), make_stream())
    one, other = make_stream(**lambdas, version="1"), make_stream(**lambdas, version="2")
    assert explain_difference(one, other) == 'version: "1" here, "2" there'
