"""Timing: cases take turns, and ratios are taken within their group."""

from __future__ import annotations

from functools import partial

import pytest

from benchmarks.timing import Case, Result, print_results, run


def test_cases_are_warmed_up_once_and_then_take_turns() -> None:
    calls: list[str] = []
    cases = [Case("g", name, partial(calls.append, name), 1, "call") for name in ("a", "b")]
    results = run(cases, 3)
    assert calls == ["a", "b"] * 4
    assert [result.case for result in results] == cases


def test_a_ratio_is_that_to_the_first_of_the_group(capsys: pytest.CaptureFixture[str]) -> None:
    def result(group: str, seconds: float) -> Result:
        return Result(Case(group, f"{seconds}", lambda: None, 10, "item"), seconds)

    print_results([result("a", 2.0), result("a", 0.5), result("b", 4.0)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines] == ["1.00x", "4.00x", "1.00x"]
    assert "20 item/s" in lines[1]
