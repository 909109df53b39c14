"""A consumer process that acts at random as trainers do: `python -m benchmarks.soak.random_consumer ENDPOINT SEED LOG`.

Owns `Wanderer`. Invariant: each batch that it takes leaves a line in LOG, each view that it kept another one when it
is dropped, and each error that is not a promised one a third; lines are written whole. Ends at SIGTERM with code 0;
where its parent is gone it stops the daemon, so that a soak that is killed leaves nothing.

    STEP RANK WORLD DIGEST            a batch
    again STEP RANK WORLD DIGEST      a view that was kept for a while, just before it is dropped
    wait SECONDS until TIME after …   a request that took long, a stop of this process included
    note WHAT                         something that is promised to happen, such as an eviction
    error TEXT                        anything else, a JSON string
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections import deque
from contextlib import suppress

import loader_client
from benchmarks.soak.setting import STREAM
from benchmarks.soak.visit import Kept, Visit
from loader_client import Client
from loader_service.contract.batch import Batch
from loader_service.errors import (
    BuildError,
    EvictedError,
    HoldLimitError,
    LoaderServiceError,
    MemoryLimitError,
    SharedMemoryError,
)

__all__ = ["Wanderer", "main"]

_TIMEOUT_S, _RECONNECT_S = 60.0, 120.0
_LONG_S = 0.5
_OLD = 4
"""Views of consumers that are closed, or have left their lane, that are kept at most."""
_REFUSALS = ("MemoryLimitError", "SharedMemoryError")


class Wanderer:
    """Opens, reads, seeks, keeps views, closes, opens again. told: not empty once it is to end."""

    def __init__(self, client: Client, rng: random.Random, log: int, told: list[int]) -> None:
        self.rng = rng
        self.trail: deque[str] = deque(maxlen=12)
        self._client, self._log = client, log
        self._old: deque[Kept] = deque()
        self._parent = os.getppid()
        self._told = told

    @property
    def ended(self) -> bool:
        """Whether it is to end: it was told to, or its parent is gone."""
        return bool(self._told) or self.orphaned

    @property
    def orphaned(self) -> bool:
        return os.getppid() != self._parent

    def run(self) -> None:
        """Until it is to end."""
        while not self.ended:
            visit = Visit(self._client, self)
            try:
                visit.open()
                visit.wander()
            except EvictedError:
                self.note("evicted")
                self._reopened(visit)
            except (MemoryLimitError, SharedMemoryError) as error:
                self._refused(error)
            except BuildError as error:
                self._failed(error)
            except HoldLimitError as error:
                self.error(error)
            except Exception as error:  # whatever it is, it is told, and the wandering goes on
                self.error(error)
                time.sleep(0.2)
            finally:
                self._leave(visit)
        self._drop_old(0)
        if self.orphaned:
            with suppress(LoaderServiceError):
                self._client.stop_service()

    def took(self, batch: Batch, shard: tuple[int, int]) -> str:
        """Take note of a batch; its digest."""
        digest = batch.digest()
        self._say(f"{batch.step} {shard[0]} {shard[1]} {digest}")
        return digest

    def waited(self, seconds: float) -> None:
        """Tell of a request that took long."""
        if seconds > _LONG_S:
            self._say(f"wait {seconds:.3f} until {time.monotonic():.3f} after {list(self.trail)[-3:]}")

    def drop(self, kept: Kept) -> None:
        """Read a view once more, which must not have changed, and let it go."""
        self._say(f"again {kept.batch.step} {kept.shard[0]} {kept.shard[1]} {kept.batch.digest()}")
        kept.batch.release()

    def keep_old(self, kept: Kept) -> None:
        """Keep a view longer than its consumer."""
        self._old.append(kept)
        self._drop_old(_OLD)

    def note(self, what: str) -> None:
        self._say(f"note {what}")

    def error(self, error: BaseException) -> None:
        text = "".join(traceback.format_exception(error))
        self._say(f"error {json.dumps(f'after {list(self.trail)}: {text}')}")

    def _drop_old(self, left: int) -> None:
        while len(self._old) > left:
            self.drop(self._old.popleft())

    def _refused(self, error: LoaderServiceError) -> None:
        """Wait a little, so that others may leave."""
        self.note(f"refused {type(error).__name__}: {error.message[:300]}")
        time.sleep(self.rng.uniform(0.05, 0.3))

    def _failed(self, error: BuildError) -> None:
        if error.cause_type in _REFUSALS:
            self.note(f"refused {error.cause_type}: {error.cause_message[:300]}")
        else:
            self.error(error)

    def _reopened(self, visit: Visit) -> None:
        """After an eviction the same consumer goes on at its step, if there is memory."""
        try:
            visit.reopen()
            visit.wander()
        except EvictedError:
            self.note("evicted")
        except (MemoryLimitError, SharedMemoryError) as error:
            self._refused(error)
        except BuildError as error:
            self._failed(error)
        except Exception as error:
            self.error(error)

    def _leave(self, visit: Visit) -> None:
        try:
            visit.close()
        except Exception as error:
            self.error(error)

    def _say(self, line: str) -> None:
        os.write(self._log, f"{line}\n".encode())


def main() -> None:
    """ENDPOINT SEED LOG."""
    endpoint, seed, path = sys.argv[1:]
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)  # whoever finds it knows that SIGTERM is heard
    with loader_client.connect(endpoint, timeout_s=_TIMEOUT_S, reconnect_s=_RECONNECT_S) as client:
        assert client.streams == (STREAM,)
        Wanderer(client, random.Random(f"wanderer {seed}"), log, told).run()
    os.close(log)


if __name__ == "__main__":
    main()
