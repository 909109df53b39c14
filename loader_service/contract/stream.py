"""A stream: dataset + sampler + transform + collator + seed, and the pure function from a step to its bytes.

Owns `Stream`. Invariant (R2, R3): `build_into(g, allocate)` writes the same bytes whatever was built before,
in whichever process or order. Fails with BuildError, which names step, slot and dataset index.

    g -> (epoch, step in epoch) = divmod(g, S) -> indices -> samples -> layout -> bytes
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.batch import Batch
from loader_service.contract.buffers import aligned_empty
from loader_service.contract.checks import (
    MAX_N,
    checked_callable,
    checked_choice,
    checked_int,
    checked_parts,
    checked_step,
    checked_text,
    shown,
)
from loader_service.contract.collate import BatchContext, Collator, SlotError
from loader_service.contract.explain import Explanation, Rows
from loader_service.contract.fingerprint import CONTRACT_VERSION, describe, digest
from loader_service.contract.layout import Layout
from loader_service.contract.rng import STREAM_TRANSFORM, SampleRng, derive
from loader_service.contract.sample import Dataset
from loader_service.contract.samplers import Sampler
from loader_service.contract.shards import Shard
from loader_service.errors import ArgumentError, BuildError, FingerprintError

__all__ = ["Allocate", "Stream", "Transform"]

Transform = Callable[[Any, SampleRng], Any]
"""`transform(sample, rng) -> sample`: may return a new sample of another shape (R38)."""

Allocate = Callable[[Layout], NDArray[np.uint8]]
"""Gives writeable memory for a layout: uint8 [>= layout.nbytes], 64-byte aligned, any content."""

_T = TypeVar("_T")
_DATASET = "a dataset has __len__ and __getitem__(index): each step must be found without the samples before it"
_SAMPLER = (
    "use SequentialSampler, ShuffledSampler, BucketedSampler or MixingSampler, or a class of your own with "
    "these (loader_service.Sampler): each step must be found without those before it"
)
_COLLATOR = (
    "use StackCollator, PadCollator or ImageBatchCollator, or a class of your own with pads, plan and write "
    "(loader_service.Collator); what a collate function does to each sample belongs in a transform"
)


def _fresh(layout: Layout) -> NDArray[np.uint8]:
    return aligned_empty(layout.nbytes)


class Stream:
    """All that a batch is made from: the batch at global step g is a pure function of (seed, g) and these (R2).

    Args:
        dataset: sized and indexable; several workers and threads read it at once, and the same index gives the same
            sample (R10).
        sampler: says which samples stand in a batch; its indices lie in [0, len(dataset)).
        collator: plans and writes batches.
        seed: an integer, taken modulo 2^64 (R11).
        transform: called as `transform(sample, rng)` for each sample; `rng` has the key
            `derive(seed, epoch, step_in_epoch, slot, 0)`.
        version: a text that stands in the fingerprint, also for parts that cannot be described (R74).

    Attributes:
        caught: the exceptions of dataset, sampler, transform and collator that become a BuildError; a worker, which
            nobody interrupts, sets it to BaseException.

    Raises:
        ArgumentError: a part that does not do what a stream asks of it; the message says what to use.

    >>> from loader_service import SequentialSampler, StackCollator, Stream
    >>> stream = Stream([10, 11, 12, 13], SequentialSampler(4, batch_size=2), StackCollator(), seed=0)
    >>> stream.build(1)["data"]
    array([12, 13])
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
        _check_sampler(sampler)
        _check_dataset(dataset, sampler)
        _check_collator(collator)
        self.dataset, self.sampler, self.collator = dataset, sampler, collator
        self.transform = None if transform is None else checked_callable("transform", transform, "sample", "rng")
        self.version = None if version is None else checked_text("version", version)
        self.caught: type[BaseException] = Exception
        self.seed = checked_int("seed", seed)
        self._index_arrays: list[NDArray[np.int64]] = []

    def __repr__(self) -> str:
        parts = [shown(self.dataset), repr(self.sampler), repr(self.collator), f"seed={self.seed}"]
        parts += [] if self.transform is None else [f"transform={shown(self.transform)}"]
        parts += [] if self.version is None else [f"version={shown(self.version)}"]
        return f"Stream({', '.join(parts)})"

    @property
    def steps_per_epoch(self) -> int:
        """S: the number of steps of one epoch, at least 1 (R1)."""
        return checked_int("the sampler's steps_per_epoch", self.sampler.steps_per_epoch, 1, MAX_N)

    def position(self, step: int) -> tuple[int, int]:
        """Place a global step in the run.

        Args:
            step: in [0, 2^63).

        Returns:
            (epoch, step in epoch): step div S and step mod S.

        Raises:
            ArgumentError: `step` is none.
        """
        return divmod(checked_step(step), self.steps_per_epoch)

    @property
    def shard_padding(self) -> str:
        """The width to which a rank's rows are padded (R62): "global" (the whole batch's), "own", or "none".

        Global where the dataset tells widths without reading samples (`widths(indices)`) and no transform changes them;
        none where the collator pads nothing.
        """
        if self.collator.pads == "nothing":
            return "none"
        told = (
            self.collator.pads == "widths"
            and self.transform is None
            and callable(getattr(self.dataset, "widths", None))
        )
        return "global" if told else "own"

    def build(self, step: int, shard: tuple[int, int] = (0, 1)) -> Batch:
        """Build the batch at global step `step` in memory of its own.

        Args:
            step: in [0, 2^63).
            shard: (rank, world size): only this rank's rows of the global batch, with the slots of the global batch.

        Raises:
            BuildError: the dataset, the sampler, the transform or the collator raised something.
            ArgumentError: `step` or `shard` is none.
        """
        return self.build_into(step, _fresh, shard)

    def build_into(self, step: int, allocate: Allocate, shard: tuple[int, int] = (0, 1)) -> Batch:
        """Build the batch at `step`, or a rank's rows of it, in memory of the caller's.

        Args:
            step: in [0, 2^63).
            allocate: called once, with the layout; gives uint8 [>= layout.nbytes], writeable, 64-byte aligned. Every
                byte of every tensor is written (R65).
            shard: (rank, world size).

        Raises:
            BuildError: the dataset, the sampler, the transform or the collator raised something. An exception of
                `allocate` passes through unchanged.
            ArgumentError: `step` or `shard` is none.
        """
        room = self._index_array()
        batch = self._build_into(checked_step(step), allocate, Shard.of(shard), room)
        self._index_arrays.append(room)
        return batch

    def _index_array(self) -> NDArray[np.int64]:
        """Room for the indices of one batch, which goes back for the next build; two builds at once have one each."""
        sampler: Any = self.sampler
        size = min(sampler.batch_size, sampler.n) if self._writes_indices else 0
        try:
            return self._index_arrays.pop()
        except IndexError:
            return np.empty(size, np.int64)

    @cached_property
    def _writes_indices(self) -> bool:
        """The sampler writes into memory that it is given; none does so in place of an `indices` that is overridden."""
        return _method_of(self.sampler, "write_indices", "indices") == "write_indices"

    def _build_into(self, step: int, allocate: Allocate, shard: Shard, room: NDArray[np.int64]) -> Batch:
        samples, context = self._samples(step, shard, room)
        layout = self._guarded(step, context, lambda: self._plan(samples, context))
        tensors = layout.views(allocate(layout))
        self._guarded(step, context, lambda: self.collator.write(samples, context, tensors))
        for tensor in tensors.values():
            tensor.flags.writeable = False
        return Batch(tensors, step, context.epoch, context.step_in_epoch, len(context.indices))

    def layout(self, step: int) -> Layout:
        """Plan the batch at `step`: its samples are read, nothing is built. Raises BuildError, ArgumentError."""
        samples, context = self._samples(step, Shard(), self._index_array())
        return self._guarded(step, context, lambda: self._plan(samples, context))

    def _plan(self, samples: Sequence[Any], context: BatchContext) -> Layout:
        layout = self.collator.plan(samples, context)
        if not isinstance(layout, Layout):
            raise TypeError(f"collator {self.collator!r} planned a {type(layout).__name__}; it must plan a Layout")
        return layout

    def explain(self, step: int) -> Explanation:
        """Say where every row of the batch at `step` comes from, without reading a sample. Raises ArgumentError."""
        epoch, step_in_epoch = self.position(step)
        indices = np.asarray(self.sampler.indices(epoch, step_in_epoch), np.int64)
        sources = self.sampler.sources(indices) if hasattr(self.sampler, "sources") else None
        return Explanation.of(self.seed, checked_step(step), epoch, step_in_epoch, Rows(indices, sources))

    def _samples(self, step: int, shard: Shard, room: NDArray[np.int64]) -> tuple[Sequence[Any], BatchContext]:
        """The samples of the shard's rows, and where they stand."""
        context = self._context(step, shard, room)
        if not len(context.indices):
            first = int(self._indices(context.epoch, context.step_in_epoch, room)[0])
            example = self._sample(step, context, 0, first)  # its shape stands for the rows that are not here
            return [], replace(context, example=example)
        if self._batch_reader is not None:
            return self._read_at_once(step, context), context
        return self._read_one_by_one(step, context), context

    @cached_property
    def _batch_reader(self) -> str | None:
        """The method that reads many samples; none where a subclass reads one sample otherwise and inherits it."""
        name = _method_of(self.dataset, "read_rows", "__getitems__", "__getitem__")
        if name == "read_rows" and self.transform is not None:  # it wants samples, one by one
            name = _method_of(self.dataset, "__getitems__", "__getitem__")
        return None if name == "__getitem__" else name

    def _read_one_by_one(self, step: int, context: BatchContext) -> list[Any]:
        slots = enumerate(context.indices.tolist(), context.first_slot)
        return [self._sample(step, context, slot, index) for slot, index in slots]

    def _read_at_once(self, step: int, context: BatchContext) -> Sequence[Any]:
        """All samples by one call of the dataset; where it fails, each alone, so that the error names a slot."""
        try:
            samples = self._rows(context.indices)
        except self.caught as error:
            self._read_one_by_one(step, context)
            raise _build_error(step, error) from error
        if self.transform is None:
            return samples
        return [
            self._transformed(step, context, slot, index, sample)
            for slot, (index, sample) in enumerate(
                zip(context.indices.tolist(), samples, strict=True), context.first_slot
            )
        ]

    def _rows(self, indices: NDArray[np.int64]) -> Sequence[Any]:
        """Read the samples at `indices`. Raises TypeError, ValueError, and whatever the dataset raises."""
        dataset: Any = self.dataset
        at_once = dataset.read_rows if self._batch_reader == "read_rows" else dataset.__getitems__
        samples = at_once(indices if self._batch_reader == "read_rows" else indices.tolist())
        if not isinstance(samples, Sequence):
            raise TypeError(f"the dataset gave a {type(samples).__name__} for many indices; it must give a sequence")
        if len(samples) != len(indices):
            raise ValueError(
                f"the dataset gave {len(samples)} samples for {len(indices)} indices; it must give as many"
            )
        return samples

    def _context(self, step: int, shard: Shard, room: NDArray[np.int64]) -> BatchContext:
        epoch, step_in_epoch = self.position(step)
        try:
            indices = self._indices(epoch, step_in_epoch, room)
            rows = shard.rows(len(indices))
            width = self._global_width(indices) if len(rows) < len(indices) else 0
        except self.caught as error:
            raise _build_error(step, error) from error
        own = indices[rows.start : rows.stop]
        return BatchContext(self.seed, epoch, step_in_epoch, own, rows.start, least_width=width)

    def _indices(self, epoch: int, step_in_epoch: int, room: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sampler's answer, int64 [B], checked; in `room` where it can. Raises ValueError."""
        sampler: Any = self.sampler
        if self._writes_indices:
            answer = room[: sampler.write_indices(epoch, step_in_epoch, room)]
        else:
            answer = np.asarray(sampler.indices(epoch, step_in_epoch))
        if answer.ndim != 1 or answer.dtype.kind not in "iu" or not answer.size:
            raise ValueError(f"the sampler gave {answer.dtype}{list(answer.shape)}; it must give integers [B], B >= 1")
        if not 0 <= int(np.minimum.reduce(answer)) <= int(np.maximum.reduce(answer)) < self.sampler.n:
            raise ValueError(
                f"the sampler gave indices in [{answer.min()}, {answer.max()}]; its n says [0, {self.sampler.n})"
            )
        return answer.astype(np.int64, copy=False)

    def _global_width(self, indices: NDArray[np.int64]) -> int:
        """The width that the whole batch needs, or 0 where each shard is padded to its own."""
        if self.shard_padding != "global":
            return 0
        tell: Any = self.dataset  # `shard_padding` has seen that it has `widths`
        return int(np.max(tell.widths(indices)))

    def _sample(self, step: int, context: BatchContext, slot: int, index: int) -> Any:
        try:
            sample = self.dataset[index]
        except self.caught as error:
            raise _build_error(step, error, slot, index) from error
        return sample if self.transform is None else self._transformed(step, context, slot, index, sample)

    def _transformed(self, step: int, context: BatchContext, slot: int, index: int, sample: Any) -> Any:
        assert self.transform is not None  # asked by the callers
        try:
            key = derive(self.seed, context.epoch, context.step_in_epoch, slot, STREAM_TRANSFORM)
            transformed = self.transform(sample, SampleRng(key))
            if transformed is None:
                raise TypeError(f"transform {self.transform!r} returned None; it must return a sample")
            return transformed
        except self.caught as error:
            raise _build_error(step, error, slot, index) from error

    def _guarded(self, step: int, context: BatchContext, act: Callable[[], _T]) -> _T:
        try:
            return act()
        except SlotError as error:
            known = 0 <= error.row < len(context.indices)  # else a collator of the user's counts otherwise
            index = int(context.indices[error.row]) if known else None
            raise _build_error(step, error.cause, context.first_slot + error.row, index) from error
        except self.caught as error:
            raise _build_error(step, error) from error

    @cached_property
    def description(self) -> dict[str, Any]:
        """All that the bytes depend on, part by part, as plain values. Raises FingerprintError."""
        parts: dict[str, Any] = {"contract": CONTRACT_VERSION, "seed": self.seed % 2**64}
        parts["shard_padding"] = self.shard_padding
        if self.version is not None:
            parts["version"] = self.version
        for name in ("sampler", "dataset", "transform", "collator"):
            try:
                parts[name] = describe(getattr(self, name), name)
            except FingerprintError:
                if self.version is None:
                    raise
                parts[name] = "told by the version"
        return parts

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of `description`, hexadecimal. Raises FingerprintError."""
        return digest(self.description)


def _method_of(thing: object, *names: str) -> str | None:
    """The first of the methods `names` that the most derived class with any of them defines: what it means to be asked.

    A subclass that overrides the last name alone is not asked by the first, which it inherits.
    """
    return next((name for kind in type(thing).__mro__ for name in names if name in vars(kind)), None)


def _check_sampler(sampler: Any) -> None:
    checked_parts("sampler", sampler, ("n", "steps_per_epoch", "indices"), _SAMPLER)
    checked_int("the sampler's n", sampler.n, 0, MAX_N)
    checked_int("the sampler's steps_per_epoch", sampler.steps_per_epoch, 1, MAX_N)
    checked_callable("sampler.indices", sampler.indices, "epoch", "step")


def _check_dataset(dataset: Any, sampler: Any) -> None:
    checked_parts("dataset", dataset, ("__len__", "__getitem__"), _DATASET)
    try:
        length = len(dataset)
    except Exception as error:  # of the dataset's code
        raise ArgumentError(f"len(dataset) raised {type(error).__name__}: {error}; {_DATASET}") from error
    if sampler.n > length:
        raise ArgumentError(
            f"the sampler draws from n = {sampler.n} samples and the dataset has {length}; "
            "give the sampler n = len(dataset) or less"
        )


def _check_collator(collator: Any) -> None:
    checked_parts("collator", collator, ("pads", "plan", "write"), _COLLATOR)
    checked_choice("the collator's pads", collator.pads, ("nothing", "widths", "lengths"))
    checked_callable("collator.plan", collator.plan, "samples", "context")
    checked_callable("collator.write", collator.write, "samples", "context", "tensors")


def _build_error(step: int, error: BaseException, slot: int | None = None, index: int | None = None) -> BuildError:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    summary = traceback.TracebackException.from_exception(error)  # its text is safe where __str__ raises
    return BuildError(
        step=step,
        slot=slot,
        index=index,
        cause_type=name,
        cause_message=str(summary),
        remote_traceback="".join(summary.format()),
    )
