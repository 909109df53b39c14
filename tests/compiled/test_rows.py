"""Stacked and padded batches, token windows, rows of containers, samplers: kernels and numpy give the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_service.contract.collate import PadCollator, StackCollator
from loader_service.contract.fused import CompiledMode, set_compiled
from loader_service.contract.permutation import permute
from loader_service.contract.rng import derive
from loader_service.contract.samplers import SequentialSampler, ShuffledSampler
from loader_service.contract.stream import Stream
from loader_service.data.pskd import Enc, LmWindows, PskdDataset, write_encoded
from loader_service.errors import BuildError
from tests.compiled.builds import bits, tensors_of

MODES: list[CompiledMode] = ["off", "on"]
DTYPES = ["?", "i1", "<u2", ">i4", "<f2", "<f4", ">f8", "<c8"]


@given(
    dtype=st.sampled_from(DTYPES),
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    inner=st.sampled_from([(), (1,), (3,), (2, 2), (0,)]),
    multiple=st.sampled_from([1, 4]),
    pad_value=st.sampled_from([0, 1]),
)
@settings(max_examples=150)
def test_padded_batches(dtype: str, lengths: list[int], inner: tuple[int, ...], multiple: int, pad_value: int) -> None:
    rng = np.random.default_rng(len(lengths))
    samples = [{"x": rng.integers(0, 2, (length, *inner)).astype(dtype), "y": np.float32(length)} for length in lengths]
    pad: Any = {"x": bool(pad_value) if dtype == "?" else pad_value}
    collator = PadCollator(multiple, pad)
    assert bits(tensors_of("on", collator, samples)) == bits(tensors_of("off", collator, samples))


@given(
    count=st.sampled_from([1, 2, 3, 8]),
    shape=st.sampled_from([(), (1,), (5,), (2, 3), (0, 4)]),
    dtype=st.sampled_from(DTYPES),
)
@settings(max_examples=80)
def test_stacked_batches(count: int, shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(count)
    arrays = [rng.integers(0, 2, shape).astype(dtype) for _ in range(count)]
    for samples in (arrays, [{"a": one, "b": 3} for one in arrays], [(one, one) for one in arrays]):
        built = tensors_of("on", StackCollator(), samples)
        assert bits(built) == bits(tensors_of("off", StackCollator(), samples))
        first = next(iter(built.values()))
        assert first.tobytes() == b"".join(one.tobytes() for one in arrays)


@pytest.mark.parametrize("dtype", ["<u2", "<u4", "<i4", ">u2", "<i8", "u1"])
@pytest.mark.parametrize("vocab", [200, 256, 60_000, 2**16, 2**20])
def test_windows_of_tokens(tmp_path: Path, dtype: str, vocab: int) -> None:
    largest = min(vocab, np.iinfo(np.dtype(dtype)).max + 1)
    tokens = np.random.default_rng(1).integers(0, largest, 500).astype(dtype)
    np.save(tmp_path / "tokens.npy", tokens)
    for source in (tokens, tmp_path / "tokens.npy"):
        windows = LmWindows(source, seq=7, stride=3, vocab=vocab)
        digests = []
        for mode in MODES:
            set_compiled(mode)
            stream = Stream(windows, ShuffledSampler(len(windows), 16, 3), StackCollator(), seed=0)
            batch = stream.build(2)
            expected = windows.read(stream.explain(2).rows.indices)
            assert all(batch[name].tobytes() == expected[name].tobytes() for name in ("tokens", "targets"))
            digests.append(batch.digest())
        assert digests[0] == digests[1]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["<u2", "<i4"])
def test_a_token_beyond_the_vocabulary_names_its_slot(mode: CompiledMode, dtype: str) -> None:
    set_compiled(mode)
    tokens = np.arange(100).astype(dtype)
    tokens[47] = 100
    windows = LmWindows(tokens, seq=9, stride=10, vocab=100)
    stream = Stream(windows, SequentialSampler(len(windows), 9), StackCollator(), seed=0)
    with pytest.raises(BuildError, match="E9004") as caught:
        stream.build(0)
    assert (caught.value.slot, caught.value.index) == (4, 4)


def test_rows_of_containers(tmp_path: Path) -> None:
    path = tmp_path / "x.psk.d"
    rng = np.random.default_rng(5)
    samples = [
        (rng.integers(0, 300, 4), *(rng.integers(-8, 8, shape) / 4 for shape in ((2, 3), (5,), ()))) for _ in range(40)
    ]
    encodings = [Enc.F64, Enc.F32, Enc.BF16, Enc.F64]
    write_encoded(path, "(idx[300][4], Real[2, 3], Real[5], Real[])", samples, encodings)
    for reals in ("float64", "stored"):
        dataset = PskdDataset(path, reals=reals)
        digests = []
        for mode in MODES:
            set_compiled(mode)
            stream = Stream(dataset, ShuffledSampler(40, 8, 1), StackCollator(), seed=0)
            batch, alone = stream.build(1), dataset.read(stream.explain(1).rows.indices)
            assert all(batch[name].tobytes() == alone[name].tobytes() for name in dataset.names)
            digests.append(batch.digest())
        assert digests[0] == digests[1]


@given(
    n=st.sampled_from([1, 2, 3, 4, 5, 127, 128, 129, 2048, 10**6, 10**12, 2**62, 2**63]),
    seed=st.integers(0, 2**64 - 1),
    part=st.floats(0, 1, exclude_max=True),
    batch=st.sampled_from([1, 2, 128, 3000]),
)
@settings(max_examples=150)
def test_the_order_of_an_epoch(n: int, seed: int, part: float, batch: int) -> None:
    sampler = ShuffledSampler(n, batch, seed, drop_last=False)
    step = min(int(part * sampler.steps_per_epoch), sampler.steps_per_epoch - 1)
    found = []
    for mode in MODES:
        set_compiled(mode)
        found.append(sampler.indices(2, step).tolist())
    positions = np.arange(len(found[0]), dtype=np.uint64) + np.uint64(step * batch)
    assert found[0] == found[1] == permute(positions, n, derive(seed, 2, 0, 0, 101)).tolist()
