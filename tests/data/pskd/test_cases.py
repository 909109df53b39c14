"""The container's cases, which a slow encoder made from the text alone: files, refusals, types, batches, windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loader_service.data.pskd import (
    DataError,
    Enc,
    Pipeline,
    Reader,
    char_vocab,
    decode_text,
    encode,
    idx_width,
    lm_windows,
    parse_type,
    shuffle_indices,
    write_encoded,
)
from loader_service.data.pskd.layout import Layout, Leaf, Tuple, flatten, leaves, unflatten
from tests.vectors.files import read_vectors

_CONTAINER, _PIPELINES, _TEXTS = (read_vectors(name) for name in ("container", "pipelines", "texts"))


def _values(layout: Layout, flat: list[list[Any]]) -> Any:
    """The tree of a case's sample, which gives each leaf as a flat list of texts: reals as C99 hex floats."""

    def leaf(shape: tuple[int, ...], bound: int | None, given: list[Any]) -> NDArray[Any]:
        if bound is None:
            return np.array([float.fromhex(value) for value in given]).reshape(shape)
        numbers = [int(value) for value in given]
        return np.array(numbers, np.uint64 if min(numbers, default=0) >= 0 else np.int64).reshape(shape)

    pairs = zip(leaves(layout), flat, strict=True)
    return unflatten(layout, iter([leaf(one.shape, one.bound, given) for one, given in pairs]))


def _encodings(case: dict[str, Any]) -> list[Enc]:
    return [Enc(code) for code in case["encodings"] or []]


