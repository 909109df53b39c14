"""The cost of sharing: one daemon with 1 to 8 consumers, beside the in-process Loader.

    python -m benchmarks.sharing [--steps 300] [--rounds 3]

The workload is that of `synthetic_lines`: batches of 128. Each consumer is a process that reads as
fast as it can, so all of them, the workers and the daemon share the machine's cores. A round runs every case once; the
table shows the median of the rounds. Ratios of rates are taken within a run, never across runs.

    slowest     batches/s of the slowest consumer
    /alone      that, over the rate of one consumer in the same run
    CPU ms      of workers, daemon and consumers together, for one delivered batch
    PSS MiB     summed over all processes of the case, shared pages divided among them
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass

import loader_client
from benchmarks.processes import cpu_seconds, mapped_segments, pss_bytes
from loader_service import Loader, LocalService
from loader_service.data import synthetic_lines

__all__ = ["main"]

_CONSUMERS = [1, 2, 4, 8]
_READER = "benchmarks.sharing_reader"
_ASKED = 400


@dataclass(frozen=True, slots=True)
class _Round:
    """Figures of one round of a case.

    Attributes:
        slowest: Batches per second of the slowest consumer.
        cpu_ms: CPU time by role, in milliseconds for one delivered batch.
        pss_bytes: Proportional set size of all processes together.
    """

    slowest: float
    cpu_ms: dict[str, float]
    pss_bytes: int


def _serve(prefetch: int = 16) -> LocalService:
    stream = {"factory": "loader_service.data:synthetic_lines", "prefetch": prefetch}
    return LocalService({"server": {"workers": 2}, "streams": {"lines": stream}})


def _loader(steps: int) -> _Round:
    stream = synthetic_lines()
    stream.build(0)
    cpu, start = time.process_time(), time.perf_counter()
    for batch in Loader(stream, 0, steps):
        batch.release()
    seconds, used = time.perf_counter() - start, time.process_time() - cpu
    return _Round(steps / seconds, {"all": 1000 * used / steps}, pss_bytes([0]))


def _read(endpoint: str, spans: list[tuple[int, int, float]]) -> list[subprocess.Popen[str]]:
    """Start a reader for each (start, stop, pause_s); they are connected, and begin at a line on their input."""
    command = [sys.executable, "-m", _READER, endpoint]
    readers = [
        subprocess.Popen(
            [*command, str(start), str(stop), str(pause_s)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for start, stop, pause_s in spans
    ]
    for reader in readers:
        _line(reader)
    return readers


def _line(reader: subprocess.Popen[str]) -> str:
    assert reader.stdout is not None
    return reader.stdout.readline()


def _go(reader: subprocess.Popen[str]) -> None:
    assert reader.stdin is not None
    reader.stdin.write("go\n")
    reader.stdin.flush()


def _shared(daemon: LocalService, consumers: int, start: int, steps: int) -> _Round:
    """Measure `consumers` readers of the same steps."""
    with loader_client.connect(daemon.endpoint) as client:
        workers = [worker["pid"] for worker in client.status()["workers"]]
    assert daemon.pid is not None
    readers = _read(daemon.endpoint, [(start, start + steps, 0.0)] * consumers)
    roles = {"workers": workers, "daemon": [daemon.pid], "consumers": [reader.pid for reader in readers]}
    before = {role: cpu_seconds(pids) for role, pids in roles.items()}
    for reader in readers:
        _go(reader)
    rates = [float(_line(reader)) for reader in readers]
    delivered = steps * consumers
    cpu_ms = {role: 1000 * (cpu_seconds(pids) - before[role]) / delivered for role, pids in roles.items()}
    pss = pss_bytes([pid for pids in roles.values() for pid in pids])
    for reader in readers:
        _go(reader)
        reader.wait()
    return _Round(min(rates), cpu_ms, pss)


def _beside_a_slow_one(daemon: LocalService, start: int, steps: int) -> tuple[float, float]:
    """Measure a reader of 20 ms a batch alone, and beside one of 100 ms that is split off: batches per second."""
    rates = []
    for others in ([], [(start + 100_000, start + 200_000, 0.1)]):
        first = start + (100_000 if others else 0)
        readers = _read(daemon.endpoint, [(first, first + steps, 0.02), *others])
        for reader in readers:
            _go(reader)
        rates.append(float(_line(readers[0])))
        for reader in readers:
            reader.kill()
            reader.wait()
    return rates[0], rates[1]


def _ask(daemon: LocalService, pause_s: float) -> list[float]:
    """Time requests for steps that are built, each `pause_s` after the last one: seconds."""
    taken = []
    with loader_client.connect(daemon.endpoint) as client, client.open("lines", 10**6, hold=2) as consumer:
        for count in range(_ASKED + 20):
            time.sleep(pause_s)
            start = time.perf_counter()
            batch = next(consumer)
            if count >= 20:
                taken.append(time.perf_counter() - start)
            batch.release()
    return taken


def _ask_at_once(daemon: LocalService) -> list[float]:
    """Time requests for steps whose answer has come already, eight at a time, back to back: seconds."""
    taken = []
    with loader_client.connect(daemon.endpoint) as client, client.open("lines", 3 * 10**6, hold=15) as consumer:
        for _ in range(_ASKED // 8):
            time.sleep(0.2)
            for _ in range(8):
                start = time.perf_counter()
                batch = next(consumer)
                taken.append(time.perf_counter() - start)
                batch.release()
    return taken


def _first_batch_s(daemon: LocalService, step: int) -> float:
    """Time a consumer from its opening at `step`, where no other is, to its first batch: seconds."""
    with loader_client.connect(daemon.endpoint) as client:
        start = time.perf_counter()
        with client.open("lines", step) as consumer, consumer.get(step):
            return time.perf_counter() - start


def _steady(daemon: LocalService) -> int:
    """Count the segments that client and workers map anew in 300 steps of a steady state."""
    with loader_client.connect(daemon.endpoint) as client, client.open("lines", 2 * 10**6) as consumer:
        pids = [0, *(worker["pid"] for worker in client.status()["workers"])]
        before: list[set[str]] = []
        for batch in consumer:
            batch.release()
            if batch.step == 2 * 10**6 + 50:
                before = [mapped_segments(pid) for pid in pids]
            if batch.step == 2 * 10**6 + 350:
                break
        return sum(len(mapped_segments(pid) - known) for pid, known in zip(pids, before, strict=True))


def _print_rounds(rounds: dict[str, list[_Round]]) -> None:
    print(f"{'':<14}{'slowest':>10}{'/alone':>9}{'/Loader':>9}{'CPU ms':>9}{'PSS MiB':>9}   CPU ms by role")
    rate = {name: statistics.median(one.slowest for one in found) for name, found in rounds.items()}
    for name, found in rounds.items():
        roles = {role: statistics.median(one.cpu_ms[role] for one in found) for role in found[0].cpu_ms}
        alone = statistics.median(
            one.slowest / base.slowest for one, base in zip(found, rounds["1 consumer"], strict=True)
        )
        of_loader = statistics.median(
            one.slowest / base.slowest for one, base in zip(found, rounds["Loader"], strict=True)
        )
        pss = statistics.median(one.pss_bytes for one in found) / 2**20
        told = ", ".join(f"{role} {ms:.2f}" for role, ms in roles.items())
        print(
            f"{name:<14}{rate[name]:>10.1f}{alone:>9.2f}{of_loader:>9.2f}{sum(roles.values()):>9.2f}{pss:>9.0f}   "
            f"{told}"
        )


def _percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def main() -> None:
    """Run all cases and print the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.sharing", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rounds: dict[str, list[_Round]] = {}
    with ExitStack() as stack:
        daemon = stack.enter_context(_serve())
        for turn in range(arguments.rounds):
            rounds.setdefault("Loader", []).append(_loader(arguments.steps))
            for place, consumers in enumerate(_CONSUMERS):
                start = 10_000 * (1 + turn * len(_CONSUMERS) + place)
                name = f"{consumers} consumer{'s' * (consumers > 1)}"
                rounds.setdefault(name, []).append(_shared(daemon, consumers, start, arguments.steps))
        _print_rounds(rounds)
        for pause_s in (0.02, 0.05):
            taken = _ask(daemon, pause_s)
            p50, p99 = (1e6 * _percentile(taken, part) for part in (0.5, 0.99))
            print(f"asking for a built step every {1000 * pause_s:.0f} ms: p50 {p50:.0f} us, p99 {p99:.0f} us")
        taken = _ask_at_once(daemon)
        p50, p99 = (1e6 * _percentile(taken, part) for part in (0.5, 0.99))
        print(f"asking for built steps back to back: p50 {p50:.0f} us, p99 {p99:.0f} us")
        late = [(_first_batch_s(daemon, turn), _first_batch_s(daemon, 10_000 + turn)) for turn in range(0, 1000, 100)]
        at_0, at_10_000 = (1000 * statistics.median(times) for times in zip(*late, strict=True))
        print(f"first batch of one who opens at step 0 {at_0:.1f} ms, at step 10,000 {at_10_000:.1f} ms")
        print(f"segments mapped anew in 300 steps of steady state: {_steady(daemon)}")
        alone, beside = _beside_a_slow_one(daemon, 5 * 10**6, 1000)
        print(
            f"a consumer of 20 ms a batch beside one of 100 ms: {beside / alone:.2f} of its {alone:.1f} batches/s alone"
        )


if __name__ == "__main__":
    main()
