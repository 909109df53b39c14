"""This implementation gives the vectors that no test of a single module reads."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from loader_service.contract import augment
from loader_service.contract.collate import BatchContext, PadCollator, StackCollator
from loader_service.contract.images import rgb8_to_planar
from loader_service.contract.layout import Layout
from loader_service.contract.rng import SampleRng
from loader_service.contract.samplers import BucketedSampler, MixingSampler, Sampler, SequentialSampler, ShuffledSampler
from loader_service.contract.shards import Shard
from loader_service.contract.stream import Stream
from loader_service.data.pskd import Pipeline, PipelineSampler, parse_pipeline
from loader_service.errors import ArgumentError
from loader_service.wire.layouts import pack_layout, unpack_layout
from loader_service.wire.segment import HEADER_BYTES, Segment
from tests.vectors.files import read_vectors

PIPELINES = read_vectors("pipelines")
SHARDS = read_vectors("shards")
MEMORY = read_vectors("memory")
BATCHES = read_vectors("batches")
AUGMENTATIONS = {
    "gain_offset": augment.GainOffset,
    "noise": augment.Noise,
    "blur": augment.Blur,
    "shear": augment.Shear,
    "erase": augment.Erase,
}


@pytest.mark.parametrize("case", read_vectors("images")["rgb"], ids=lambda case: f"{case['width']}x{case['height']}")
def test_coloured_pixels_have_the_known_bits(case: dict[str, Any]) -> None:
    sizes = case["width"], case["height"], case["stride"], case["mean"], case["std"]
    planar = rgb8_to_planar(bytes(case["pixels"]), *sizes)
    assert planar.shape == (3, case["height"], case["width"])
    assert planar.reshape(-1).view(np.uint32).tolist() == case["bits"]


@pytest.mark.parametrize("case", read_vectors("augmentations")["cases"], ids=lambda c: f"{c['steps']} {c['shape']}")
def test_an_augmented_image_has_the_known_bits(case: dict[str, Any]) -> None:
    made: list[Any] = []
    for step in case["steps"]:
        numbers = {key: value for key, value in step.items() if key != "name"}
        made.append(AUGMENTATIONS[step["name"]](**numbers))
    image = np.array(case["image"], np.uint32).view(np.float32).reshape(case["shape"])
    augment.Compose(*made)(image, SampleRng(int(case["key"])))
    assert image.reshape(-1).view(np.uint32).tolist() == case["result"]


def sample_of(tree: Any) -> Any:
    """Arrays for the leaves of a case."""
    if isinstance(tree, list):
        return tuple(sample_of(part) for part in tree)
    if tree.keys() == {"type", "shape", "values"}:
        return np.array(tree["values"], tree["type"]).reshape(tree["shape"])
    return {name: sample_of(part) for name, part in tree.items()}


def check_batch(collator: StackCollator | PadCollator, case: dict[str, Any]) -> None:
    """In memory that held something else before."""
    samples = [sample_of(tree) for tree in case["samples"]]
    context = BatchContext(0, 0, 0, np.array(case["indices"]))
    layout = collator.plan(samples, context)
    tensors = layout.views(np.full(layout.nbytes, 0xA5, np.uint8))
    collator.write(samples, context, tensors)
    assert list(tensors) == list(case["tensors"])
    for name, expected in case["tensors"].items():
        assert (str(tensors[name].dtype), list(tensors[name].shape)) == (expected["type"], expected["shape"])
        assert tensors[name].reshape(-1).tolist() == expected["values"]


@pytest.mark.parametrize("case", BATCHES["stacked"], ids=lambda case: str(list(case["tensors"])))
def test_a_stacked_batch_is_the_known_one(case: dict[str, Any]) -> None:
    check_batch(StackCollator(case["name"]), case)


@pytest.mark.parametrize("case", BATCHES["padded"], ids=lambda case: str(list(case["tensors"])))
def test_a_padded_batch_is_the_known_one(case: dict[str, Any]) -> None:
    check_batch(PadCollator(case["multiple"], case["pad_value"], case["name"]), case)


def make_sampler(case: dict[str, Any]) -> Sampler:
    given = {key: value for key, value in case.items() if key != "kind"}
    for key in ("seed", "shuffle"):
        if key in given:
            given[key] = int(given[key])
    if case["kind"] == "pipeline":
        return PipelineSampler(Pipeline(**given))
    made: dict[str, Any] = {
        "sequential": SequentialSampler,
        "shuffled": ShuffledSampler,
        "mixing": MixingSampler,
        "bucketed": BucketedSampler,
    }
    sampler: Sampler = made[case["kind"]](**given)
    return sampler


@pytest.mark.parametrize("case", read_vectors("runs")["cases"], ids=lambda case: case["sampler"]["kind"])
def test_a_runs_steps_are_the_known_ones(case: dict[str, Any]) -> None:
    sampler = make_sampler(case["sampler"])
    stream = Stream(range(sampler.n), sampler, StackCollator(), seed=int(case["seed"]))
    assert stream.steps_per_epoch == case["steps_per_epoch"]
    for step in case["steps"]:
        found = stream.explain(step["step"])
        assert (found.epoch, found.step_in_epoch) == (step["epoch"], step["step_in_epoch"])
        assert found.rows.indices.tolist() == step["indices"]
        assert stream.build(step["step"])["data"].tolist() == step["indices"]
        assert [str(key) for key in found.transform_keys.tolist()] == step["transform_keys"]
        assert [str(key) for key in found.augmentation_keys.tolist()] == step["augmentation_keys"]


@pytest.mark.parametrize("case", SHARDS["rows"], ids=lambda case: f"{case['batch_size']} {case['world']}")
def test_the_rows_of_a_rank_are_the_known_ones(case: dict[str, Any]) -> None:
    ranks = [Shard(rank, case["world"]).rows(case["batch_size"]) for rank in range(case["world"])]
    assert [[rows.start, rows.stop] for rows in ranks] == case["rows"]


@pytest.mark.parametrize("case", SHARDS["ragged"], ids=lambda case: str(case["world"]))
def test_a_ranks_part_of_joined_rows_is_the_known_one(case: dict[str, Any]) -> None:
    lengths, values = np.array(case["lengths"], np.int32), np.array(case["values"], np.int32)
    rows = len(lengths)
    layout = Layout.plan([("v", "i4", values.shape, "ragged:n"), ("n", "i4", lengths.shape)])
    tensors = {"v": values, "n": lengths}
    parts = [Shard(rank, case["world"]).cut(layout, tensors, rows)["v"].tolist() for rank in range(case["world"])]
    assert parts == case["parts"]


@pytest.mark.parametrize("case", MEMORY["layouts"], ids=lambda case: str(case["nbytes"]))
def test_a_batch_lies_in_memory_as_known(case: dict[str, Any]) -> None:
    dtypes = [getattr(ml_dtypes, one["type"], one["type"]) for one in case["tensors"]]
    tensors = zip(case["tensors"], dtypes, strict=True)
    layout = Layout.plan([(one["name"], dtype, one["shape"], one["rows"]) for one, dtype in tensors])
    assert [spec.offset for spec in layout.tensors] == [one["offset"] for one in case["tensors"]]
    assert layout.nbytes == case["nbytes"]
    assert unpack_layout(bytes.fromhex(case["msgpack"])) == unpack_layout(pack_layout(layout)) == layout


@pytest.mark.parametrize("case", MEMORY["headers"], ids=lambda case: case["hex"])
def test_a_segments_header_has_the_known_bytes(case: dict[str, Any]) -> None:
    segment = Segment("unnamed", np.zeros(HEADER_BYTES, np.uint8))
    step, generation, nbytes = int(case["step"]), int(case["generation"]), int(case["nbytes"])
    segment.begin(step, generation)
    if case["state"] == 2:
        segment.commit(step, generation, nbytes)
    assert segment.memory.tobytes()[:40].hex() == case["hex"]
    assert HEADER_BYTES == 64


@pytest.mark.parametrize("case", PIPELINES["texts"], ids=lambda case: str(case["text"]))
def test_a_pipelines_text_says_what_is_known(case: dict[str, Any]) -> None:
    found = parse_pipeline(case["text"])
    shuffle = None if case["shuffle"] is None else int(case["shuffle"])
    assert (found.file, found.shuffle, found.batch, found.take) == (
        case["file"],
        shuffle,
        case["batch"],
        case["take"],
    )


@pytest.mark.parametrize("case", PIPELINES["refused_texts"], ids=lambda case: repr(case["text"]))
def test_a_text_that_is_no_pipeline_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        parse_pipeline(case["text"])
