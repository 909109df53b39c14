"""The figures of all axes as one picture, drawn with matplotlib.

Owns `draw`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.peers.measure import Figures
from benchmarks.scaling.axes import AXES

__all__ = ["draw"]

_ROWS = (
    ("batches/s of the slowest", "slowest"),
    ("CPU ms per delivered batch", "cpu_ms"),
    ("PSS of all processes, MB", "pss_mb"),
    ("first batch, s", "first_batch_s"),
)


def draw(results: Mapping[str, Mapping[int, Figures]], path: Path) -> None:
    """Draw a column of four small plots for each axis.

    Args:
        results: by axis and value.
        path: of the PNG file.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(results), 9), layout="constrained")
    plots = figure.subplots(len(_ROWS), len(results), squeeze=False)
    for column, (name, by_value) in enumerate(results.items()):
        values = list(by_value)
        for row, (title, what) in enumerate(_ROWS):
            plot = plots[row][column]
            plot.plot(values, [getattr(by_value[value], what) for value in values], marker="o", markersize=3)
            plot.set_xscale("symlog" if 0 in values else "log")
            plot.set_ylim(bottom=0)
            plot.grid(visible=True, alpha=0.3)
            if column == 0:
                plot.set_ylabel(title)
            if row == len(_ROWS) - 1:
                plot.set_xlabel(AXES[name].title)
    figure.savefig(path, dpi=110)
