"""Origin of the rows of a batch: told without reading a sample, and the same as in the batch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader_service.cli.main import main
from loader_service.contract.collate import StackCollator
from loader_service.contract.rng import derive
from loader_service.contract.samplers import BucketedSampler, MixingSampler, Sampler, SequentialSampler, ShuffledSampler
from loader_service.contract.stream import Stream
from loader_service.errors import ArgumentError

SAMPLERS: list[Sampler] = [
    SequentialSampler(20, 3, drop_last=False),
    ShuffledSampler(20, 3, 8),
    MixingSampler([5, 0, 15], [1, 1, 1], 3, 8),
    BucketedSampler(np.arange(20) % 7, 3, 2, 8, drop_last=False),
]


@dataclass(frozen=True)
class Unreadable:
    """A dataset of which no sample can be read."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int, /) -> Any:
        raise AssertionError(f"sample {index} was read")


def mixed() -> Stream:
    """A stream for the command line: it explains its batches although none can be built."""
    return Stream(Unreadable(), MixingSampler([5, 0, 15], [1, 1, 1], 3, 8), StackCollator(), seed=8)


def shuffled(seed: int = 8) -> Stream:
    return Stream(Unreadable(), ShuffledSampler(20, 3, seed), StackCollator(), seed=seed)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
@given(step=st.integers(0, 30) | st.integers(0, 2**60))
@settings(max_examples=25)
def test_the_rows_are_those_of_the_batch_and_no_sample_is_read(sampler: Sampler, step: int) -> None:
    explanation = Stream(Unreadable(), sampler, StackCollator(), seed=-3).explain(step)
    batch = Stream(range(20), sampler, StackCollator(), seed=-3).build(step)
    assert explanation.rows.indices.tolist() == batch["indices"].tolist() == batch["data"].tolist()
    assert (explanation.step, explanation.epoch, explanation.step_in_epoch) == (step, batch.epoch, batch.step_in_epoch)
    place = -3, batch.epoch, batch.step_in_epoch
    slots = range(len(batch["indices"]))
    assert explanation.transform_keys.tolist() == [derive(*place, slot, 0) for slot in slots]
    assert explanation.augmentation_keys.tolist() == [derive(*place, slot, 1) for slot in slots]


def test_mixing_tells_the_source_of_each_row() -> None:
    explanation = mixed().explain(4)
    assert explanation.rows.sources is not None
    assert explanation.rows.sources.tolist() == [0 if i < 5 else 2 for i in explanation.rows.indices.tolist()]
    assert shuffled().explain(4).rows.sources is None


def test_the_table_has_a_row_of_plain_values_for_each_slot() -> None:
    explanation = mixed().explain(4)
    table = explanation.table()
    assert [row["slot"] for row in table] == [0, 1, 2]
    assert [row["index"] for row in table] == explanation.rows.indices.tolist()
    assert all(type(value) is int for row in table for value in row.values())
    assert {row["source"] for row in shuffled().explain(4).table()} == {None}


@pytest.mark.parametrize("step", [-1, 2**64 * 6])
def test_a_step_outside_every_run_is_refused(step: int) -> None:
    with pytest.raises(ArgumentError, match=r"(step|epoch) is"):
        shuffled().explain(step)


@pytest.fixture
def config(tmp_path: Path) -> str:
    """A configuration with both streams, the second with a seed of its own."""
    path = tmp_path / "loader.toml"
    path.write_text(
        f'[streams.mixed]\nfactory = "{__name__}:mixed"\n'
        f'[streams.shuffled]\nfactory = "{__name__}:shuffled"\nargs = {{ seed = 5 }}\n'
        f'[streams.broken]\nfactory = "{__name__}:nothing"\n'
    )
    return str(path)


def test_the_command_prints_place_and_rows(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", config, "mixed", "100"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "step 100, epoch 16, step in epoch 4"
    expected = mixed().explain(100).table()
    assert [[int(word) for word in line.split()] for line in lines[-3:]] == [list(row.values()) for row in expected]
    assert lines[-4].split() == list(expected[0])


def test_a_column_without_values_is_left_out(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", config, "shuffled", "0"]) == 0
    assert "source" not in capsys.readouterr().out


def test_the_command_writes_json_for_programs(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", config, "shuffled", "100", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"step": 100, "epoch": 16, "step_in_epoch": 4, "slots": shuffled(5).explain(100).table()}


@pytest.mark.parametrize(
    ("stream", "step", "code", "message"),
    [
        ("other", "0", 2, "there is no stream 'other'; the file has mixed, shuffled, broken"),
        ("broken", "0", 2, "has no attribute 'nothing'"),
        ("mixed", "-1", 1, "step is -1; global steps count from 0"),
    ],
)
def test_what_cannot_be_explained_ends_in_one_message(
    config: str, capsys: pytest.CaptureFixture[str], stream: str, step: str, code: int, message: str
) -> None:
    assert main(["explain", config, stream, step]) == code
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_a_missing_file_and_a_step_that_is_no_number_are_told(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(tmp_path / "none.toml"), "mixed", "0"]) == 2
    assert "none.toml" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["explain", config, "mixed", "first"])
    assert "invalid int value: 'first'" in capsys.readouterr().err
