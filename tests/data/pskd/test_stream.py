"""Pipelines as texts, and as streams."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loader_service import Loader
from loader_service.data.pskd import Pipeline, PipelineSampler, parse_pipeline, pipeline_stream, write
from loader_service.errors import ArgumentError


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.psk.d"
    write(path, "(idx[10][2], ℝ[])", [(np.array([i % 10, i // 10 % 10]), np.array(i / 4)) for i in range(50)])
    return path


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("stream a.psk.d", ("a.psk.d", None, None, None)),
        ("  stream  a.psk.d |>shuffle(7)|>batch( B=32 )|>take(n = 100)  ", ("a.psk.d", 7, 32, 100)),
        ('stream "my corpus.psk.d" |> batch(4)', ("my corpus.psk.d", None, 4, None)),
        ("stream 'it.psk.d' |> shuffle(seed = -1) |> take(0)", ("it.psk.d", -1, None, 0)),
        ("stream a.psk.d |> batch(B = 32)", ("a.psk.d", None, 32, None)),
        ("stream a.psk.d|>batch(2)", ("a.psk.d", None, 2, None)),
    ],
)
def test_a_pipelines_text_is_read(text: str, parts: tuple[object, ...]) -> None:
    found = parse_pipeline(text)
    assert (found.file, found.shuffle, found.batch, found.take) == parts


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", 0),
        ("read a", 0),
        ("stream", 0),
        ("stream a |> shuffel(7)", 12),
        ("stream a |> batch(4) |> shuffle(7)", 24),
        ("stream a |> batch(4) |> batch(4)", 24),
        ("stream a |> batch(B = x)", 9),
        ("stream a |> batch(٣)", 9),
        ("stream a |> batch(1_0)", 9),
        ("stream a |> batch(n = 4)", 18),
        ("stream a > batch(4)", 9),
        ("stream a |> batch(0)", 9),
        ("stream a |> shuffle(18446744073709551616)", 9),
        ("stream a |> batch(" + "9" * 5000 + ")", 9),
        ("stream ''", 0),
        ("stream a\0b", 8),
    ],
)
def test_a_mistake_in_a_pipelines_text_is_marked(text: str, place: int) -> None:
    with pytest.raises(ArgumentError) as raised:
        parse_pipeline(text)
    assert raised.value.message.splitlines()[-1] == " " * place + "^"


def test_a_pipeline_is_a_stream_whose_epochs_count_from_one_there(corpus: Path) -> None:
    stream = pipeline_stream(f"stream {corpus.name} |> shuffle(7) |> batch(4)", ["a", "b"], str(corpus.parent))
    pipeline = Pipeline(50, 7, 4)
    assert stream.steps_per_epoch == pipeline.batches_per_epoch == 12
    for batch in Loader(stream, 0, 30):
        wanted = pipeline.indices(batch.epoch + 1, batch.step_in_epoch)
        assert batch["indices"].tolist() == wanted.tolist()
        assert batch["b"].tolist() == (wanted / 4).tolist()


def test_a_pipeline_without_a_batch_is_no_stream() -> None:
    for pipeline in (Pipeline(3, batch=4), Pipeline(0), Pipeline(9, take=0)):
        with pytest.raises(ArgumentError, match="no batch in an epoch"):
            PipelineSampler(pipeline)
    far = PipelineSampler(Pipeline(10**12, 7, 128))
    assert len(set(far.indices(10**6, far.steps_per_epoch - 1).tolist())) == 128
