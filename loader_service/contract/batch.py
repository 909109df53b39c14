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

from loader_service.errors import ReleasedError

__all__ = ["Batch", "differences"]

_Tensors = Mapping[str, NDArray[Any]]


class _Hasher(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...


class Batch(Mapping[str, NDArray[Any]]):
    """A read-only mapping from tensor name to numpy array, with the place of the batch in the run.

    step: global step g; epoch: g div S; step_in_epoch: g mod S; rows: how many samples stand in it. The arrays are
    read-only: another consumer may be reading the same memory. `copy()` gives arrays of one's own.

    >>> batch = Batch({"labels": np.arange(3)}, step=7, epoch=1, step_in_epoch=2)
    >>> batch["labels"], batch.step
    (array([0, 1, 2]), 7)
    """

    __slots__ = ("__weakref__", "_tensors", "epoch", "rows", "step", "step_in_epoch")

    def __init__(
        self, tensors: Mapping[str, NDArray[Any]], step: int, epoch: int, step_in_epoch: int, rows: int = 0
    ) -> None:
        self._tensors: dict[str, NDArray[Any]] | None = dict(tensors)
        self.step, self.epoch, self.step_in_epoch, self.rows = step, epoch, step_in_epoch, rows

    def _held(self) -> dict[str, NDArray[Any]]:
        if self._tensors is None:
            raise ReleasedError(
                f"batch {self.step} was released; read it before release() or the end of its `with`, "
                "or keep batch.copy()"
            )
        return self._tensors

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._held()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._held())

    def __len__(self) -> int:
        return len(self._held())

    def __eq__(self, other: object) -> bool:
        """Identity: comparing arrays has no single truth value; compare `digest()` for equal bytes."""
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        if self._tensors is None:
            return f"Batch(step={self.step}, released)"
        tensors = ", ".join(f"{name} {a.dtype}{list(a.shape)}" for name, a in self._tensors.items())
        return f"Batch(step={self.step}, epoch={self.epoch}, {tensors})"

    def release(self) -> None:
        """Drop this batch's own references. Idempotent. Arrays taken from it before stay valid."""
        self._tensors = None

    def copy(self) -> Batch:
        """The same batch in memory of its own, writeable, independent of any ring slot."""
        tensors = {name: array.copy() for name, array in self._held().items()}
        return Batch(tensors, self.step, self.epoch, self.step_in_epoch, self.rows)

    def __enter__(self) -> Self:
        self._held()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def update_digest(self, hasher: _Hasher) -> None:
        """Feed step, names, dtypes, shapes and bytes to a hashlib object: equal input, equal batches."""
        hasher.update(f"step {self.step} {self.epoch} {self.step_in_epoch}\n".encode())
        for name, array in self._held().items():
            hasher.update(f"{name} {array.dtype.str} {list(array.shape)}\n".encode())
            hasher.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def digest(self) -> str:
        """SHA-256 of the batch, hexadecimal."""
        hasher = hashlib.sha256()
        self.update_digest(hasher)
        return hasher.hexdigest()


def differences(first: _Tensors, second: _Tensors) -> list[str]:
    """In words, one text for each tensor that differs, in the order of the first build.

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


def _words(tensor: NDArray[Any] | None) -> str:
    return "nothing" if tensor is None else f"{tensor.dtype}{list(tensor.shape)}"
