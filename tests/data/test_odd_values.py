"""Odd values for every argument of the data room's public names: the equal Python value is taken, or one error of ours.

Each call is a row: a name, a function of one argument, and the values that the argument may have. Where an odd value is
taken, the result is that of the plain Python value that it equals.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader_service import data
from loader_service.contract.checks import shown
from loader_service.data import ConcatDataset, SyntheticLines, TextLineImages, pskd, synthetic_lines, text_line_images
from loader_service.data.pskd import (
    Header,
    Leaf,
    LmWindows,
    Pipeline,
    PipelineSampler,
    PskdDataset,
    Reader,
    Record,
    Tuple,
    Writer,
    char_vocab,
    decode_text,
    encode,
    idx_width,
    info,
    lm_windows,
    parse_pipeline,
    parse_type,
    pipeline_stream,
    shuffle_indices,
    write,
    write_encoded,
)
from loader_service.errors import LoaderServiceError

_TYPE = "(idx[9][], ℝ[2])"
_LAYOUT = Tuple((Leaf(9, ()), Leaf(None, (2,))))
_SAMPLES = [(index, [index, 0.5]) for index in range(6)]


class _Raising:
    """Every conversion fails in its own way."""

    def __index__(self) -> int:
        raise RuntimeError("no index")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no array")

    def __fspath__(self) -> str:
        raise RuntimeError("no path")

    def __repr__(self) -> str:
        raise RuntimeError("no text")


ODD: list[Any] = [
    *(None, True, False, 0, 1, 2, 3, -1, 2**40, 2**63 - 1, 2**63, 2**64, -(2**63), 10**5000),
    *(0.0, 1.0, 1.5, -0.0, float("nan"), float("inf"), -float("inf"), 1e300, 1j),
    *(kind(3) for kind in (np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64)),
    *(kind(3) for kind in (np.float16, np.float32, np.float64, np.longdouble, np.complex64)),
    *(np.bool_(True), np.str_("a"), np.bytes_(b"a"), np.datetime64("2026-01-01"), np.timedelta64(3, "s")),
    *(np.array(3), np.array(3.0), np.array(True), np.array([3]), np.array([[1, 2], [3, 4]]), np.array([])),
    *(
        np.array([1.5, 2.5]),
        np.array([True]),
        np.array(["a"]),
        np.array([None, 3]),
        np.ma.array([1, 2], mask=[True, False]),
    ),
    *("", "a", "3", "a\0b", "\ud800", "٣", "é", b"", b"a", bytearray(b"3")),
    *([], [1, 2], [1.5], [True], [None], ["a"], ["a", "b"], [[1], [2, 3]], [[1, 2], [3, 4]], (), (1,), {}, {1: 2}),
    *({1}, range(3), iter([1]), int, SyntheticLines, object(), len, lambda: 3, Ellipsis, _Raising()),
]


def _plain(value: Any) -> Any:
    """The Python value that a numpy scalar, or an array of no dimensions, equals; anything else as it is."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()
    return value


def _integer(value: Any) -> bool:
    return isinstance(_plain(value), int) and not isinstance(_plain(value), bool)


def _real(value: Any) -> bool:
    return _integer(value) or isinstance(_plain(value), float | np.longdouble)


def _none_or_integer(value: Any) -> bool:
    return value is None or _integer(value)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _bool(value: Any) -> bool:
    return isinstance(_plain(value), bool)


def _integers(value: Any) -> bool:
    """A sequence or an array of integers; an empty one holds them all."""
    if isinstance(value, np.ndarray):
        return value.ndim == 1 and (value.size == 0 or value.dtype.kind in "iu") and not np.ma.isMaskedArray(value)
    return isinstance(value, list | tuple | range) and all(map(_integer, value))


def _texts(value: Any) -> bool:
    one_dimensional = isinstance(value, list | tuple | range) or (isinstance(value, np.ndarray) and value.ndim == 1)
    return one_dimensional and all(map(_text, value))


