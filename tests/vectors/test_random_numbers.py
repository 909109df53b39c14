"""The vectors of random numbers and of the permutation follow from the rules."""

from __future__ import annotations

from typing import Any

import pytest

from tests.vectors.files import read_vectors
from tests.vectors.reference_random import Generator, bits_of_single, derive, mix, permute

NUMBERS = read_vectors("random-numbers")
PERMUTATION = read_vectors("permutation")


def test_mixed_words_follow_from_the_rules() -> None:
    assert [str(mix(int(case["x"]))) for case in NUMBERS["mix"]] == [case["value"] for case in NUMBERS["mix"]]


@pytest.mark.parametrize("case", NUMBERS["derive"], ids=lambda case: str(list(case.values())[:5]))
def test_a_derived_key_follows_from_the_rules(case: dict[str, Any]) -> None:
    places = case["epoch"], case["step"], case["slot"], case["stream"]
    assert derive(int(case["seed"]), *places) == int(case["key"])


@pytest.mark.parametrize("case", NUMBERS["generators"], ids=lambda case: str(case["state"]))
def test_a_generators_numbers_follow_from_the_rules(case: dict[str, Any]) -> None:
    rng = Generator(int(case["state"]))
    assert [rng.next_u64() for _ in case["next_u64"]] == [int(word) for word in case["next_u64"]]
    assert [bits_of_single(rng.next_single()) for _ in case["next_single"]] == case["next_single"]
    assert [rng.next_double() for _ in case["next_double"]] == [float.fromhex(d) for d in case["next_double"]]
    assert [rng.next_int(int(draw["n"])) for draw in case["next_int"]] == [int(d["value"]) for d in case["next_int"]]
    assert [bits_of_single(rng.next_normal()) for _ in case["next_normal"]] == case["next_normal"]


def test_some_draw_was_rejected() -> None:
    """So that the vectors show the part of R18 that most draws never come to."""
    redrawn = 0
    for case in NUMBERS["generators"]:
        rng = Generator(int(case["state"]))
        for _ in [*case["next_u64"], *case["next_single"], *case["next_double"]]:
            rng.next_u64()
        for draw in case["next_int"]:
            before = rng.state
            rng.next_int(int(draw["n"]))
            redrawn += (rng.state - before) % 2**64 != 0x9E3779B97F4A7C15
    assert redrawn


@pytest.mark.parametrize("case", PERMUTATION["cases"], ids=lambda case: f"n={case['n']}")
def test_the_permutation_follows_from_the_rules(case: dict[str, Any]) -> None:
    n, key = int(case["n"]), int(case["key"])
    assert [permute(int(p), n, key) for p in case["positions"]] == [int(value) for value in case["values"]]
