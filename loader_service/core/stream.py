"""A stream: dataset + sampler + transform + collator + seed, and the pure function from a step to its bytes.

Owns `Stream`. Invariant (section 1): `build_into(g, allocate)` writes the same bytes whatever was built before,
in whichever process or order. Fails with BuildError, which names step, slot and dataset index.

    g -> (epoch, step in epoch) = divmod(g, S) -> indices -> samples -> layout -> bytes
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import index as as_index
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from loader_service.core.batch import Batch
from loader_service.core.collate import BatchContext, Collator, SlotError
from loader_service.core.fingerprint import CONTRACT_VERSION, describe, digest
from loader_service.core.layout import ALIGNMENT, Layout
from loader_service.core.rng import STREAM_TRANSFORM, SampleRng, derive
from loader_service.core.sample import Dataset
from loader_service.core.samplers import Sampler
from loader_service.errors import ArgumentError, BuildError

__all__ = ["Allocate", "Stream", "Transform"]

Transform = Callable[[Any, SampleRng], Any]
"""`transform(sample, rng) -> sample`: may return a new sample of another shape."""

Allocate = Callable[[Layout], NDArray[np.uint8]]
"""Gives writeable memory for a layout: uint8 [>= layout.nbytes], 64-byte aligned, any content."""


_T = TypeVar("_T")


def _fresh(layout: Layout) -> NDArray[np.uint8]:
    memory = np.empty(layout.nbytes + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT  # numpy aligns to 16 bytes only
    return memory[first : first + layout.nbytes]


class Stream:
    """What is served: the batch at global step g is a pure function of (seed, g) and these arguments.

    dataset: sized and indexable, thread-safe; sampler: its indices lie in [0, len(dataset)); collator: plans and
    writes batches; seed: any int; transform: gets `derive(seed, epoch, step_in_epoch, slot, 0)`; version: a text
    that stands in the fingerprint for parts that cannot be described. Raises ArgumentError.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        sampler: Sampler,
        collator: Collator[Any],
        *,
        seed: int,
        transform: Transform | None = None,
        version: str | None = None,
    ) -> None:
        if sampler.n > len(dataset):
            raise ArgumentError(
                f"the sampler draws from n = {sampler.n} samples and the dataset has {len(dataset)}; "
                "give the sampler n = len(dataset) or less"
            )
        self.dataset, self.sampler, self.collator = dataset, sampler, collator
        self.transform, self.version = transform, version
        try:
            self.seed = as_index(seed)
        except TypeError:
            raise ArgumentError(f"seed is {seed!r}; it must be an integer") from None

    @property
    def steps_per_epoch(self) -> int:
        """S: the number of steps of one epoch, at least 1."""
        return self.sampler.steps_per_epoch

    def position(self, step: int) -> tuple[int, int]:
        """(epoch, step in epoch) of global step `step` >= 0. Raises ArgumentError."""
        if step < 0:
            raise ArgumentError(f"step is {step}; global steps count from 0")
        return divmod(as_index(step), self.steps_per_epoch)

    def build(self, step: int) -> Batch:
        """The batch at global step `step`, in fresh memory of its own. Raises BuildError."""
        return self.build_into(step, _fresh)

    def build_into(self, step: int, allocate: Allocate) -> Batch:
        """The batch at `step` in memory that `allocate` gives: asked once, with the batch's layout.

        The caller owns the memory; every byte of every tensor is written. Raises BuildError; an exception of
        `allocate` passes through unchanged.
        """
        epoch, step_in_epoch = self.position(step)
        samples, context = self._samples(step, epoch, step_in_epoch)
        layout = self._guarded(step, context, lambda: self.collator.plan(samples))
        tensors = layout.views(allocate(layout))
        self._guarded(step, context, lambda: self.collator.write(samples, context, tensors))
        for tensor in tensors.values():
            tensor.flags.writeable = False
        return Batch(tensors, as_index(step), epoch, step_in_epoch)

    def layout(self, step: int) -> Layout:
        """The layout of the batch at `step`: its samples are read, nothing is built. Raises BuildError."""
        samples, context = self._samples(step, *self.position(step))
        return self._guarded(step, context, lambda: self.collator.plan(samples))

    def _samples(self, step: int, epoch: int, step_in_epoch: int) -> tuple[Sequence[Any], BatchContext]:
        try:
            indices = np.asarray(self.sampler.indices(epoch, step_in_epoch), np.int64)
        except Exception as error:
            raise _build_error(step, error) from error
        context = BatchContext(self.seed, epoch, step_in_epoch, indices)
        return [self._sample(step, context, slot, i) for slot, i in enumerate(indices.tolist())], context

    def _sample(self, step: int, context: BatchContext, slot: int, index: int) -> Any:
        try:
            sample = self.dataset[index]
            if self.transform is None:
                return sample
            key = derive(self.seed, context.epoch, context.step_in_epoch, slot, STREAM_TRANSFORM)
            return self.transform(sample, SampleRng(key))
        except Exception as error:
            raise _build_error(step, error, slot, index) from error

    def _guarded(self, step: int, context: BatchContext, act: Callable[[], _T]) -> _T:
        try:
            return act()
        except SlotError as error:
            index = int(context.indices[error.slot])
            raise _build_error(step, error.cause, error.slot, index) from error
        except Exception as error:
            raise _build_error(step, error) from error

    @cached_property
    def description(self) -> dict[str, Any]:
        """All that the bytes depend on, part by part, as plain values. Raises FingerprintError."""
        parts: dict[str, Any] = {"contract": CONTRACT_VERSION, "seed": self.seed % 2**64}
        if self.version is not None:
            return parts | {"version": self.version, "sampler": describe(self.sampler, "sampler")}
        for name in ("sampler", "dataset", "transform", "collator"):
            parts[name] = describe(getattr(self, name), name)
        return parts

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of `description`, hexadecimal. Raises FingerprintError."""
        return digest(self.description)


def _build_error(step: int, error: BaseException, slot: int | None = None, index: int | None = None) -> BuildError:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    summary = traceback.TracebackException.from_exception(error)  # its text is safe where __str__ raises
    text, trace = _encodable(str(summary)), _encodable("".join(summary.format()))
    return BuildError(step, name, text, trace, slot=slot, index=index)


def _encodable(text: str) -> str:
    """Without lone surrogates, which names of files may bring and no message can carry."""
    return text.encode("utf-8", "backslashreplace").decode()