def _empty(value: Any) -> bool:
    return (isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim == 1)) and not len(value)


def _sized(value: Any) -> bool:
    """A sequence of sequences, as datasets are."""
    return isinstance(value, list | tuple | np.ndarray) and all(isinstance(one, list | str) for one in value)


def _is_dataset(value: Any) -> bool:
    has_length = hasattr(value, "__len__") and (not isinstance(value, np.ndarray) or value.ndim > 0)
    return has_length and hasattr(value, "__getitem__")


def _none(value: Any) -> bool:
    return value is None


def _nothing(value: Any) -> bool:
    return False


def _anything(value: Any) -> bool:
    return True


Call = Callable[[Any], Any]
Taken = Callable[[Any], bool]


def _argument(function: Callable[..., Any], name: str, /, **given: Any) -> Call:
    """The function with an odd value for one of its arguments."""
    return lambda value: function(**given | {name: value})


def _rows(tell: Callable[[Any], Any]) -> Call:
    return lambda indices: shown(tell(indices))


def _item(dataset: Any) -> Call:
    return lambda index: shown(dataset[index])


def _synthetic(**arguments: Any) -> str:
    return synthetic_lines(**arguments).fingerprint


def _texts_stream(**arguments: Any) -> str:
    return text_line_images(**arguments).fingerprint


def _pipeline_dataset(**arguments: Any) -> PskdDataset:
    dataset = pipeline_stream(**arguments).dataset
    assert isinstance(dataset, PskdDataset)
    return dataset


def _datasets(directory: Path) -> Iterator[tuple[str, Call, Taken]]:
    lines = directory / "lines.txt"
    lines.write_text("one\ntwo\nthree")
    synthetic, both, images = SyntheticLines(5), ConcatDataset([range(3), range(4)]), TextLineImages([lines])
    for name in ("count", "height", "min_width", "max_width", "seed"):
        yield f"SyntheticLines {name}", _argument(SyntheticLines, name), _integer
    for name in ("seed", "batch_size", "count", "width_multiple"):
        yield f"synthetic_lines {name}", _argument(_synthetic, name), _integer
    yield "synthetic_lines augment", _argument(_synthetic, "augment"), _bool
    yield "TextLineImages height", lambda x: len(TextLineImages([lines], x)), _integer
    yield "TextLineImages max_lines", lambda x: len(TextLineImages([lines], 8, x)), _none_or_integer
    yield "TextLineImages files", lambda x: len(TextLineImages(x, 8, 10)), _none
    yield "TextLineImages files[0]", lambda x: len(TextLineImages([x])), _nothing
    for name, taken in (("seed", _integer), ("width_multiple", _integer), ("max_lines", _none_or_integer)):
        yield f"text_line_images {name}", _argument(_texts_stream, name, files=[lines], batch_size=1), taken
    yield "text_line_images batch_size", _argument(_texts_stream, "batch_size", files=[lines]), _integer
    yield "ConcatDataset", lambda x: len(ConcatDataset(x)), _sized
    yield "ConcatDataset[0]", lambda x: len(ConcatDataset([x])), _is_dataset
    yield "ConcatDataset.locate", both.locate, _integer
    yield "TextLineImages.text", images.text, _integer
    for one in (synthetic, both, images):
        yield f"{type(one).__name__}[]", _item(one), _integer
    yield "SyntheticLines.widths", _rows(synthetic.widths), _integers
    yield "TextLineImages.widths", _rows(images.widths), _integers
    yield "ConcatDataset.widths", _rows(ConcatDataset([synthetic, images]).widths), _integers


