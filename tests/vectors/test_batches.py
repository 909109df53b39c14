"""The vectors of stacked and padded batches and of their place in memory follow from the rules."""

from __future__ import annotations

from typing import Any

import pytest

from tests.vectors.files import read_vectors
from tests.vectors.reference_batches import Tensor, header, lay_out, pad, stack, unpack

BATCHES = read_vectors("batches")
MEMORY = read_vectors("memory")


def tensors(case: dict[str, Any]) -> list[tuple[str, Tensor]]:
    return [(name, (one["type"], one["shape"], one["values"])) for name, one in case["tensors"].items()]


@pytest.mark.parametrize("case", BATCHES["stacked"], ids=lambda case: str(list(case["tensors"])))
def test_a_stacked_batch_follows_from_the_rules(case: dict[str, Any]) -> None:
    assert list(stack(case["samples"], case["indices"], case["name"]).items()) == tensors(case)


@pytest.mark.parametrize("case", BATCHES["padded"], ids=lambda case: str(list(case["tensors"])))
def test_a_padded_batch_follows_from_the_rules(case: dict[str, Any]) -> None:
    arguments = case["samples"], case["indices"], case["multiple"], case["pad_value"], case["name"]
    assert list(pad(*arguments).items()) == tensors(case)


@pytest.mark.parametrize("case", MEMORY["layouts"], ids=lambda case: str(case["nbytes"]))
def test_a_layout_follows_from_the_rules(case: dict[str, Any]) -> None:
    offsets, nbytes = lay_out([(one["type"], one["shape"]) for one in case["tensors"]])
    assert (offsets, nbytes) == ([one["offset"] for one in case["tensors"]], case["nbytes"])
    entries = [[one[key] for key in ("name", "type", "shape", "offset", "rows")] for one in case["tensors"]]
    assert unpack(bytes.fromhex(case["msgpack"])) == entries


@pytest.mark.parametrize("case", MEMORY["headers"], ids=lambda case: case["hex"])
def test_a_segments_header_follows_from_the_rules(case: dict[str, Any]) -> None:
    fields = [int(case[key]) for key in ("state", "step", "generation", "nbytes")]
    assert header(*fields).hex() == case["hex"]
