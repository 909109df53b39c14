"""One consumer of a random consumer process, from its opening to its close.

Owns `ConsumerSession` and `KeptBatch`. Invariant: a session never keeps more batches than its hold limit allows, and
none that lies the smallest ring's length behind, so a HoldLimitError is an error.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from benchmarks.soak.event_log import EventLog, ShardStep
from benchmarks.soak.streams import LINES, OUTLIERS, PROCESSES
from benchmarks.soak.workload import MIN_PREFETCH
from loader_client import Client, Consumer
from loader_service.contract.batch import Batch

__all__ = ["ConsumerSession", "KeptBatch"]

_LAST_STEP = 3000
_TIMEOUT_S = 60.0
_MEETING_STEPS = range(0, _LAST_STEP, 750)
"""Steps at which many sessions open, so that they share a ring."""


@dataclass(frozen=True, slots=True)
class KeptBatch:
    """A batch whose arrays are kept for a while, and the rows that it holds."""

    batch: Batch
    rows: ShardStep

    def drop(self, log: EventLog) -> None:
        """Record the bytes once more, which must not have changed, and let them go."""
        log.view(self.rows, self.batch.digest())
        self.batch.release()


class ConsumerSession:
    """A consumer with random options at a random step.

    Args:
        client: The connection of this process.
        rng: Source of all that is random.
        log: Where batches, views and waits are recorded.
        ending: Returns True once the process is to end.
    """

    def __init__(self, client: Client, rng: random.Random, log: EventLog, ending: Callable[[], bool]) -> None:
        self._client, self._rng, self._log, self._ending = client, rng, log, ending
        self._kept: deque[KeptBatch] = deque()
        self._consumer: Consumer | None = None
        [self._stream] = rng.choices([LINES, OUTLIERS, PROCESSES], weights=[6, 2, 2])
        world = rng.choice([1, 1, 2, 3])
        self._shard = (rng.randrange(world), world)
        self.outliving: list[KeptBatch] = []
        """Batches that are kept longer than the consumer, for the caller to drop."""

    @property
    def consumer(self) -> Consumer:
        """The open consumer; `open` comes first."""
        assert self._consumer is not None
        return self._consumer

    def open(self) -> None:
        """Open the consumer. Raises what `Client.open` raises."""
        rng = self._rng
        pace: Literal["split", "wait"] = rng.choice(["split", "split", "wait"])
        patience_s, hold = rng.choice([0.0, 0.05, 0.5, 1.0, 3.0]), rng.choice([None, 1, 2, 3])
        chance = rng.random()
        start: int | Literal["live"] = "live"
        if chance < 0.7:
            start = rng.randrange(_LAST_STEP) if chance < 0.4 else rng.choice(_MEETING_STEPS)
        self._log.actions.append(f"open {self._stream} {start} {pace} {patience_s} hold {hold} {self._shard}")
        with self._log.timed():
            self._consumer = self._client.open(
                self._stream, start, pace=pace, patience_s=patience_s, hold=hold, shard=self._shard
            )

    def reopen(self) -> None:
        """Open the same consumer again at its step; batches that it held stay with its former self."""
        self._log.actions.append("reopen")
        self._let_go(keep=True)
        self.consumer.reopen()

    def act_at_random(self) -> None:
        """Do a random number of random actions. Raises what the consumer raises."""
        actions = [self._read, self._read_async, self._seek, self._get, self._pause, self.reopen]
        for _ in range(self._rng.randint(2, 20)):
            if self._ending():
                return
            [action] = self._rng.choices(actions, weights=[60, 10, 12, 12, 4, 2])
            action()

    def close(self) -> None:
        """Close the consumer; some of the batches that it holds are kept longer, the others dropped."""
        self._log.actions.append("close")
        if self._consumer is None:
            return
        if self._rng.random() < 0.5:
            self._let_go(keep=False)
        self._consumer.close()
        self._let_go(keep=True)

    # --- actions -------------------------------------------------------------------------------------------

    def _read(self) -> None:
        steps = self._rng.choice([1, 3, 10, 30, 100])
        delay_s = self._rng.choice([0.0, 0.0, 0.0, 0.0, 0.005, 0.05]) if steps <= 10 else 0.0
        self._log.actions.append(f"read {steps} from {self.consumer.next_step} every {delay_s} s")
        for _ in range(steps):
            if self._ending():
                return
            self._drop_beyond_hold(self.consumer.next_step)
            with self._log.timed():
                batch = self.consumer.get(self.consumer.next_step, timeout_s=_TIMEOUT_S)
            self._use(batch)
            del batch
            seconds = delay_s if self._rng.random() < 0.998 else 1.0
            if seconds:
                time.sleep(seconds)

    def _read_async(self) -> None:
        steps = self._rng.choice([1, 10, 50])
        self._log.actions.append(f"async {steps} from {self.consumer.next_step}")
        asyncio.run(self._iterate(steps))

    async def _iterate(self, steps: int) -> None:
        for _ in range(steps):
            if self._ending():
                return
            self._drop_beyond_hold(self.consumer.next_step)
            with self._log.timed():
                batch = await asyncio.wait_for(anext(self.consumer), _TIMEOUT_S)
            self._use(batch)
            del batch
            if self._rng.random() < 0.1:
                await asyncio.sleep(0.005)

    def _seek(self) -> None:
        near = self.consumer.next_step + self._rng.randint(-12, 12)
        step = max(0, near) if self._rng.random() < 0.5 else self._rng.randrange(_LAST_STEP)
        self._log.actions.append(f"seek {step} from {self.consumer.next_step}")
        self.consumer.seek(step)

    def _get(self) -> None:
        step = max(0, self.consumer.next_step + self._rng.choice([-40, -3, -1, 2, 4, 7, 100, 1000]))
        step = step if step < 2 * _LAST_STEP else self._rng.randrange(_LAST_STEP)
        self._log.actions.append(f"get {step} from {self.consumer.next_step}")
        self._drop_beyond_hold(step)
        with self._log.timed():
            batch = self.consumer.get(step, timeout_s=_TIMEOUT_S)
        self._use(batch)

    def _pause(self) -> None:
        seconds = self._rng.choice([0.05, 0.2, 1.0])
        self._log.actions.append(f"pause {seconds}")
        time.sleep(seconds)

    # --- kept batches --------------------------------------------------------------------------------------

    def _use(self, batch: Batch) -> None:
        """Record a batch; release it, keep it, or keep its arrays alone."""
        rows = ShardStep(self._stream, batch.step, *self._shard)
        self._log.batch(rows, batch.digest())
        if self._rng.random() < 0.7:
            batch.release()
        elif self._rng.random() < 0.5:
            self._kept.append(KeptBatch(batch, rows))
        else:
            place = (batch.step, batch.epoch, batch.step_in_epoch, batch.rows)
            self._kept.append(KeptBatch(Batch(dict(batch), *place), rows))
            batch.release()

    def _drop_beyond_hold(self, step: int) -> None:
        """Drop batches that the hold limit does not allow once `step` is asked for."""
        allowed = self.consumer.hold - 1
        while len(self._kept) > allowed or any(kept.batch.step + MIN_PREFETCH <= step for kept in self._kept):
            self._kept.popleft().drop(self._log)
        if self._kept and self._rng.random() < 0.05:
            self._kept.popleft().drop(self._log)

    def _let_go(self, *, keep: bool) -> None:
        while self._kept:
            kept = self._kept.popleft()
            if keep and self._rng.random() < 0.5:
                self.outliving.append(kept)
            else:
                kept.drop(self._log)
