"""A consumer process that acts at random: `python -m benchmarks.soak.random_consumer ENDPOINT SEED LOG`.

Owns `RandomConsumer`. Invariant: it records each batch that it receives, each view that it kept for a while just before
it drops it, and each error that is not a promised one (see `event_log`). It ends at SIGTERM with code 0. Where its
parent is gone it stops the daemon, so that a soak that is killed leaves nothing.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import loader_client
from benchmarks.soak.consumer_session import ConsumerSession, KeptBatch
from benchmarks.soak.event_log import EventLog
from benchmarks.soak.streams import LINES
from loader_client import Client
from loader_service.errors import (
    BuildError,
    EvictedError,
    LoaderServiceError,
    MemoryLimitError,
    SharedMemoryError,
)

__all__ = ["RandomConsumer", "main"]

_TIMEOUT_S, _RECONNECT_S = 60.0, 120.0
_MAX_OUTLIVING = 4
"""Batches of consumers that are closed, or were opened again, that are kept at most."""
_REFUSALS = ("MemoryLimitError", "SharedMemoryError")


class RandomConsumer:
    """Opens a consumer, reads, seeks, keeps views, closes, and opens another one.

    Args:
        client: The connection of this process.
        rng: Source of all that is random.
        log: Where it records what it saw.
        told_to_end: Returns True once the process was told to end.
    """

    def __init__(self, client: Client, rng: random.Random, log: EventLog, told_to_end: Callable[[], bool]) -> None:
        self._client, self._rng, self._log, self._told_to_end = client, rng, log, told_to_end
        self._outliving: deque[KeptBatch] = deque()
        self._parent = os.getppid()

    def run(self) -> None:
        """Act until the process is to end."""
        while not self._ending():
            session = ConsumerSession(self._client, self._rng, self._log, self._ending)
            with self._promised_errors():
                try:
                    session.open()
                    session.act_at_random()
                except EvictedError:
                    self._log.note("evicted")
                    session.reopen()
                    session.act_at_random()
            self._close(session)
        self._drop_outliving(0)
        if self._orphaned:
            with suppress(LoaderServiceError):
                self._client.stop_service()

    def _close(self, session: ConsumerSession) -> None:
        try:
            session.close()
        except Exception as error:  # a close has no promised errors
            self._log.error(error)
        self._outliving.extend(session.outliving)
        self._drop_outliving(_MAX_OUTLIVING)

    def _drop_outliving(self, left: int) -> None:
        while len(self._outliving) > left:
            self._outliving.popleft().drop(self._log)

    @property
    def _orphaned(self) -> bool:
        return os.getppid() != self._parent

    def _ending(self) -> bool:
        return self._told_to_end() or self._orphaned

    @contextmanager
    def _promised_errors(self) -> Iterator[None]:
        """Record an eviction and a refusal for lack of memory as notes, and everything else as an error."""
        try:
            yield
        except EvictedError:
            self._log.note("evicted")
        except (MemoryLimitError, SharedMemoryError) as error:
            self._log.note(f"refused {type(error).__name__}: {error.message[:300]}")
            time.sleep(self._rng.uniform(0.05, 0.3))  # others may leave meanwhile
        except BuildError as error:
            if error.cause_type in _REFUSALS:
                self._log.note(f"refused {error.cause_type}: {error.cause_message[:300]}")
            else:
                self._log.error(error)
        except Exception as error:  # the soak reports it and goes on
            self._log.error(error)
            time.sleep(0.2)


def main() -> None:
    """Run with the arguments ENDPOINT SEED LOG."""
    endpoint, seed, path = sys.argv[1:]
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log = EventLog(path)  # whoever finds the file knows that SIGTERM is handled
    with loader_client.connect(endpoint, timeout_s=_TIMEOUT_S, reconnect_s=_RECONNECT_S) as client:
        assert LINES in client.streams
        RandomConsumer(client, random.Random(f"consumer {seed}"), log, lambda: bool(signals)).run()
    log.close()


if __name__ == "__main__":
    main()
