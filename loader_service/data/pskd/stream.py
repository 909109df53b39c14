"""A whole stream from the text of a pipeline.

Owns `parse_pipeline`, `PipelineSampler` and `pipeline_stream`. Invariant: epoch e of a run is epoch e + 1 of its
pipeline (R101), and any batch of any epoch is found without the others. A wrong text is an ArgumentError with the place
marked under it (R106).

    stream FILE |> shuffle(seed = 7) |> batch(B = 32) |> take(100);  each stage at most once, in this order
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.checks import checked_int, checked_text, shown
from loader_service.contract.collate import StackCollator
from loader_service.contract.stream import Stream
from loader_service.data.files import checked_path
from loader_service.data.pskd.dataset import PskdDataset
from loader_service.data.pskd.pipeline import Pipeline
from loader_service.errors import ArgumentError

__all__ = ["PipelineSampler", "PipelineText", "parse_pipeline", "pipeline_stream"]

_HEAD = re.compile(
    r"""\s*stream\s+(?:"(?P<double>[^"\0]+)"|'(?P<single>[^'\0]+)'|(?P<bare>[^\s"'\0](?:(?!\|>)[^\s\0])*))\s*"""
)
_STAGE = re.compile(r"\|>\s*(?P<name>\w+)\s*\(\s*(?:(?P<key>\w+)\s*=\s*)?(?P<value>-?[0-9]{1,20})\s*\)\s*")
_STAGES = {"shuffle": "seed", "batch": "B", "take": "n"}


@dataclass(frozen=True, slots=True)
class PipelineText:
    """A pipeline as written.

    Attributes:
        file: The container, as written.
        shuffle, batch, take: The numbers of the stages; None for a stage that is left out.
    """

    file: str
    shuffle: int | None = None
    batch: int | None = None
    take: int | None = None

    def over(self, count: int) -> Pipeline:
        """Apply the stages to a file of `count` samples. Raises ArgumentError."""
        return Pipeline(count, self.shuffle, 1 if self.batch is None else self.batch, self.take)


def _fail(text: str, place: int, problem: str) -> NoReturn:
    example = "stream corpus.psk.d |> shuffle(seed = 7) |> batch(B = 32) |> take(100)"
    raise ArgumentError(f"{problem}; a pipeline is such as {example}\n{text}\n{' ' * place}^")


def parse_pipeline(text: str) -> PipelineText:
    """Read the text of a pipeline.

    Raises:
        ArgumentError: If the text is wrong, with the place marked under it.

    >>> parse_pipeline("stream corpus.psk.d |> shuffle(seed = 7) |> batch(32)")
    PipelineText(file='corpus.psk.d', shuffle=7, batch=32, take=None)
    """
    head = _HEAD.match(checked_text("the pipeline", text))
    if head is None:
        _fail(text, len(text) - len(text.lstrip()), "it begins with `stream FILE`")
    place, numbers = head.end(), dict.fromkeys(_STAGES)
    stages: dict[str, int | None] = {**numbers}
    left = list(_STAGES)
    while place < len(text):
        stage = _STAGE.match(text, place)
        if stage is None:
            _fail(text, place, "a stage `|> name(number)` is expected here")
        name = stage["name"]
        if name not in left:
            _fail(text, stage.start("name"), f"the stages are {', '.join(_STAGES)}, each once and in this order")
        if stage["key"] not in (None, _STAGES[name]):
            _fail(text, stage.start("key"), f"{name} takes {_STAGES[name]}")
        stages[name] = int(stage["value"])
        left = left[left.index(name) + 1 :]
        place = stage.end()
    found = PipelineText(next(filter(None, head.groups())), **stages)
    try:
        found.over(0)
    except ArgumentError as error:
        _fail(text, head.end(), error.message)
    return found


@dataclass(frozen=True)
class PipelineSampler:
    """The batches of a pipeline as the steps of a stream.

    Raises:
        ArgumentError: If the pipeline has no batch in an epoch, or is none (R105).
    """

    pipeline: Pipeline

    def __post_init__(self) -> None:
        if not isinstance(self.pipeline, Pipeline):
            raise ArgumentError(f"pipeline is {shown(self.pipeline)}; it must be a Pipeline")
        if not self.pipeline.batches_per_epoch:
            raise ArgumentError(
                f"{self.pipeline} has no batch in an epoch: an incomplete last group is dropped; "
                "lower batch, or raise take"
            )

    @property
    def n(self) -> int:
        """The number of samples in the container."""
        return self.pipeline.count

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in an epoch."""
        return self.pipeline.batches_per_epoch

    def indices(self, epoch: int, step: int) -> NDArray[np.int64]:
        """Find the samples of one step: int64 [B]; epoch >= 0, 0 <= step < steps_per_epoch. Raises ArgumentError."""
        return self.pipeline.indices(checked_int("epoch", epoch, 0) + 1, step)


def pipeline_stream(pipeline: str, names: Sequence[str] = (), directory: str = "") -> Stream:
    """Make the stream of a pipeline's text, as `[streams.NAME] pipeline` configures it (R107).

    Args:
        pipeline: The text.
        names: Of the tensors, as of `PskdDataset`.
        directory: Where a relative FILE is looked for.

    Raises:
        ArgumentError: If the text is wrong, or the file cannot be read.
        DataError: If the file is no container.
    """
    text = parse_pipeline(pipeline)
    dataset = PskdDataset(checked_path("directory", directory) / text.file, names)
    sampler = PipelineSampler(text.over(len(dataset)))
    return Stream(dataset, sampler, StackCollator(), seed=text.shuffle or 0)
