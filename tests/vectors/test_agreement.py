"""The implementation and the scalar reading of the rules agree where no vector stands: on anything that comes."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_service.contract.images import gray8_to_planar, rgb8_to_planar
from loader_service.contract.permutation import permute
from loader_service.contract.rng import SampleRng, derive
from loader_service.contract.samplers import BucketedSampler, MixingSampler
from loader_service.data.pskd import (
    DataError,
    Enc,
    Pipeline,
    Reader,
    lm_windows,
    parse_pipeline,
    parse_type,
    write_encoded,
)
from loader_service.data.pskd.layout import flatten, leaves, unflatten
from loader_service.errors import ArgumentError
from tests.vectors import reference_container, reference_images, reference_random, reference_samplers
from tests.vectors.files import read_vectors
from tests.vectors.reference_container import ContainerError

CONTAINER = read_vectors("container")
FILES = [bytes.fromhex(case["hex"]) for case in CONTAINER["files"]]
words = st.integers(0, 2**64 - 1)
seeds = st.integers(-(2**63), 2**64 - 1)
some = settings(max_examples=100)


@given(words, st.lists(st.sampled_from([1, 2, 3, 2**31, 2**32, 2**63 + 1, 2**64 - 1, 2**64]) | words, max_size=6))
@some
def test_ints_of_a_generator_agree(state: int, bounds: list[int]) -> None:
    bounds = [max(1, n) for n in bounds]
    ours, theirs = SampleRng(state), reference_random.Generator(state)
    assert [ours.next_int(n) for n in bounds] == [theirs.next_int(n) for n in bounds]


@given(seeds, words, words, words, words)
@some
def test_derived_keys_agree(seed: int, epoch: int, step: int, slot: int, stream: int) -> None:
    arguments = seed, epoch, step, slot, stream
    assert derive(*arguments) == reference_random.derive(*arguments)


@given(st.data(), st.integers(1, 2**63), words)
@some
def test_the_permutation_agrees(data: st.DataObject, n: int, key: int) -> None:
    position = data.draw(st.integers(0, n - 1))
    assert permute(position, n, key) == reference_random.permute(position, n, key)


@given(
    seeds,
    st.lists(st.tuples(st.integers(0, 2**40), st.floats(0, 1e9, width=32)), min_size=1, max_size=6),
    st.integers(1, 12),
    words,
    st.integers(0, 8),
)
@some
def test_mixed_batches_agree(
    seed: int, sources: list[tuple[int, float]], batch_size: int, epoch: int, step: int
) -> None:
    sizes, shares = [size for size, _ in sources], [share for _, share in sources]
    if not any(size and share for size, share in sources):
        return
    sampler = MixingSampler(sizes, shares, batch_size, seed, steps_per_epoch=9)
    expected = reference_samplers.mixing(seed, sizes, shares, batch_size, epoch, step)
    assert sampler.indices(epoch, step).tolist() == expected


@given(
    seeds,
    st.lists(st.integers(0, 6) | st.integers(0, 2**32 - 1), min_size=1, max_size=60),
    st.integers(1, 9),
    st.integers(1, 5),
    st.booleans(),
    st.integers(0, 2**63),
)
@some
def test_bucketed_epochs_agree(
    seed: int, lengths: list[int], batch_size: int, pool_batches: int, drop_last: bool, epoch: int
) -> None:
    expected = reference_samplers.bucketed(seed, lengths, batch_size, pool_batches, drop_last, epoch)
    try:
        sampler = BucketedSampler(lengths, batch_size, pool_batches, seed, drop_last)
    except ArgumentError:
        assert expected is None
        return
    assert [sampler.indices(epoch, step).tolist() for step in range(sampler.steps_per_epoch)] == expected


@given(st.integers(0, 70), st.none() | seeds, st.integers(1, 9), st.none() | st.integers(0, 9), st.integers(1, 2**63))
@some
def test_pipelines_agree(count: int, shuffle: int | None, batch: int, take: int | None, epoch: int) -> None:
    found = [one.tolist() for one in Pipeline(count, shuffle, batch, take).epoch(epoch)]
    assert found == reference_samplers.pipeline(count, shuffle, batch, take, epoch)


pieces = st.sampled_from(
    [
        "stream",
        " ",
        "a.psk.d",
        '"b c"',
        "'d'",
        "|>",
        "shuffle",
        "batch",
        "take",
        "(",
        ")",
        "seed",
        "B",
        "n",
        "=",
        "-",
        "7",
    ]
)
known = st.sampled_from([case["text"] for case in read_vectors("pipelines")["texts"]])


@given(st.lists(pieces, max_size=14).map("".join) | known, st.integers(0, 80), pieces)
@some
def test_what_a_pipelines_text_says_agrees(text: str, place: int, piece: str) -> None:
    for one in (text, text[:place] + piece + text[place:]):
        expected = reference_samplers.parse_pipeline(one)
        try:
            found = parse_pipeline(one)
        except ArgumentError:
            assert expected is None, one
        else:
            assert (found.file, found.shuffle, found.batch, found.take) == expected, one


@given(
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 3),
    st.floats(-4, 4),
    st.floats(0.001, 4),
    st.binary(min_size=80, max_size=80),
)
@some
def test_pixels_agree(width: int, height: int, rest: int, mean: float, std: float, pixels: bytes) -> None:
    def bits(values: list[float]) -> list[int]:
        return [reference_random.bits_of_single(value) for value in values]

    grey = gray8_to_planar(pixels, width, height, width + rest, mean, std)
    expected = reference_images.grey(pixels, width, height, width + rest, mean, std)
    assert grey.reshape(-1).view(np.uint32).tolist() == bits(expected)
    means, stds, stride = [mean, 0.0, -mean], [std, 1.0, 2 * std], 3 * width + rest
    colour = rgb8_to_planar(pixels, width, height, stride, means, stds)
    expected = reference_images.rgb(pixels, width, height, stride, means, stds)
    assert colour.reshape(-1).view(np.uint32).tolist() == bits(expected)


# --- the container ----------------------------------------------------------------------------------------


def first(samples: Iterable[Any]) -> Iterator[Any]:
    """Some of a file's samples: of those without elements it may hold 2^63 - 1."""
    return islice(iter(samples), 100)


