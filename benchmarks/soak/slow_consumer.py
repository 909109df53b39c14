"""A slow consumer beside a fast one: `python -m benchmarks.soak.slow_consumer ENDPOINT SEED LOG`.

The slow one pauses 15 ms after each step, or five times as long as the fast one alone takes for one, so the fast one
waits often, and each time for a moment only. Both are alive and hold nothing. By its policy the slow one must be split
off after `patience_s` of such waits, or be evicted where there is no memory for a second ring. The process records an
error where the fast one was held up for far longer than that.
"""

from __future__ import annotations

import random
import statistics
import sys
import threading
import time

import loader_client
from benchmarks.soak.event_log import EventLog, ShardStep
from benchmarks.soak.streams import LINES
from loader_client import Batch, Client, Consumer
from loader_service.errors import BuildError, EvictedError, MemoryLimitError, SharedMemoryError

__all__ = ["main"]

_PATIENCE_S, _PAUSE_S = 0.2, 0.015
_MAX_HELD_UP_S = 15.0
"""Seconds of waits that are too long: far beyond the patience and the daemon's `evict_after_s` together."""
_RUN_S = 30.0
_FIRST_STEPS = range(100_000, 900_000)
"""Far from the steps of the random consumers."""


def main() -> None:
    """Run with the arguments ENDPOINT SEED LOG."""
    endpoint, seed, path = sys.argv[1:]
    log, rng = EventLog(path), random.Random(f"slow consumer {seed}")
    try:
        with loader_client.connect(endpoint, timeout_s=60.0, reconnect_s=120.0) as client:
            log.note(_try(client, rng.choice(_FIRST_STEPS), log))
    except (MemoryLimitError, SharedMemoryError) as error:
        log.note(f"refused {type(error).__name__}: {error.message[:300]}")
    except BuildError as error:
        if error.cause_type not in ("MemoryLimitError", "SharedMemoryError"):
            log.error(error)
    except Exception as error:
        log.error(error)
    log.close()


def _try(client: Client, step: int, log: EventLog) -> str:
    """Read with both; what came of the slow one."""
    with client.open(LINES, step) as fast:
        alone_s = statistics.median(_timed_step(fast, log) for _ in range(20))
        with client.open(LINES, fast.next_step, patience_s=_PATIENCE_S) as slow:
            return _read_side_by_side(fast, slow, max(_PAUSE_S, 5 * alone_s), log)


def _read_side_by_side(fast: Consumer, slow: Consumer, pause_s: float, log: EventLog) -> str:
    ending, evicted = threading.Event(), threading.Event()

    def read_slowly() -> None:
        try:
            while not ending.is_set():
                _record(slow.get(slow.next_step, timeout_s=60.0), log)
                ending.wait(pause_s)
        except EvictedError:
            evicted.set()
        except Exception as error:
            log.error(error)

    thread = threading.Thread(target=read_slowly)
    thread.start()
    held_up_s, end_s = 0.0, time.monotonic() + _RUN_S
    try:
        while time.monotonic() < end_s and not evicted.is_set() and thread.is_alive():
            ahead = fast.next_step - slow.next_step
            if ahead > fast.prefetch + 1:
                return "slow consumer split off"
            seconds = _timed_step(fast, log)
            held_up_s += seconds if ahead >= fast.prefetch - 1 else 0.0
            if held_up_s > _MAX_HELD_UP_S:
                log.error(
                    f"a consumer of patience_s = {_PATIENCE_S} held another up for {held_up_s:.1f} s in short waits"
                )
                return "slow consumer not split off"
    finally:
        ending.set()
        thread.join()
    return "slow consumer evicted" if evicted.is_set() else "slow consumer was in nobody's way"


def _timed_step(consumer: Consumer, log: EventLog) -> float:
    """Read the next step; the seconds that it took."""
    start_s = time.monotonic()
    batch = consumer.get(consumer.next_step, timeout_s=60.0)
    seconds = time.monotonic() - start_s
    _record(batch, log)
    return seconds


def _record(batch: Batch, log: EventLog) -> None:
    log.batch(ShardStep(LINES, batch.step, 0, 1), batch.digest())
    batch.release()


if __name__ == "__main__":
    main()