def _readers(directory: Path) -> Iterator[tuple[str, Call, Taken]]:
    file = directory / "a.psk.d"
    write(file, _TYPE, _SAMPLES)
    windows, reader, dataset = LmWindows(np.arange(9), 2, 1, 9), Reader(file), PskdDataset(file)
    for one in (windows, reader, dataset):
        yield f"{type(one).__name__}[]", _item(one), _integer
        yield f"{type(one).__name__}.read", _rows(one.read), _integers
    yield "Reader.params_reals", lambda x: reader.params_reals(x).tolist(), _integer
    yield "Reader path", lambda x: len(Reader(x)), _nothing
    yield "Reader reals", lambda x: len(Reader(file, reals=x)), _nothing
    yield "Reader layout", lambda x: len(Reader(file, layout=x)), _none
    yield "Reader.with_layout", lambda x: len(reader.with_layout(x)), _nothing
    yield "PskdDataset path", lambda x: len(PskdDataset(x)), _nothing
    yield "PskdDataset names", lambda x: PskdDataset(file, x).names, _texts
    yield "PskdDataset reals", lambda x: len(PskdDataset(file, reals=x)), _nothing
    yield "PskdDataset layout", lambda x: len(PskdDataset(file, layout=x)), _none
    given = {"tokens": np.arange(9), "seq": 2, "stride": 1, "vocab": 9}
    for name in given:
        taken = _integers if name == "tokens" else _integer
        yield f"LmWindows {name}", _argument(lambda **k: len(LmWindows(**k)), name, **given), taken
    yield "info path", info, _nothing
    yield "info n", lambda x: info(file, x), _integer
    pipe = {"pipeline": f"stream {file}"}
    yield "pipeline_stream", pipeline_stream, _nothing
    yield "pipeline_stream names", lambda x: _pipeline_dataset(names=x, **pipe).names, _texts
    yield "pipeline_stream directory", lambda x: _pipeline_dataset(directory=x, **pipe).path, _text


def _layouts() -> Iterator[tuple[str, Call, Taken]]:
    yield "idx_width", idx_width, _integer
    yield "parse_type", parse_type, _nothing
    yield "Enc", pskd.Enc, _integer
    yield "Leaf bound", lambda x: Leaf(x, ()), _none_or_integer
    yield "Leaf shape", lambda x: Leaf(None, x), _integers
    yield "Leaf shape[0]", lambda x: Leaf(None, (x,)), _integer
    yield "Tuple", Tuple, _empty
    yield "Record", Record, _empty
    yield "Record name", lambda x: Record(((x, _LAYOUT),)), _text
    yield "Record layout", lambda x: Record((("a", x),)), _nothing
    fields = {"version": 1, "type_text": _TYPE, "layout": _LAYOUT, "count": 3, "encodings": None, "nbytes": 9}
    takes = {"type_text": _text, "layout": _none, "encodings": lambda x: x is None or _integers(x)}
    for name in fields:
        yield f"Header {name}", _argument(Header, name, **fields), takes.get(name, _integer)
    yield "Header.read", Header.read, _nothing


def _orders() -> Iterator[tuple[str, Call, Taken]]:
    pipeline, sampler = Pipeline(9, 7, 3), PipelineSampler(Pipeline(9, 7, 3))
    for name in ("count", "shuffle", "batch", "take"):
        taken = _integer if name in ("count", "batch") else _none_or_integer
        yield f"Pipeline {name}", _argument(Pipeline, name, count=9), taken
    yield "Pipeline.indices epoch", lambda x: pipeline.indices(x, 0).tolist(), _integer
    yield "Pipeline.indices batch", lambda x: pipeline.indices(1, x).tolist(), _integer
    yield "Pipeline.epoch", lambda x: shown(list(pipeline.epoch(x))), _integer
    yield "PipelineSampler", PipelineSampler, _nothing
    yield "PipelineSampler.indices epoch", lambda x: sampler.indices(x, 0).tolist(), _integer
    yield "PipelineSampler.indices step", lambda x: sampler.indices(0, x).tolist(), _integer
    yield "parse_pipeline", parse_pipeline, _nothing
    given = {"n": 9, "seed": 7, "epoch": 1}
    for name in given:
        yield f"shuffle_indices {name}", _argument(lambda **k: shuffle_indices(**k).tolist(), name, **given), _integer


