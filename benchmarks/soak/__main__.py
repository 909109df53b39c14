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

from benchmarks.soak.plan import Kind
from benchmarks.soak.run import Options, Outcome, soak
from benchmarks.soak.shm_filler import Room
from benchmarks.soak.vitals import Vitals

_INTERRUPTED = 130


def main() -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, required=True, help="how long the consumers read")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random")
    parser.add_argument("--fill", action="store_true", help="fill /dev/shm now and then: harms whoever else uses it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures")
    arguments = parser.parse_args()
    if arguments.fill:
        try:
            Room.check()
        except ValueError as error:
            parser.error(str(error))
    interrupted = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: interrupted.set())
    print(f"soaking for {arguments.minutes:g} minutes; Ctrl-C ends it", flush=True)
    outcome = soak(Options(arguments.minutes * 60, arguments.seed, arguments.fill), interrupted.is_set)
    _print(outcome)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(outcome.to_mapping(), indent=2))
    return (_INTERRUPTED if interrupted.is_set() else 0) if outcome.good else 1


def _print(outcome: Outcome) -> None:
    print(f"seed {outcome.options.seed}, {outcome.seconds:.0f} s, {outcome.daemons} daemons")
    for name, (planned, done) in outcome.faults.items():
        _row(Kind[name.upper()].value, f"{done} of {planned}" if done != planned else str(done))
    _row("batches checked", f"{outcome.checked:,}")
    _row("views checked again", f"{outcome.again:,}")
    for name, number in outcome.notes.items():
        _row(name, f"{number:,}")
    _row("longest wait of a consumer, s", f"{max(outcome.waits, default=(0.0, ''))[0]:.1f}")
    _row("wrong", str(outcome.wrong))
    _row("errors", str(outcome.errors))
    _row("leaks", str(len(outcome.leaks)))
    print(f"  {'':<44}{'descriptors':>16}{'threads':>12}{'PSS in MiB':>18}")
    _pair(f"the daemon that lived {outcome.longest_s:.0f} s", outcome.life)
    _pair("daemon without consumers, first and last", outcome.rest)
    _pair("this process", outcome.own)
    for text in [*outcome.texts, *(f"LEAK {leak}" for leak in outcome.leaks)]:
        print(f"\n{text}")


def _row(name: str, value: str) -> None:
    print(f"  {name:<44}{value:>16}")


def _pair(name: str, pair: tuple[Vitals | None, Vitals | None]) -> None:
    before, after = pair
    if before is not None and after is not None:
        descriptors = f"{before.descriptors} -> {after.descriptors}"
        pss = f"{before.pss_kib / 1024:.1f} -> {after.pss_kib / 1024:.1f}"
        print(f"  {name:<44}{descriptors:>16}{f'{before.threads} -> {after.threads}':>12}{pss:>18}")


if __name__ == "__main__":
    sys.exit(main())
