"""Batches of given samples, for the tests of collators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.collate import (
    BatchContext,
    Collator,
)
from loader_service.contract.samplers import SequentialSampler
from loader_service.contract.stream import Stream

__all__ = ["Samples", "Tensors", "build", "collate"]

Tensors = dict[str, NDArray[Any]]


def collate(collator: Collator[Any], samples: Sequence[Any], fill: int = 0xFF) -> Tensors:
    """The batch in memory that holds `fill` in every byte before."""
    context = BatchContext(seed=1, epoch=2, step_in_epoch=3, indices=np.arange(50, 50 + len(samples)))
    layout = collator.plan(samples, context)
    tensors = layout.views(np.full(layout.nbytes, fill, np.uint8))
    collator.write(samples, context, tensors)
    return tensors


class Samples(list[Any]):
    """A dataset; as a subclass it has no fingerprint, which no test here needs."""


def build(collator: Collator[Any], *samples: Any) -> Tensors:
    count = len(samples)
    return dict(Stream(Samples(samples), SequentialSampler(count, count), collator, seed=0).build(0))
