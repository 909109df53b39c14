"""Measure how cost grows, one thing at a time.

    python -m benchmarks.scaling [--seconds 3] [--rounds 3] [--picture scaling.png] [AXIS ...]

Axes: consumers, workers, batch, prefetch, samples, start. Prints one JSON line a run, then a table an axis. The picture
needs matplotlib. Keep the machine otherwise idle.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.peers.measure import CaseError, Figures, Reference, measure
from benchmarks.peers.report import markdown, medians
from benchmarks.scaling.axes import AXES
from benchmarks.scaling.picture import draw

__all__ = ["main"]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.scaling", description="Measure how cost grows.")
    parser.add_argument(
        "axes", nargs="*", metavar="AXIS", choices=[[], *AXES], help=f"of {', '.join(AXES)}; default: all"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each case is counted (3)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each case runs, in turns (3)")
    parser.add_argument("--picture", type=Path, help="draw the medians into this PNG file")
    return parser.parse_args()


def _measure(name: str, arguments: argparse.Namespace, reference: Reference, workspace: Path) -> dict[int, Figures]:
    """The medians of one axis, by value; a value that did not run is left out."""
    axis, runs = AXES[name], list[Figures]()
    for _ in range(arguments.rounds):
        for value in axis.values:
            try:
                runs.append(measure(axis.case(value), arguments.seconds, reference, workspace, waits=False))
                print(runs[-1].line(), flush=True)
            except CaseError as error:
                print(f"{name} {value}: {error}", file=sys.stderr)
    by_case = {one.case: one for one in medians(runs)}
    return {value: by_case[case] for value in axis.values if (case := axis.case(value).name) in by_case}


def main() -> None:
    """Run the axes one after the other and print them."""
    arguments = _arguments()
    reference = Reference()
    with tempfile.TemporaryDirectory(prefix="ls-scaling-") as workspace:
        results = {
            name: _measure(name, arguments, reference, Path(workspace)) for name in (arguments.axes or list(AXES))
        }
    for name, by_value in results.items():
        print(f"\n{AXES[name].title}\n\n{markdown(list(by_value.values()))}")
    if arguments.picture:
        draw(results, arguments.picture)


if __name__ == "__main__":
    main()
