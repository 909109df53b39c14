"""The samplers, one index at a time, and the place of a step in a run: rules R1, R23 to R36, R60 and R100 to R109.

Written from `docs/specification.md` alone. An error is None: which text it has is each implementation's own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.vectors.reference_random import Generator, derive, permute

__all__ = ["bucketed", "count_steps", "mixing", "parse_pipeline", "pipeline", "sequential", "shard", "shuffled"]

Batches = list[list[int]]


def count_steps(n: int, batch_size: int, drop_last: bool) -> int | None:
    """S of an epoch, R24; None where R25 refuses."""
    steps = n // batch_size if drop_last else -(-n // batch_size)
    return steps or None


def _cut(order: Sequence[int], steps: int, batch_size: int) -> Batches:
    return [list(order[step * batch_size : (step + 1) * batch_size]) for step in range(steps)]


def sequential(n: int, batch_size: int, drop_last: bool) -> Batches | None:
    """R27: the batches of an epoch."""
    steps = count_steps(n, batch_size, drop_last)
    return None if steps is None else _cut(range(n), steps, batch_size)


def shuffled(seed: int, n: int, batch_size: int, drop_last: bool, epoch: int) -> Batches | None:
    """R28: the batches of an epoch."""
    steps = count_steps(n, batch_size, drop_last)
    key = derive(seed, epoch, 0, 0, 101)
    return None if steps is None else _cut([permute(p, n, key) for p in range(n)], steps, batch_size)


def mixing(
    seed: int, sizes: Sequence[int], shares: Sequence[float], batch_size: int, epoch: int, step: int
) -> list[int]:
    """R29 to R31: one batch."""
    drawable = [k for k, size in enumerate(sizes) if size > 0 and shares[k] > 0]
    total = 0.0
    for k in drawable:
        total += shares[k]
    sums, reached = {}, 0.0
    for k in drawable:
        reached += shares[k] / total
        sums[k] = reached
    batch = []
    for slot in range(batch_size):
        rng = Generator(derive(seed, epoch, step, slot, 102))
        u = rng.next_double()
        source = next((k for k in drawable if sums[k] > u), drawable[-1])
        batch.append(sum(sizes[:source]) + rng.next_int(sizes[source]))
    return batch


def bucketed(
    seed: int, lengths: Sequence[int], batch_size: int, pool_batches: int, drop_last: bool, epoch: int
) -> Batches | None:
    """R34 to R36: the batches of an epoch."""
    n = len(lengths)
    steps = count_steps(n, batch_size, drop_last)
    if steps is None:
        return None
    key = derive(seed, epoch, 0, 0, 103)
    order = [permute(p, n, key) for p in range(n)]
    kept = order[: steps * batch_size] if drop_last else order
    pool = batch_size * pool_batches
    in_order: list[int] = []
    for first in range(0, len(kept), pool):
        in_order += sorted(kept[first : first + pool], key=lambda index: (lengths[index] << 32) | index)
    key = derive(seed, epoch, 1, 0, 104)
    placed = {permute(t, steps, key): batch for t, batch in enumerate(_cut(in_order, steps, batch_size))}
    return [placed[step] for step in range(steps)]


def pipeline(count: int, shuffle: int | None, batch: int, take: int | None, epoch: int) -> Batches:
    """R102 to R104 and R109: the batches of an epoch, which counts from 1."""
    order = list(range(count))
    if shuffle is not None:
        key = derive(shuffle, epoch, 0, 0, 105)
        order = [permute(p, count, key) for p in order]
    batches = _cut(order, count // batch, batch)
    return batches if take is None else batches[:take]


def shard(rank: int, world: int, batch_size: int) -> tuple[int, int]:
    """R60: the first row of a rank and the one behind its last."""
    return rank * batch_size // world, (rank + 1) * batch_size // world


_FILE = re.compile(r"""\s*stream\s+("[^"]+"|'[^']+'|[^\s"']((?!\|>)\S)*)""")
_STAGE = re.compile(r"\s*\|>\s*(\w+)\s*\(\s*(?:(\w+)\s*=\s*)?(-?[0-9]{1,20})\s*\)")
_STAGES = [("shuffle", "seed", -(2**63), 2**64), ("batch", "B", 1, 2**31), ("take", "n", 0, 2**63 + 1)]


def parse_pipeline(text: str) -> tuple[str, int | None, int | None, int | None] | None:
    """R106: file, seed, B and n, each None where its stage is left out; None where the text is no pipeline."""
    head = _FILE.match(text)
    if head is None:
        return None
    file = head[1][1:-1] if head[1][0] in "\"'" else head[1]
    rest = text[head.end() :].rstrip()
    numbers: list[int | None] = []
    for name, key, low, end in _STAGES:
        stage = _STAGE.match(rest)
        if stage is None or stage[1] != name:
            numbers.append(None)
            continue
        if stage[2] not in (None, key) or not low <= int(stage[3]) < end:
            return None
        numbers.append(int(stage[3]))
        rest = rest[stage.end() :]
    return None if rest else (file, *numbers)  # type: ignore[return-value]  # one number for each of three stages
