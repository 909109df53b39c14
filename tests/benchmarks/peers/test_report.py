"""The table of the peers: medians of the runs, one row a case, nothing where nothing was measured."""

from __future__ import annotations

from benchmarks.peers.measure import Figures
from benchmarks.peers.report import markdown, medians


def figures(case: str, slowest: float, wait_us_p50: float | None = None) -> Figures:
    return Figures(
        case, f"the {case}", "lines", slowest, 2 * slowest, slowest / 1000, 0.5, 1.25, 100.0, 0.75, wait_us_p50
    )


def test_each_case_has_the_median_of_its_runs_in_the_order_in_which_they_came() -> None:
    found = medians([figures("b", 300.0), figures("a", 10.0), figures("b", 100.0, 7.0), figures("b", 200.0)])
    assert [(one.case, one.slowest, one.total) for one in found] == [("b", 200.0, 400.0), ("a", 10.0, 20.0)]
    assert found[0].wait_us_p50 == 7.0, "what only some runs measured is the median of those"
    assert found[1].wait_us_p50 is None


def test_a_table_has_a_row_a_case_and_empty_cells_for_what_was_not_measured() -> None:
    head, rule, row = markdown([figures("a", 1234.5)]).splitlines()
    assert head.startswith("| case | batches/s per consumer | of M | of N |")
    assert set(rule) <= set("|-: ")
    assert row == "| the a | 1,234 | 1.23 | 0.50 | 1.25 | 100 | 0.75 |  |  |"


def test_no_case_at_all_is_a_table_without_rows() -> None:
    assert len(markdown(medians([])).splitlines()) == 2