def _text_tools() -> Iterator[tuple[str, Call, Taken]]:
    given = {"tokens": range(9), "seq": 2, "stride": 1, "vocab": 9}
    takes = {"tokens": _integers, "vocab": lambda x: _integer(x) or _texts(x) or _text(x)}
    for name in given:
        yield (
            f"lm_windows {name}",
            _argument(lambda **k: len(lm_windows(**k)), name, **given),
            takes.get(name, _integer),
        )
    yield "char_vocab", char_vocab, _text
    yield "encode text", lambda x: encode(x, ["a", "3"]).tolist(), _text
    yield "encode vocab", lambda x: encode("", x).tolist(), lambda x: _texts(x) or _text(x)
    yield "decode_text tokens", lambda x: decode_text(x, ["a"] * 9), _integers
    yield "decode_text vocab", lambda x: decode_text([], x), lambda x: _texts(x) or _text(x)


def _writers(directory: Path) -> Iterator[tuple[str, Call, Taken]]:
    out = directory / "out"
    yield "Writer path", lambda x: Writer(directory / x if _text(x) else x, _TYPE).abort(), _text
    yield "Writer type_text", lambda x: Writer(out, x).abort(), _nothing
    yield "Writer encodings", lambda x: Writer(out, _TYPE, encodings=x).abort(), _empty
    yield "Writer layout", lambda x: Writer(out, _TYPE, layout=x).abort(), _none
    yield "write samples", lambda x: write(out, "ℝ[]", x), _anything
    yield "write sample", lambda x: write(out, "ℝ[]", [x]), _real
    yield "write idx", lambda x: write(out, "idx[9][]", [x]), _integer
    yield "write tuple", lambda x: write(out, _TYPE, [x]), _nothing
    yield "write_encoded encodings", lambda x: write_encoded(out, _TYPE, [], x), _empty
    yield "Writer.add_rows", lambda x: _add_rows(out, x), _anything


def _add_rows(path: Path, rows: Any) -> bytes:
    with Writer(path, "ℝ[]") as writer:
        writer.add_rows(rows)
    return path.read_bytes()


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Call, Taken]]:
    directory = tmp_path_factory.mktemp("odd")
    rows = [*_datasets(directory), *_readers(directory), *_layouts(), *_orders(), *_text_tools(), *_writers(directory)]
    return {name: (call, taken) for name, call, taken in rows}


def _name(value: Any) -> str:
    """The name of a row: without an address, for every process must find the same tests."""
    text = shown(value)
    return type(value).__name__ if " at 0x" in text or "..." in text else text


def _outcome(call: Call, value: Any) -> tuple[Any, LoaderServiceError | None]:
    try:
        return call(value), None
    except LoaderServiceError as error:
        return None, error


@pytest.mark.parametrize("value", ODD, ids=_name)
def test_an_odd_value_is_taken_as_its_python_value_or_refused_by_one_error(
    value: Any, calls: dict[str, tuple[Call, Taken]]
) -> None:
    for name, (call, taken) in calls.items():
        result, error = _outcome(call, value)
        if error is not None:
            assert len(error.message) < 2000, name
            continue
        assert taken(value), f"{name} has taken {shown(value)}"
        if isinstance(value, np.generic | np.ndarray) and value.ndim == 0:
            assert result == call(_plain(value)), name


def test_every_public_name_is_in_the_table(calls: dict[str, tuple[Call, Taken]]) -> None:
    called = {re.split(r"[\[. ]", name)[0] for name in calls}
    named = {
        name for name in (*data.__all__, *pskd.__all__) if callable(getattr(pskd, name, getattr(data, name, None)))
    }
    assert named - {"Dataset", "DataError"} - called == set(), "a protocol and an error are in no table"