@pytest.mark.parametrize("case", _CONTAINER["files"], ids=lambda case: case["type"])
def test_reading_gives_the_samples_and_writing_them_gives_the_bytes(case: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "case.psk.d"
    path.write_bytes(bytes.fromhex(case["hex"]))
    layout = parse_type(case["type"])
    expected = [_values(layout, sample) for sample in case["samples"]]
    reader = Reader(path)
    assert len(reader) == len(expected)
    for found, wanted in zip(reader, expected, strict=True):
        for one, other in zip(flatten(layout, found), flatten(layout, wanted), strict=True):
            assert one.tobytes() == other.astype(one.dtype).tobytes()
            assert one.shape == other.shape
    many = reader.read(np.arange(len(expected))[::-1])
    for place, column in enumerate(flatten(layout, many)):
        rows = [list(flatten(layout, sample))[place] for sample in expected[::-1]]
        assert column.shape[0] == len(rows)
        assert all(one.tobytes() == other.astype(one.dtype).tobytes() for one, other in zip(column, rows, strict=True))
    again = tmp_path / "again.psk.d"
    write_encoded(again, case["type"], expected, _encodings(case))
    assert again.read_bytes() == path.read_bytes()
    assert [entry.name for entry in sorted(tmp_path.iterdir())] == ["again.psk.d", "case.psk.d"]


def _read_all(reader: Reader, layout: Layout) -> list[list[bytes]]:
    return [[one.tobytes() for one in flatten(layout, sample)] for sample in reader]


def _stored(layout: Layout, case: dict[str, Any]) -> list[list[bytes]]:
    """Values as reading gives them: an idx in its own width, a real as float64."""
    samples = [_values(layout, sample) for sample in case["samples"]]
    return [
        [
            one.astype(leaf.dtype(Enc.F64)).tobytes()
            for one, leaf in zip(flatten(layout, sample), leaves(layout), strict=True)
        ]
        for sample in samples
    ]


@pytest.mark.parametrize("case", _CONTAINER["read_only"], ids=lambda case: case["type"])
def test_what_no_writer_makes_is_read(case: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "case.psk.d"
    path.write_bytes(bytes.fromhex(case["hex"]))
    layout = parse_type(case["type"])
    assert _read_all(Reader(path), layout) == _stored(layout, case)


@pytest.mark.parametrize("case", _CONTAINER["params"], ids=lambda case: case["type"])
def test_a_file_whose_type_tells_no_leaves_is_read_and_written_with_a_layout(
    case: dict[str, Any], tmp_path: Path
) -> None:
    path, again = tmp_path / "case.psk.d", tmp_path / "again.psk.d"
    path.write_bytes(bytes.fromhex(case["hex"]))
    layout = Tuple(tuple(Leaf(leaf["bound"] and int(leaf["bound"]), tuple(leaf["shape"])) for leaf in case["leaves"]))
    header = Reader(path).header
    assert (header.type_text, header.count, header.layout) == (case["type"], len(case["samples"]), None)
    with pytest.raises(DataError) as raised:
        Reader(path)[0]
    assert raised.value.code == "E9001"
    assert _read_all(Reader(path).with_layout(layout), layout) == _stored(layout, case)
    samples = [_values(layout, sample) for sample in case["samples"]]
    write_encoded(again, case["type"], samples, _encodings(case), layout)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("case", _CONTAINER["refused_files"], ids=lambda case: case["name"])
def test_a_file_that_is_wrong_is_refused_with_its_code(case: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "case.psk.d"
    path.write_bytes(bytes.fromhex(case["hex"]))
    with pytest.raises(DataError) as raised:
        list(Reader(path))
    assert raised.value.code == case["code"]


@pytest.mark.parametrize("case", _CONTAINER["refused_types"], ids=lambda case: repr(case["type"]))
def test_a_type_that_is_not_closed_is_refused_and_the_place_marked(case: dict[str, Any]) -> None:
    with pytest.raises(DataError) as raised:
        parse_type(case["type"])
    assert raised.value.code == case["code"] == "E9001"
    assert raised.value.message.splitlines()[-1].strip() == "^"


@pytest.mark.parametrize("case", _CONTAINER["refused_values"], ids=str)
def test_a_value_that_cannot_be_written_is_refused_and_leaves_no_file(case: dict[str, Any], tmp_path: Path) -> None:
    layout = parse_type(case["type"])
    shapes = [leaf.shape for leaf in leaves(layout)]
    fits = len(shapes) == len(case["sample"]) and all(
        len(given) == np.prod(shape) for given, shape in zip(case["sample"], shapes, strict=True)
    )
    sample = _values(layout, case["sample"]) if fits else np.zeros(1)
    with pytest.raises(DataError) as raised:
        write_encoded(tmp_path / "case.psk.d", case["type"], [sample], _encodings(case))
    assert raised.value.code == case["code"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", _PIPELINES["batches"], ids=str)
def test_a_pipeline_gives_the_known_batches(case: dict[str, Any]) -> None:
    seed = None if case["shuffle"] is None else int(case["shuffle"])
    pipeline = Pipeline(case["count"], seed, case["batch"], case["take"])
    batches = [batch.tolist() for batch in pipeline.epoch(case["epoch"])]
    assert batches == case["batches"]
    assert pipeline.batches_per_epoch == len(batches)
    if seed is not None:
        order = shuffle_indices(case["count"], seed, case["epoch"])
        assert sorted(order.tolist()) == list(range(case["count"]))
        assert order[: len(batches) * case["batch"]].tolist() == [index for batch in batches for index in batch]


@pytest.mark.parametrize("case", _TEXTS["cases"], ids=str)
def test_texts_give_the_known_tokens_and_windows(case: dict[str, Any]) -> None:
    vocab = char_vocab(case["text"])
    assert vocab == case["vocab"]
    tokens = encode(case["text"], vocab)
    assert tokens.tolist() == case["tokens"]
    assert decode_text(tokens, vocab) == case["text"]
    windows = lm_windows(tokens, case["seq"], case["stride"], vocab)
    assert [[one.tolist(), other.tolist()] for one, other in windows] == case["windows"]


def test_an_idx_is_as_wide_as_it_needs_to_be() -> None:
    assert [idx_width(int(case["n"])) for case in _CONTAINER["idx_bytes"]] == [
        c["bytes"] for c in _CONTAINER["idx_bytes"]
    ]
