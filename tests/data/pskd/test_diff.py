"""Differences of containers: numbers whatever their encodings, the first places, and bytes where no layout is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loader_service.data.pskd import DataError, Enc, Leaf, parse_type, write, write_encoded
from loader_service.data.pskd.diff import Difference, diff


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "a.psk.d", tmp_path / "b.psk.d"


def test_equal_numbers_in_other_encodings_are_the_same(pair: tuple[Path, Path]) -> None:
    samples = [([0.5, -0.0],), ([1.0, 2.0],)]
    write(pair[0], "ℝ[2]", [one for (one,) in samples])
    write_encoded(pair[1], "ℝ[2]", [[0.5, 0.0], [1.0, 2.0]], [Enc.BF16])
    found = diff(*pair)
    assert found.same
    assert (found.headers, found.first, found.count, found.largest) == ((), (), 0, 0)


def test_values_that_differ_are_counted_and_the_first_are_named(pair: tuple[Path, Path]) -> None:
    write(pair[0], "(idx[9][2], ℝ[])", [([index, 1], 0.5) for index in range(5)])
    write(pair[1], "(idx[9][2], ℝ[])", [([index, 3], 0.5 + index) for index in range(5)])
    found = diff(*pair, limit=2)
    assert not found.same
    assert found.count == 5 + 4
    assert found.largest == 4
    assert found.first == (
        Difference("sample 0, leaf 0, element [1]", 1, 3),
        Difference("sample 1, leaf 0, element [1]", 1, 3),
    )


def test_nan_equals_nan_and_is_infinitely_far_from_a_number(pair: tuple[Path, Path]) -> None:
    for path, value in zip(pair, (0.0, 1.0), strict=True):
        write(path, "ℝ[2]", [[0.0, value]])
        data = bytearray(path.read_bytes())
        data[-16:-8] = np.array([np.nan]).tobytes()
        path.write_bytes(data)
    assert diff(*pair).first == (Difference("sample 0, leaf 0, element [1]", 0.0, 1.0),)
    data = bytearray(pair[0].read_bytes())
    data[-8:] = np.array([np.nan]).tobytes()
    pair[0].write_bytes(data)
    assert diff(*pair).largest == float("inf")


def test_large_integers_are_apart_by_what_they_are(pair: tuple[Path, Path]) -> None:
    for path, value in zip(pair, (2**64 - 2, 0), strict=True):
        write(path, f"idx[{2**64 - 1}][]", [value])
    assert diff(*pair).largest == 2**64 - 2


def test_other_counts_and_types_are_told(pair: tuple[Path, Path]) -> None:
    write(pair[0], "idx[9][]", [1, 2])
    write(pair[1], "idx[10][]", [1])
    assert diff(*pair).headers == ("type: idx[9][] and idx[10][]", "samples: 2 and 1")
    assert diff(*pair).count == 0
    write(pair[1], "ℝ[]", [5.0])
    assert diff(*pair).count == 0, "an idx is not compared with a real"


def test_params_files_are_compared_by_bytes_or_with_their_type_by_values(pair: tuple[Path, Path]) -> None:
    for path, value in zip(pair, (1.0, 1.5), strict=True):
        write(path, "params M", [[0.0, value]], parse_type("ℝ[2]"))
    assert diff(*pair).first == (Difference("byte 14 behind the header", 240, 248),)
    assert diff(*pair, type_text="ℝ[2]").first == (Difference("sample 0, leaf 0, element [1]", 1.0, 1.5),)
    write(pair[1], "params M", [[0.0, 1.0, 2.0]], Leaf(None, (3,)))
    assert diff(*pair).headers == ("bytes behind the header: 16 and 24",)
    with pytest.raises(DataError) as raised:
        diff(*pair, type_text="ℝ[2]")
    assert raised.value.code == "E9005"


def test_progress_is_told_to_the_end(pair: tuple[Path, Path]) -> None:
    for path in pair:
        write(path, "idx[9][]", range(7))
    told: list[tuple[int, int | None]] = []
    diff(*pair, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (7, 7)
