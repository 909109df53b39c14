"""One consumer of a wanderer, from its opening to its close.

Owns `Visit` and `Kept`. Invariant: it never holds more than its terms allow, nor anything that lies a smallest ring
behind, so that a HoldLimitError is an error.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

from benchmarks.soak.setting import LEAST_PREFETCH, STREAM
from loader_client import Client, Consumer
from loader_service.contract.batch import Batch

__all__ = ["Kept", "Visit", "Wandering"]

_LAST_STEP = 3000
_TIMEOUT_S = 60.0
_PLACES = range(0, _LAST_STEP, 750)
"""Where many open, so that they meet."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Arrays that are kept for a while, and whose rows they are."""

    batch: Batch
    shard: tuple[int, int]


class Wandering(Protocol):
    """The wanderer, as far as a visit cares. trail: what was done last, for the text of an error."""

    rng: random.Random
    trail: deque[str]

    @property
    def ended(self) -> bool: ...
    def took(self, batch: Batch, shard: tuple[int, int]) -> str: ...
    def waited(self, seconds: float) -> None: ...
    def drop(self, kept: Kept) -> None: ...
    def keep_old(self, kept: Kept) -> None: ...


class Visit:
    """A consumer with random terms at a random place."""

    def __init__(self, client: Client, wanderer: Wandering) -> None:
        self._client, self._wanderer, self._rng = client, wanderer, wanderer.rng
        self._kept: deque[Kept] = deque()
        self._consumer: Consumer | None = None
        world = self._rng.choice([1, 1, 2, 3])
        self._shard = (self._rng.randrange(world), world)

    @property
    def consumer(self) -> Consumer:
        assert self._consumer is not None  # `open` comes first
        return self._consumer

    def open(self) -> None:
        """Raises what `Client.open` raises."""
        rng = self._rng
        pace: Literal["split", "wait"] = rng.choice(["split", "split", "wait"])
        patience_s, hold = rng.choice([0.0, 0.05, 0.5, 1.0, 3.0]), rng.choice([None, 1, 2, 3])
        where = rng.random()
        start: int | Literal["live"] = "live"
        if where < 0.7:
            start = rng.randrange(_LAST_STEP) if where < 0.4 else rng.choice(_PLACES)
        self._wanderer.trail.append(f"open {start} {pace} {patience_s} hold {hold} {self._shard}")
        with self._timed():
            self._consumer = self._client.open(
                STREAM, start, pace=pace, patience_s=patience_s, hold=hold, shard=self._shard
            )

    def reopen(self) -> None:
        """The same consumer again, at its step; what it holds is held by its former self."""
        self._wanderer.trail.append("reopen")
        self._set_aside(keep=True)
        self.consumer.reopen()

    def wander(self) -> None:
        """A random number of acts. Raises what the consumer raises."""
        acts = [self._read, self._read_in_a_loop, self._seek, self._get, self._pause, self.reopen]
        for _ in range(self._rng.randint(2, 20)):
            if self._wanderer.ended:
                return
            [act] = self._rng.choices(acts, weights=[60, 10, 12, 12, 4, 2])
            act()

    def close(self) -> None:
        """Keep some of what is held longer than the consumer, drop the rest."""
        self._wanderer.trail.append("close")
        if self._consumer is None:
            return
        before = self._rng.random() < 0.5
        if before:
            self._set_aside(keep=False)
        self._consumer.close()
        self._set_aside(keep=True)

    # --- acts --------------------------------------------------------------------------------------------

    def _read(self) -> None:
        steps = self._rng.choice([1, 3, 10, 30, 100])
        delay_s = self._rng.choice([0.0, 0.0, 0.0, 0.0, 0.005, 0.05]) if steps <= 10 else 0.0
        self._wanderer.trail.append(f"read {steps} from {self.consumer.next_step} every {delay_s} s")
        for _ in range(steps):
            if self._wanderer.ended:
                return
            self._make_room(self.consumer.next_step)
            with self._timed():
                batch = self.consumer.get(self.consumer.next_step, timeout_s=_TIMEOUT_S)
            self._take(batch)
            del batch
            seconds = delay_s if self._rng.random() < 0.998 else 1.0
            if seconds:
                time.sleep(seconds)

    def _read_in_a_loop(self) -> None:
        """The asynchronous iteration."""
        steps = self._rng.choice([1, 10, 50])
        self._wanderer.trail.append(f"async {steps} from {self.consumer.next_step}")
        asyncio.run(self._iterate(steps))

    async def _iterate(self, steps: int) -> None:
        for _ in range(steps):
            if self._wanderer.ended:
                return
            self._make_room(self.consumer.next_step)
            with self._timed():
                batch = await asyncio.wait_for(anext(self.consumer), _TIMEOUT_S)
            self._take(batch)
            del batch
            if self._rng.random() < 0.1:
                await asyncio.sleep(0.005)

    def _seek(self) -> None:
        near = self.consumer.next_step + self._rng.randint(-12, 12)
        step = max(0, near) if self._rng.random() < 0.5 else self._rng.randrange(_LAST_STEP)
        self._wanderer.trail.append(f"seek {step} from {self.consumer.next_step}")
        self.consumer.seek(step)

    def _get(self) -> None:
        step = max(0, self.consumer.next_step + self._rng.choice([-40, -3, -1, 2, 4, 7, 100, 1000]))
        step = step if step < 2 * _LAST_STEP else self._rng.randrange(_LAST_STEP)
        self._wanderer.trail.append(f"get {step} from {self.consumer.next_step}")
        self._make_room(step)
        with self._timed():
            batch = self.consumer.get(step, timeout_s=_TIMEOUT_S)
        self._take(batch)

    def _pause(self) -> None:
        seconds = self._rng.choice([0.05, 0.2, 1.0])
        self._wanderer.trail.append(f"pause {seconds}")
        time.sleep(seconds)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        start_s = time.monotonic()
        yield
        self._wanderer.waited(time.monotonic() - start_s)

    # --- what is held --------------------------------------------------------------------------------------

    def _take(self, batch: Batch) -> None:
        self._wanderer.took(batch, self._shard)
        if self._rng.random() < 0.7:
            batch.release()
        elif self._rng.random() < 0.5:
            self._kept.append(Kept(batch, self._shard))
        else:  # its arrays alone
            place = (batch.step, batch.epoch, batch.step_in_epoch, batch.rows)
            self._kept.append(Kept(Batch(dict(batch), *place), self._shard))
            batch.release()

    def _make_room(self, step: int) -> None:
        """Drop what its terms do not allow when `step` is asked for."""
        allowed = self.consumer.hold - 1
        while len(self._kept) > allowed or any(one.batch.step + LEAST_PREFETCH <= step for one in self._kept):
            self._wanderer.drop(self._kept.popleft())
        if self._kept and self._rng.random() < 0.05:
            self._wanderer.drop(self._kept.popleft())

    def _set_aside(self, *, keep: bool) -> None:
        while self._kept:
            one = self._kept.popleft()
            if keep and self._rng.random() < 0.5:
                self._wanderer.keep_old(one)
            else:
                self._wanderer.drop(one)
