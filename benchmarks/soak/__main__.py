"""`python -m benchmarks.soak --minutes N [--seed S] [--fill] [--json FILE]`.

Exit codes: 0 nothing wrong, no error, no leak; 1 otherwise; 2 wrong arguments; 130 interrupted, and nothing wrong.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from pathlib import Path

from benchmarks.processes import ResourceUsage
from benchmarks.soak.run import SoakOptions, SoakResult, soak
from benchmarks.soak.schedule import FaultKind
from benchmarks.soak.shm_filler import ShmFiller

_INTERRUPTED = 130


def main() -> int:
    """Parse the arguments, run a soak and print its results; the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, required=True, help="how long the consumers read")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random")
    parser.add_argument("--fill", action="store_true", help="fill /dev/shm now and then: harms whoever else uses it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures")
    arguments = parser.parse_args()
    if arguments.fill:
        try:
            ShmFiller.check()
        except ValueError as error:
            parser.error(str(error))
    interrupted = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: interrupted.set())
    print(f"soaking for {arguments.minutes:g} minutes; Ctrl-C ends it", flush=True)
    result = soak(SoakOptions(arguments.minutes * 60, arguments.seed, arguments.fill), interrupted.is_set)
    _print(result)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result.to_mapping(), indent=2))
    return (_INTERRUPTED if interrupted.is_set() else 0) if result.good else 1


def _print(result: SoakResult) -> None:
    print(f"seed {result.options.seed}, {result.seconds:.0f} s, {len(result.daemons)} daemons")
    for name, (planned, done) in result.faults.items():
        _print_row(FaultKind[name.upper()].value, f"{done} of {planned}" if done != planned else str(done))
    _print_row("batches checked", f"{result.batches:,}")
    _print_row("views checked again", f"{result.views:,}")
    for name, number in result.notes.items():
        _print_row(name, f"{number:,}")
    _print_row("longest wait of a consumer, s", f"{max(result.waits, default=(0.0, ''))[0]:.1f}")
    _print_row("wrong", str(result.wrong))
    _print_row("errors", str(result.errors))
    _print_row("leaks", str(len(result.leaks)))
    print(f"  {'':<44}{'descriptors':>16}{'threads':>12}{'PSS in MiB':>18}")
    _print_usage(f"the daemon that lived {result.longest_s:.0f} s", result.longest)
    _print_usage("daemon without consumers, first and last", result.at_rest)
    _print_usage("this process", result.own)
    for text in [*result.texts, *(f"LEAK {leak}" for leak in result.leaks)]:
        print(f"\n{text}")


def _print_row(name: str, value: str) -> None:
    print(f"  {name:<44}{value:>16}")


def _print_usage(name: str, pair: tuple[ResourceUsage | None, ResourceUsage | None]) -> None:
    before, after = pair
    if before is not None and after is not None:
        descriptors = f"{before.descriptors} -> {after.descriptors}"
        pss = f"{before.pss_kib / 1024:.1f} -> {after.pss_kib / 1024:.1f}"
        print(f"  {name:<44}{descriptors:>16}{f'{before.threads} -> {after.threads}':>12}{pss:>18}")


if __name__ == "__main__":
    sys.exit(main())
