"""The vectors of samplers, runs, shards and pipelines follow from the rules."""

from __future__ import annotations

from typing import Any

import pytest

from tests.vectors.files import read_vectors
from tests.vectors.reference_batches import part_of_lengths
from tests.vectors.reference_random import derive
from tests.vectors.reference_samplers import (
    bucketed,
    mixing,
    parse_pipeline,
    pipeline,
    sequential,
    shard,
    shuffled,
)

SAMPLERS = read_vectors("samplers")
PIPELINES = read_vectors("pipelines")
SHARDS = read_vectors("shards")


@pytest.mark.parametrize("case", SAMPLERS["sequential"], ids=str)
def test_a_sequential_epoch_follows_from_the_rules(case: dict[str, Any]) -> None:
    assert sequential(case["n"], case["batch_size"], case["drop_last"]) == case["steps"]


@pytest.mark.parametrize("case", SAMPLERS["shuffled"], ids=lambda case: str(list(case.values())[:5]))
def test_a_shuffled_epoch_follows_from_the_rules(case: dict[str, Any]) -> None:
    seed, n, epoch = int(case["seed"]), case["n"], case["epoch"]
    assert shuffled(seed, n, case["batch_size"], case["drop_last"], epoch) == case["steps"]


@pytest.mark.parametrize("case", SAMPLERS["mixing"], ids=lambda case: str(list(case.values())[:6]))
def test_a_mixed_batch_follows_from_the_rules(case: dict[str, Any]) -> None:
    place = case["batch_size"], case["epoch"], case["step"]
    assert mixing(int(case["seed"]), case["sizes"], case["shares"], *place) == case["indices"]


@pytest.mark.parametrize("case", SAMPLERS["bucketed"], ids=lambda case: f"{case['seed']} {case['batch_size']}")
def test_a_bucketed_epoch_follows_from_the_rules(case: dict[str, Any]) -> None:
    sizes = case["batch_size"], case["pool_batches"], case["drop_last"]
    assert bucketed(int(case["seed"]), case["lengths"], *sizes, case["epoch"]) == case["steps"]


def indices_at(sampler: dict[str, Any], seed: int, epoch: int, step: int) -> list[int]:
    """The batch of one place of a run."""
    arguments = {key: value for key, value in sampler.items() if key not in ("kind", "seed")}
    kind = sampler["kind"]
    if kind == "mixing":
        return mixing(seed, **arguments, epoch=epoch, step=step)
    if kind == "pipeline":
        return pipeline(**arguments | {"shuffle": int(sampler["shuffle"])}, epoch=epoch + 1)[step]
    if kind == "sequential":
        batches = sequential(**arguments)
    elif kind == "shuffled":
        batches = shuffled(seed, **arguments, epoch=epoch)
    else:
        batches = bucketed(seed, **arguments, epoch=epoch)
    assert batches is not None
    return batches[step]


@pytest.mark.parametrize("case", read_vectors("runs")["cases"], ids=lambda case: case["sampler"]["kind"])
def test_a_runs_steps_follow_from_the_rules(case: dict[str, Any]) -> None:
    seed = int(case["seed"])
    assert int(case["sampler"].get("seed", seed)) == seed, "the cases use one seed for the sampler and the slots"
    for step in case["steps"]:
        epoch, place = divmod(step["step"], case["steps_per_epoch"])
        assert (epoch, place) == (step["epoch"], step["step_in_epoch"])
        assert indices_at(case["sampler"], seed, epoch, place) == step["indices"]
        slots = range(len(step["indices"]))
        assert [str(derive(seed, epoch, place, slot, 0)) for slot in slots] == step["transform_keys"]
        assert [str(derive(seed, epoch, place, slot, 1)) for slot in slots] == step["augmentation_keys"]


@pytest.mark.parametrize("case", SHARDS["rows"], ids=lambda case: f"{case['batch_size']} {case['world']}")
def test_the_rows_of_a_rank_follow_from_the_rules(case: dict[str, Any]) -> None:
    assert [list(shard(rank, case["world"], case["batch_size"])) for rank in range(case["world"])] == case["rows"]


@pytest.mark.parametrize("case", SHARDS["ragged"], ids=lambda case: str(case["world"]))
def test_a_ranks_part_of_joined_rows_follows_from_the_rules(case: dict[str, Any]) -> None:
    rows = [shard(rank, case["world"], len(case["lengths"])) for rank in range(case["world"])]
    assert [part_of_lengths(case["values"], case["lengths"], *one) for one in rows] == case["parts"]


@pytest.mark.parametrize("case", PIPELINES["batches"], ids=lambda case: str(list(case.values())[:5]))
def test_a_pipelines_batches_follow_from_the_rules(case: dict[str, Any]) -> None:
    shuffle = None if case["shuffle"] is None else int(case["shuffle"])
    assert pipeline(case["count"], shuffle, case["batch"], case["take"], case["epoch"]) == case["batches"]


@pytest.mark.parametrize("case", PIPELINES["texts"], ids=lambda case: str(case["text"]))
def test_what_a_pipelines_text_says_follows_from_the_rules(case: dict[str, Any]) -> None:
    shuffle = None if case["shuffle"] is None else int(case["shuffle"])
    assert parse_pipeline(case["text"]) == (case["file"], shuffle, case["batch"], case["take"])


@pytest.mark.parametrize("case", PIPELINES["refused_texts"], ids=lambda case: repr(case["text"]))
def test_a_text_that_is_no_pipeline_is_refused_by_the_rules(case: dict[str, Any]) -> None:
    assert parse_pipeline(case["text"]) is None
