"""Measure the service beside its peers.

    python -m benchmarks.peers [--seconds 5] [--rounds 3] [--waits] [--list] [CASE ...]

Prints one JSON line a run, then a table of the medians in Markdown. Cases whose libraries are not installed are named
and left out. Keep the machine otherwise idle.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.peers.cases import CASES, Case, missing
from benchmarks.peers.measure import CaseError, Figures, Reference, measure
from benchmarks.peers.report import markdown, medians

__all__ = ["main"]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.peers", description="Measure the service beside its peers.")
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help="names of cases, or patterns such as 'ours_*'; default: all"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each case is counted (5)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each case runs, in turns (3)")
    parser.add_argument("--waits", action="store_true", help="also how long a batch that is built is waited for")
    parser.add_argument("--list", action="store_true", help="name the cases and end")
    return parser.parse_args()


def _chosen(names: list[str]) -> list[Case]:
    chosen = [case for case in CASES.values() if not names or any(fnmatch(case.name, name) for name in names)]
    for case in chosen:
        if missing(case):
            print(f"{case.name}: left out, for it needs {', '.join(missing(case))}", file=sys.stderr)
    return [case for case in chosen if not missing(case)]


def main() -> None:
    """Run the cases in turns and print them."""
    arguments = _arguments()
    if arguments.list:
        print("\n".join(f"{case.name:<20}{case.title}" for case in CASES.values()))
        return
    chosen, runs = _chosen(arguments.cases), list[Figures]()
    reference = Reference()
    reference.measure()
    with tempfile.TemporaryDirectory(prefix="ls-peers-") as workspace:
        for _ in range(arguments.rounds):
            for case in chosen:
                try:
                    figures = measure(case, arguments.seconds, reference, Path(workspace), arguments.waits)
                except CaseError as error:
                    print(f"{case.name}: {error}", file=sys.stderr)
                    continue
                runs.append(figures)
                print(figures.line(), flush=True)
    print()
    print(markdown(medians(runs)))


if __name__ == "__main__":
    main()
