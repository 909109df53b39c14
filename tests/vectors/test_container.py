"""The vectors of the container and of texts follow from the rules."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tests.vectors.files import read_vectors
from tests.vectors.reference_container import (
    ContainerError,
    Leaf,
    decode,
    encode,
    idx_bytes,
    read,
    type_leaves,
    vocabulary,
    windows,
    write,
)

CONTAINER = read_vectors("container")


def described(leaves: list[Leaf]) -> list[dict[str, Any]]:
    kinds = [("real", None) if bound is None else ("idx", str(bound)) for bound, _ in leaves]
    return [{"kind": kind, "bound": bound, "shape": leaf[1]} for (kind, bound), leaf in zip(kinds, leaves, strict=True)]


def leaves_of(case: dict[str, Any]) -> list[Leaf]:
    return [(None if leaf["bound"] is None else int(leaf["bound"]), leaf["shape"]) for leaf in case["leaves"]]


def values_of(sample: list[list[str]], found: list[Leaf]) -> list[list[float]]:
    """The numbers of a sample; one that has another number of leaves than its type is refused anyway."""
    bounds = [bound for bound, _ in found][: len(sample)]
    return [[float.fromhex(v) if b is None else int(v) for v in leaf] for leaf, b in zip(sample, bounds, strict=True)]


def bits_of(samples: list[list[list[float]]]) -> list[list[list[Any]]]:
    """Reals as their bytes, so that NaN is NaN and 0 is not -0."""
    return [[[struct.pack("<d", v) if isinstance(v, float) else v for v in leaf] for leaf in s] for s in samples]


@pytest.mark.parametrize("case", CONTAINER["files"], ids=lambda case: str(case["type"]))
def test_a_file_and_its_samples_follow_from_the_rules(case: dict[str, Any]) -> None:
    data, samples = bytes.fromhex(case["hex"]), [values_of(sample, leaves_of(case)) for sample in case["samples"]]
    assert described(type_leaves(case["type"])) == case["leaves"]
    assert bits_of(list(read(data))) == bits_of(samples)
    assert write(case["type"], case["encodings"], samples) == data


@pytest.mark.parametrize("case", CONTAINER["read_only"], ids=lambda case: str(case["type"]))
def test_what_is_read_and_never_written_follows_from_the_rules(case: dict[str, Any]) -> None:
    samples = [values_of(sample, leaves_of(case)) for sample in case["samples"]]
    assert type_leaves(case["type"]) == leaves_of(case)
    assert bits_of(list(read(bytes.fromhex(case["hex"])))) == bits_of(samples)


@pytest.mark.parametrize("case", CONTAINER["params"], ids=lambda case: str(case["type"]))
def test_a_file_whose_leaves_a_caller_supplies_follows_from_the_rules(case: dict[str, Any]) -> None:
    data, samples = bytes.fromhex(case["hex"]), [values_of(sample, leaves_of(case)) for sample in case["samples"]]
    assert bits_of(list(read(data, leaves_of(case)))) == bits_of(samples)
    assert write(case["type"], case["encodings"], samples, leaves_of(case)) == data
    with pytest.raises(ContainerError, match="E9001"):
        list(read(data))


@pytest.mark.parametrize("case", CONTAINER["refused_files"], ids=lambda case: str(case["name"]))
def test_a_file_is_refused_by_the_rules(case: dict[str, Any]) -> None:
    with pytest.raises(ContainerError) as raised:
        list(read(bytes.fromhex(case["hex"])))
    assert raised.value.code == case["code"]


@pytest.mark.parametrize("case", CONTAINER["refused_types"], ids=lambda case: repr(case["type"]))
def test_a_type_is_refused_by_the_rules(case: dict[str, Any]) -> None:
    with pytest.raises(ContainerError) as raised:
        type_leaves(case["type"])
    assert raised.value.code == case["code"]


@pytest.mark.parametrize("case", CONTAINER["refused_values"], ids=str)
def test_a_value_is_refused_by_the_rules(case: dict[str, Any]) -> None:
    with pytest.raises(ContainerError) as raised:
        write(case["type"], case["encodings"], [values_of(case["sample"], type_leaves(case["type"]))])
    assert raised.value.code == case["code"]


def test_the_bytes_of_an_idx_follow_from_the_rules() -> None:
    assert [idx_bytes(int(case["n"])) for case in CONTAINER["idx_bytes"]] == [
        c["bytes"] for c in CONTAINER["idx_bytes"]
    ]


@pytest.mark.parametrize("case", read_vectors("texts")["cases"], ids=lambda case: str(list(case.values())[:1]))
def test_tokens_and_windows_of_a_text_follow_from_the_rules(case: dict[str, Any]) -> None:
    assert vocabulary(case["text"]) == case["vocab"]
    assert encode(case["text"], case["vocab"]) == case["tokens"]
    assert decode(case["tokens"], case["vocab"]) == case["text"]
    assert windows(case["tokens"], case["seq"], case["stride"]) == case["windows"]
