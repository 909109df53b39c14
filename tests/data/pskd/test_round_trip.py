"""Everything that is written is read: random types, values and encodings."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from loader_service.data.pskd import Enc, Layout, Leaf, Reader, Tuple, Writer, parse_type, write_encoded
from loader_service.data.pskd.layout import flatten, leaves, unflatten

_EDGES = [2**k + d for k in (8, 16, 32, 63) for d in (-1, 0, 1)]
_BOUNDS = st.sampled_from([1, 2, 3, *_EDGES, 2**64 - 2, 2**64 - 1]) | st.integers(1, 2**64 - 1)
_LEAVES = st.builds(Leaf, st.none() | _BOUNDS, st.lists(st.integers(0, 3), max_size=3).map(tuple))
_LAYOUTS: st.SearchStrategy[Layout] = st.recursive(
    _LEAVES, lambda part: st.lists(part, min_size=2, max_size=3).map(lambda parts: Tuple(tuple(parts))), max_leaves=5
)
_BITS = {Enc.F64: 64, Enc.F32: 32, Enc.BF16: 16}


class _Content(NamedTuple):
    layout: Layout
    encodings: list[Enc]
    samples: list[Any]


def _text(layout: Layout) -> str:
    if isinstance(layout, Tuple):
        return f"({', '.join(_text(part) for part in layout.parts)})"
    assert isinstance(layout, Leaf)
    return ("ℝ" if layout.bound is None else f"idx[{layout.bound}]") + str(list(layout.shape))


def _real(bits: int, enc: Enc) -> float:
    """The number of those bits, zero for NaN and infinities."""
    raw = {Enc.F64: "<u8", Enc.F32: "<u4", Enc.BF16: "<u4"}[enc]
    number = np.array([bits << 16 if enc is Enc.BF16 else bits], raw).view("<f8" if enc is Enc.F64 else "<f4")
    return float(number[0]) if np.isfinite(number[0]) else 0.0


@st.composite
def _contents(draw: st.DrawFn) -> _Content:
    layout = draw(_LAYOUTS)
    encodings = [draw(st.sampled_from(Enc)) if leaf.bound is None else Enc.F64 for leaf in leaves(layout)]

    def values(leaf: Leaf, enc: Enc) -> NDArray[Any]:
        high = 2 ** _BITS[enc] - 1 if leaf.bound is None else leaf.bound - 1
        numbers = draw(st.lists(st.integers(0, high), min_size=leaf.size, max_size=leaf.size))
        if leaf.bound is not None:
            return np.array(numbers, np.uint64).reshape(leaf.shape)
        return np.array([_real(number, enc) for number in numbers], np.float64).reshape(leaf.shape)

    pairs = list(zip(leaves(layout), encodings, strict=True))
    count = draw(st.integers(0, 3))
    return _Content(
        layout, encodings, [unflatten(layout, iter([values(*pair) for pair in pairs])) for _ in range(count)]
    )


def _same(layout: Layout, found: Any, wanted: Any) -> None:
    for one, other in zip(flatten(layout, found), flatten(layout, wanted), strict=True):
        assert isinstance(one, np.ndarray)
        assert one.shape == other.shape
        assert one.astype(other.dtype).tobytes() == other.tobytes()


@given(_contents(), st.lists(st.integers(0, 100), max_size=4))
@settings(max_examples=60)
def test_what_is_written_is_read_one_by_one_and_many_at_once(content: _Content, picks: list[int]) -> None:
    layout, encodings, samples = content
    assert parse_type(_text(layout)) == layout
    with tempfile.TemporaryDirectory() as directory:
        path, again = Path(directory) / "one.psk.d", Path(directory) / "two.psk.d"
        write_encoded(path, _text(layout), samples, encodings)
        reader, stored = Reader(path), Reader(path, reals="stored")
        assert len(reader) == len(samples)
        for sample, found, narrow in zip(samples, reader, stored, strict=True):
            _same(layout, found, sample)
            _same(layout, narrow, sample)
            _has_dtypes(layout, encodings, found, narrow)
        chosen = [pick % len(samples) for pick in picks] if samples else []
        rows = [list(flatten(layout, samples[index])) for index in chosen]
        for place, (column, leaf) in enumerate(zip(flatten(layout, reader.read(chosen)), leaves(layout), strict=True)):
            assert column.shape == (len(chosen), *leaf.shape)
            assert all((column[row] == values[place]).all() for row, values in enumerate(rows))
        write_encoded(again, _text(layout), stored, encodings)
        assert again.read_bytes() == path.read_bytes()
        with Writer(again, _text(layout), encodings=encodings) as writer:
            writer.add_rows(reader.read(range(len(samples))))
        assert again.read_bytes() == path.read_bytes()


def _has_dtypes(layout: Layout, encodings: list[Enc], found: Any, narrow: Any) -> None:
    columns = zip(leaves(layout), encodings, flatten(layout, found), flatten(layout, narrow), strict=True)
    for leaf, enc, one, other in columns:
        if leaf.bound is None:
            assert (one.dtype, other.dtype) == (np.float64, np.float64 if enc is Enc.F64 else np.float32)
        else:
            assert one.dtype == other.dtype == np.min_scalar_type(leaf.bound - 1)
