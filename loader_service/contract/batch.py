"""One batch as its user sees it, in-process and from the service alike, and the comparison of two.

Owns `Batch` and `differences`. Invariant: a batch only *refers* to its arrays. `release()` and `with` drop its own
references; the memory lives as long as the last array, tensor or view over it, wherever that went. Batches without
differences have the same names, dtypes, shapes and bytes; what lies between the tensors does not count. Bytes are
compared, not numbers: NaN is itself, -0.0 is not 0.0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.checks import checked_int, shown
from loader_service.contract.layout import dtype_text
from loader_service.errors import ArgumentError, ReleasedError

__all__ = ["Batch", "differences"]

_Tensors = Mapping[str, NDArray[Any]]


class _Hasher(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...


class Batch(Mapping[str, NDArray[Any]]):
    """A read-only mapping from tensor name to array, with the place of the batch in the run.

    Args:
        tensors: the arrays by name, in the order of the batch. Those of a stream are read-only numpy arrays: another
            consumer may be reading the same memory; `copy()` gives arrays of one's own.
        step: the global step g, or -1 where it is not known: `type(batch)({**batch})`, as libraries that move batches
            to a device write it, is a batch of the new arrays without its place.
        epoch: g div S.
        step_in_epoch: g mod S.
        rows: how many samples stand in it.

    >>> batch = Batch({"labels": np.arange(3)}, step=7, epoch=1, step_in_epoch=2)
    >>> batch["labels"], batch.step
    (array([0, 1, 2]), 7)
    """

    __slots__ = ("__weakref__", "_tensors", "epoch", "rows", "step", "step_in_epoch")

    def __init__(
        self, tensors: Mapping[str, Any], step: int = -1, epoch: int = -1, step_in_epoch: int = -1, rows: int = 0
    ) -> None:
        if not isinstance(tensors, Mapping):
            raise ArgumentError(f"tensors is {shown(tensors)}; it must be a mapping from names to arrays")
        self._tensors: dict[str, NDArray[Any]] | None = dict(tensors)
        if not type(step) is type(epoch) is type(step_in_epoch) is type(rows) is int:
            step, epoch = checked_int("step", step, -1), checked_int("epoch", epoch, -1)
            step_in_epoch, rows = checked_int("step_in_epoch", step_in_epoch, -1), checked_int("rows", rows, 0)
        self.step, self.epoch, self.step_in_epoch, self.rows = step, epoch, step_in_epoch, rows

    def _held(self) -> dict[str, NDArray[Any]]:
        if self._tensors is None:
            raise ReleasedError(
                f"batch {self.step} was released; read it before release() or the end of its `with`, "
                "or keep batch.copy()"
            )
        return self._tensors

    def __getitem__(self, name: str) -> NDArray[Any]:
        tensors = self._held()
        try:
            return tensors[name]
        except (KeyError, TypeError):  # a TypeError: one that cannot be hashed
            raise KeyError(f"{shown(name)}; the tensors of this batch are {', '.join(map(repr, tensors))}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._held())

    def __len__(self) -> int:
        return len(self._held())

    def __eq__(self, other: object) -> bool:
        """Tell whether `other` is this very batch: arrays have no single truth value; compare `digest()` for bytes."""
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        if self._tensors is None:
            return f"Batch(step={self.step}, released)"
        tensors = ", ".join(f"{name} {_words(tensor)}" for name, tensor in self._tensors.items())
        return f"Batch(step={self.step}, epoch={self.epoch}, {tensors})"

    def release(self) -> None:
        """Drop this batch's own references. Idempotent. Arrays taken from it before stay valid (R64)."""
        self._tensors = None

    def copy(self) -> Batch:
        """Copy the batch into writeable memory of its own, independent of any slot.

        Raises:
            ReleasedError: its references were dropped.
        """
        tensors = {name: _copied(array) for name, array in self._held().items()}
        return Batch(tensors, self.step, self.epoch, self.step_in_epoch, self.rows)

    def __copy__(self) -> Batch:
        return self.copy()

    def __deepcopy__(self, memo: object) -> Batch:
        return self.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a copy: a batch that is unpickled would be read-only else, as its arrays are."""
        return Batch, (self.copy()._held(), self.step, self.epoch, self.step_in_epoch, self.rows)

    def __enter__(self) -> Self:
        self._held()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def update_digest(self, hasher: _Hasher) -> None:
        """Feed step, names, dtypes, shapes and bytes to a hashlib object: equal batches are equal input.

        Args:
            hasher: what `hashlib` makes, or anything with its `update(data)`.

        Raises:
            ReleasedError: the batch's references were dropped.
        """
        hasher.update(f"step {self.step} {self.epoch} {self.step_in_epoch}\n".encode())
        for name, array in self._held().items():
            hasher.update(f"{name} {dtype_text(array.dtype)} {list(array.shape)}\n".encode(errors="surrogatepass"))
            hasher.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def digest(self) -> str:
        """Compute the batch's SHA-256, hexadecimal.

        Raises:
            ReleasedError: the batch's references were dropped.
        """
        hasher = hashlib.sha256()
        self.update_digest(hasher)
        return hasher.hexdigest()


def differences(first: _Tensors, second: _Tensors) -> list[str]:
    """Say where two builds differ, byte by byte.

    Args:
        first: the tensors of one build, by name.
        second: those of another.

    Returns:
        One text for each tensor that differs, in the order of the first build; nothing where they are the same batch.

    >>> differences({"x": np.array([1, 2, 3])}, {"x": np.array([1, 5, 4])})
    ["tensor 'x': 2 of 3 elements differ, the first at [1]: 2, then 5"]
    """
    found = [
        f"tensor {name!r}: {_difference(first.get(name), second.get(name))}"
        for name in [*first, *(name for name in second if name not in first)]
        if not _same(first.get(name), second.get(name))
    ]
    if not found and list(first) != list(second):
        return [f"the order of the tensors: {list(first)}, then {list(second)}"]
    return found


def _same(one: NDArray[Any] | None, other: NDArray[Any] | None) -> bool:
    if one is None or other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return bool(np.array_equal(_bytes(one), _bytes(other)))


def _difference(one: NDArray[Any] | None, other: NDArray[Any] | None) -> str:
    if one is None or other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
        return f"{_words(one)}, then {_words(other)}"
    unlike = (_bytes(one) != _bytes(other)).any(axis=1)  # bool [elements]
    place = np.unravel_index(int(unlike.argmax()), one.shape)
    with np.errstate(all="ignore"):  # a signalling NaN is no reason to warn
        values = f"{one[place]}, then {other[place]}"
    where = [int(coordinate) for coordinate in place]
    return f"{int(unlike.sum())} of {unlike.size} elements differ, the first at {where}: {values}"


def _bytes(tensor: NDArray[Any]) -> NDArray[np.uint8]:
    """uint8 [elements, bytes of one], without a copy where the tensor is contiguous."""
    flat = np.ascontiguousarray(tensor).reshape(-1)  # [...] -> [elements]
    return flat.view(np.uint8).reshape(flat.size, tensor.dtype.itemsize)


def _words(tensor: Any) -> str:
    """Dtype and shape of an array, or of a tensor of another library's; else the type."""
    if tensor is None:
        return "nothing"
    known = hasattr(tensor, "dtype") and hasattr(tensor, "shape")
    return f"{tensor.dtype}{list(tensor.shape)}" if known else type(tensor).__name__


def _copied(tensor: Any) -> Any:
    """A copy of an array, or of another library's tensor, which has `clone`; what has neither stays as it is."""
    copy = getattr(tensor, "copy", None) or getattr(tensor, "clone", None)
    return tensor if copy is None else copy()
