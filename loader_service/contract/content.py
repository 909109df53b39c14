"""Digests of long values: arrays of any size, and sequences of any length, in bounded memory.

Owns `array_digest` and `items_digest`. Invariant: values of equal types and content have equal digests in every
process; no array is copied whole. Plain values, and sequences of sequences or of dicts with the same keys, are digested
column by column, so that a million of them take about a second. A mapped array of more than 64 MiB is not read whole:
its size, its first and last MiB and 64 blocks evenly between count, and a change that misses all of them is not seen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from os import PathLike, fspath
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["MAX_ITEMS", "TooManyError", "array_digest", "items_digest"]

MAX_ITEMS = 100_000
"""The most items of a sequence that are described one by one: what is not plain takes some ten microseconds each."""
_CHUNK_ITEMS = 10_000
_WHOLE_BYTES = 64 << 20
_END_BYTES = 1 << 20
_BLOCKS = 64
_BLOCK_BYTES = 64 << 10
_PLAIN = frozenset({str, int, float, bool, type(None)})

Describe = Callable[[Any], Any]
"""Gives the description of one item: plain values."""


class TooManyError(ValueError):
    """Raised where more than MAX_ITEMS items would have to be described one by one."""


class _Hasher(Protocol):
    def update(self, data: Any, /) -> None: ...


def array_digest(array: NDArray[Any]) -> str:
    """Digest the bytes of an array in row-major order.

    Args:
        array: of any shape and strides; a mapped one of more than 64 MiB counts by samples of its bytes.

    Returns:
        SHA-256, hexadecimal.
    """
    hasher = hashlib.sha256()
    if not array.flags.c_contiguous:
        for block in np.nditer(array, ["external_loop", "buffered", "zerosize_ok"], order="C", buffersize=1 << 16):
            hasher.update(np.ascontiguousarray(block).tobytes())
        return hasher.hexdigest()
    flat = array.reshape(-1).view(np.uint8)  # [...] -> [bytes]
    for first, last in _counted(flat.size) if _is_mapped(array) else [(0, flat.size)]:
        hasher.update(flat[first:last].data)
    return hasher.hexdigest()


def _counted(size: int) -> Iterator[tuple[int, int]]:
    """The spans of bytes that count."""
    if size <= _WHOLE_BYTES:
        yield 0, size
        return
    yield 0, _END_BYTES
    for place in range(1, _BLOCKS + 1):
        first = size * place // (_BLOCKS + 1)
        yield first, first + _BLOCK_BYTES
    yield size - _END_BYTES, size


def _is_mapped(array: Any) -> bool:
    base = array
    while base is not None:
        if isinstance(base, np.memmap) or type(base).__name__ == "mmap":
            return True
        base = getattr(base, "base", None) if isinstance(base, np.ndarray) else getattr(base, "obj", None)
    return False


def items_digest(items: Sequence[Any], describe: Describe) -> str:
    """Digest a sequence.

    Args:
        items: the values.
        describe: called for each item that is not plain.

    Returns:
        SHA-256, hexadecimal.

    Raises:
        TooManyError: more than MAX_ITEMS items would have to be described one by one.
    """
    hasher = hashlib.sha256()
    _feed(hasher, items, describe)
    return hasher.hexdigest()


def _feed(hasher: _Hasher, items: Sequence[Any], describe: Describe) -> None:
    """Feed the items' types and values; what is alike goes in by columns."""
    kinds = {*map(type, items)}
    names = sorted(kind.__name__ for kind in kinds) if kinds <= _PLAIN else [kind.__name__ for kind in kinds][:1]
    hasher.update(f"[{len(items)} {' '.join(names)}]".encode())
    if kinds <= _PLAIN:
        for first in range(0, len(items), _CHUNK_ITEMS):
            hasher.update(json.dumps(items[first : first + _CHUNK_ITEMS], separators=(",", ":")).encode())
    elif kinds in ({list}, {tuple}):
        _feed(hasher, [len(item) for item in items], describe)
        _feed(hasher, list(chain.from_iterable(items)), describe)
    elif kinds == {dict} and len({*map(tuple, items)}) == 1:
        keys = list(items[0])
        _feed(hasher, keys, describe)
        for key in keys:
            _feed(hasher, [item[key] for item in items], describe)
    elif all(issubclass(kind, PathLike) for kind in kinds):
        _feed(hasher, [fspath(item) for item in items], describe)
    elif kinds == {bytes}:
        _feed(hasher, [len(item) for item in items], describe)
        hasher.update(b"".join(items))
    else:
        _feed_each(hasher, items, describe)


def _feed_each(hasher: _Hasher, items: Sequence[Any], describe: Describe) -> None:
    if len(items) > MAX_ITEMS:
        raise TooManyError(f"there are {len(items)} items, of which some are not plain")
    for item in items:
        hasher.update(json.dumps(describe(item), sort_keys=True, separators=(",", ":")).encode() + b"\n")
