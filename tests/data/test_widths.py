"""Widths that a dataset tells without making its images are the widths of the images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loader_service.data import SyntheticLines, TextLineImages

TEXT = "def f(x):\n    return x\n|\n\tg = 'jÀ|_$'\n日本語 𝒳\n  .  .\nMMMMMMMM\ni\n\u2800\u200b\n" + "W" * 300


@pytest.mark.parametrize(
    "lines",
    [
        SyntheticLines(),
        SyntheticLines(100, min_width=7, max_width=7),
        SyntheticLines(1, height=1, min_width=1, max_width=2),
        SyntheticLines(500, height=4, min_width=1, max_width=1000, seed=-5),
    ],
    ids=str,
)
def test_synthetic_lines_tell_their_widths(lines: SyntheticLines) -> None:
    indices = np.arange(len(lines))
    widths = lines.widths(indices)
    assert widths.dtype == np.int64
    assert widths.tolist() == [lines[index].image.shape[2] for index in indices.tolist()]
    assert lines.widths(indices[::-3]).tolist() == widths[::-3].tolist()
    assert lines.widths(indices[:0]).shape == (0,)


@pytest.mark.parametrize("height", [8, 32, 33])
def test_text_lines_tell_their_widths(tmp_path: Path, height: int) -> None:
    file = tmp_path / "text.txt"
    file.write_text(TEXT, encoding="utf-8")
    dataset = TextLineImages([file], height)
    indices = np.arange(len(dataset))
    widths = dataset.widths(indices)
    assert len(set(widths.tolist())) > 5
    assert widths.tolist() == [dataset[index].image.shape[2] for index in indices.tolist()]
    assert dataset.widths(indices[::-2]).tolist() == widths[::-2].tolist()
    assert dataset.widths(indices[:0]).shape == (0,)
