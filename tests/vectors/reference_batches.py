"""Stacked and padded batches, parts of ranks, and how a batch lies in memory: rules R47 to R50, R63 and R67 to R71.

Written from `docs/specification.md` alone. A tensor is (type, shape, row-major values).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

__all__ = ["Tensor", "header", "lay_out", "leaves", "pad", "part_of_lengths", "stack", "unpack"]

Tensor = tuple[str, list[int], list[Any]]


def leaves(sample: Any, name: str, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """R47: a leaf is a dict with the keys type, shape and values."""
    if isinstance(sample, dict) and sample.keys() == {"type", "shape", "values"}:
        yield path or name, (sample["type"], sample["shape"], sample["values"])
        return
    children = sample.items() if isinstance(sample, dict) else enumerate(sample)
    for key, child in children:
        yield from leaves(child, name, f"{path}.{key}" if path else str(key))


def _with_indices(found: dict[str, Tensor], indices: Sequence[int]) -> dict[str, Tensor]:
    return found | {"indices": ("int64", [len(indices)], list(indices))}


def stack(samples: Sequence[Any], indices: Sequence[int], name: str = "data") -> dict[str, Tensor]:
    """R48."""
    rows = [dict(leaves(sample, name)) for sample in samples]
    found = {}
    for path, (kind, shape, _) in rows[0].items():
        assert all(row[path][:2] == (kind, shape) for row in rows)
        found[path] = (kind, [len(rows), *shape], [value for row in rows for value in row[path][2]])
    return _with_indices(found, indices)


def pad(
    samples: Sequence[Any],
    indices: Sequence[int],
    multiple: int,
    pad_value: float | dict[str, float],
    name: str = "tokens",
) -> dict[str, Tensor]:
    """R49 and R50; a mapping gives the pad value of each leaf that it names."""
    rows = [dict(leaves(sample, name)) for sample in samples]
    found: dict[str, Tensor] = {}
    for path, (kind, shape, _) in rows[0].items():
        if not shape:
            found[path] = (kind, [len(rows)], [row[path][2][0] for row in rows])
            continue
        lengths = [row[path][1][0] for row in rows]
        longest = -(-max(lengths) // multiple) * multiple
        size = longest * prod(shape[1:])
        filling = pad_value.get(path, 0) if isinstance(pad_value, dict) else pad_value
        values: list[Any] = []
        for row in rows:
            values += row[path][2] + [filling] * (size - len(row[path][2]))
        found[path] = (kind, [len(rows), longest, *shape[1:]], values)
        found[f"{path}_lengths"] = ("int32", [len(rows)], lengths)
    return _with_indices(found, indices)


def part_of_lengths(values: Sequence[Any], lengths: Sequence[int], first: int, stop: int) -> list[Any]:
    """R63: what belongs to rows [first, stop) of a tensor whose rows lie one behind the other."""
    start = sum(lengths[:first])
    return list(values[start : start + sum(lengths[first:stop])])


def lay_out(tensors: Sequence[tuple[str, list[int]]]) -> tuple[list[int], int]:
    """R67: (offset of each, bytes of all) for tensors of (type as R68 writes it, shape)."""
    offsets, end = [], 0
    for kind, shape in tensors:
        first = -(-end // 64) * 64
        offsets.append(first)
        end = first + _bytes(kind) * prod(shape)
    return offsets, end


def _bytes(kind: str) -> int:
    """R68: the bytes of one element."""
    if kind[0] in "<>|":
        return int(kind[2:])
    return 2 if kind == "bfloat16" else 1


def unpack(packed: bytes) -> Any:
    """R69: what a msgpack of lists, texts and whole numbers holds."""
    value, end = _unpack(packed, 0)
    assert end == len(packed)
    return value


def _unpack(packed: bytes, place: int) -> tuple[Any, int]:
    code, place = packed[place], place + 1
    if code < 0x80:
        return code, place
    if code >> 5 == 0b101:  # a short text
        return packed[place : place + (code & 31)].decode(), place + (code & 31)
    if code >> 4 == 0b1001:  # a short list
        return _list(packed, place, code & 15)
    if code == 0xDC:
        return _list(packed, place + 2, int.from_bytes(packed[place : place + 2], "big"))
    sizes = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD9: 1}  # whole numbers, and a text of up to 255 bytes
    number = int.from_bytes(packed[place : place + sizes[code]], "big")
    place += sizes[code]
    return (packed[place : place + number].decode(), place + number) if code == 0xD9 else (number, place)


def _list(packed: bytes, place: int, length: int) -> tuple[list[Any], int]:
    items = []
    for _ in range(length):
        item, place = _unpack(packed, place)
        items.append(item)
    return items, place


def header(state: int, step: int, generation: int, nbytes: int) -> bytes:
    """R70: what a segment begins with, without the rest of its 64 bytes."""
    return b"LSRVSEG1" + struct.pack("<QQQQ", state, step, generation, nbytes)