def their_samples(data: bytes) -> Any:
    """The samples, each leaf as a list of numbers, or the code of what is wrong."""
    try:
        return [[[_bits(v) for v in leaf] for leaf in sample] for sample in first(reference_container.read(data))]
    except ContainerError as error:
        return error.code


def our_samples(path: Path, data: bytes) -> Any:
    path.write_bytes(data)
    try:
        reader = Reader(path)
        layout = reader._layout
        return [
            [[_bits(v) for v in leaf.reshape(-1).tolist()] for leaf in flatten(layout, one)] for one in first(reader)
        ]
    except DataError as error:
        return error.code


def _bits(value: float) -> bytes | int:
    return value if isinstance(value, int) else struct.pack("<d", value) if value == value else b"NaN"


changes = st.lists(
    st.tuples(st.sampled_from(["set", "cut", "insert"]), st.integers(0, 90), st.binary(min_size=1, max_size=3)),
    max_size=3,
)


@given(file=st.sampled_from(FILES), changes=changes)
@settings(max_examples=200)
def test_any_file_is_read_or_refused_with_the_same_code(
    tmp_path_factory: Any, file: bytes, changes: list[tuple[str, int, bytes]]
) -> None:
    data = file
    for change, place, piece in changes:
        if change == "cut":
            data = data[:place]
        else:
            data = data[:place] + piece + data[place + (len(piece) if change == "set" else 0) :]
    expected = their_samples(data)
    assert our_samples(tmp_path_factory.getbasetemp() / "any.psk.d", data) == expected


texts = st.lists(
    st.sampled_from(
        [
            "idx",
            "ℝ",
            "Real",
            "params",
            "M",
            "[",
            "]",
            "(",
            ")",
            ",",
            ":",
            "a",
            "é",
            "0",
            "7",
            "300",
            " ",
            "\t",
            "-",
            ".",
        ]
    ),
    max_size=12,
).map("".join)
known_types = st.sampled_from([case["type"] for case in CONTAINER["files"]])


@given(texts | known_types, st.integers(0, 30), texts)
@settings(max_examples=200)
def test_any_text_is_a_type_or_none_for_both(text: str, place: int, more: str) -> None:
    for one in (text, text[:place] + more + text[place:], text[:place] + text[place + 1 :]):
        try:
            expected: Any = reference_container.type_leaves(one)
        except ContainerError as error:
            expected = error.code
        try:
            found: Any = [(leaf.bound, list(leaf.shape)) for leaf in leaves(parse_type(one))]
        except DataError as error:
            found = error.code
        assert found == expected, one


numbers = (
    st.floats(width=64) | st.floats(width=32) | st.sampled_from([0.1, 1.5, -0.0, 1e-45, 2.0**-133, 3.4e38, 3.5e38])
)


@given(st.sampled_from([0, 1, 2]), st.lists(st.tuples(numbers, numbers), max_size=3), st.integers(-1, 300))
@settings(max_examples=200)
def test_any_values_are_written_alike_or_refused_with_the_same_code(
    tmp_path_factory: Any, enc: int, pairs: list[tuple[float, float]], token: int
) -> None:
    text = "(ℝ[2], idx[257][])"
    path = tmp_path_factory.getbasetemp() / "values.psk.d"
    samples: list[list[list[float]]] = [[list(pair), [token]] for pair in pairs]
    layout = parse_type(text)
    trees = [unflatten(layout, iter([np.array(pair), np.array(token)])) for pair in pairs]
    try:
        expected: Any = reference_container.write(text, [enc, 0], samples)
    except ContainerError as error:
        expected = error.code
    try:
        write_encoded(path, text, trees, [Enc(enc), Enc.F64])
        found: Any = path.read_bytes()
    except DataError as error:
        found = error.code
    assert found == expected


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 9), st.integers(1, 9))
@some
def test_windows_agree(tokens: list[int], seq: int, stride: int) -> None:
    found = [[one.tolist(), other.tolist()] for one, other in lm_windows(np.array(tokens, np.int64), seq, stride, 10)]
    assert found == reference_container.windows(tokens, seq, stride)
