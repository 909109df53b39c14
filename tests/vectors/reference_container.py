"""The `.psk.d` container, one value at a time: rules R77 to R96, and the texts of R97 to R99.

Written from `docs/specification.md` alone. A leaf is (bound or None, shape); a sample is a flat list of values for each
of its leaves, in the order of storage.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

__all__ = ["ContainerError", "decode", "encode", "idx_bytes", "read", "type_leaves", "vocabulary", "windows", "write"]

Leaf = tuple[int | None, list[int]]


class ContainerError(Exception):
    """R92 to R96: the code."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


# --- types: R83 to R86 ------------------------------------------------------------------------------------


class _Type:
    """The tokens of a type's text that are still to be read."""

    def __init__(self, text: str) -> None:
        tokens = re.compile(r"\s*([^\W\d]\w*|[0-9]+|\S)")
        self.left: list[str] = []
        while text.strip():
            match = tokens.match(text)
            assert match is not None
            self.left.append(match[1])
            text = text[match.end() :]

    def peek(self) -> str:
        return self.left[0] if self.left else ""

    def take(self, *wanted: str) -> str:
        if self.peek() not in wanted:
            raise ContainerError("E9001")
        return self.left.pop(0)

    def number(self, low: int, high: int) -> int:
        token = self.peek()
        if not re.fullmatch("[0-9]{1,20}", token) or not low <= int(token) < high:
            raise ContainerError("E9001")
        return int(self.left.pop(0))

    def type(self) -> list[Leaf]:
        first = self.take("(", "idx", "ℝ", "Real")
        if first == "(":
            return self.parts()
        bound = None
        if first == "idx":
            self.take("[")
            bound = self.number(1, 2**64)
            self.take("]")
        return [(bound, self.dimensions())]

    def parts(self) -> list[Leaf]:
        found = self.type()
        while self.take(",", ")") == ",":
            found += self.type()
        return found

    def dimensions(self) -> list[int]:
        self.take("[")
        shape: list[int] = []
        if self.peek() == "]":
            self.take("]")
            return shape
        while True:
            if re.fullmatch(r"[^\W\d]\w*", self.peek()):
                self.left.pop(0)
                self.take(":")
            shape.append(self.number(0, 2**63))
            if self.take(",", "]") == "]":
                return shape


def type_leaves(text: str) -> list[Leaf]:
    """R83 and R84: the leaves of a closed type."""
    parsed = _Type(text)
    found = parsed.type()
    if parsed.left:
        raise ContainerError("E9001")
    return found


def idx_bytes(bound: int) -> int:
    """R81."""
    return next(size for size in (1, 2, 4, 8) if bound - 1 < 2 ** (8 * size))


# --- files: R77 to R91 ------------------------------------------------------------------------------------


@dataclass
class _Place:
    """Place up to which a file has been read."""

    data: bytes
    offset: int = 0

    def take(self, size: int) -> bytes:
        if self.offset + size > len(self.data):
            raise ContainerError("E9003")
        self.offset += size
        return self.data[self.offset - size : self.offset]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")


def read(data: bytes, supplied: list[Leaf] | None = None) -> Iterator[list[list[float]]]:
    """R87 and R88: the samples of a file, one after the other: without elements they may be 2^63 - 1.

    `supplied` are the leaves of a `params` type, R85.
    """
    if data[:4] != b"PSKD":
        raise ContainerError("E9002")
    place = _Place(data, 4)
    version = place.number(2)
    if version not in (1, 2):
        raise ContainerError("E9002")
    try:
        text = place.take(place.number(4)).decode("utf-8")
    except UnicodeDecodeError:
        raise ContainerError("E9002") from None
    count = place.number(8)
    if count >= 2**63:
        raise ContainerError("E9004")
    found = type_leaves(text) if supplied is None else supplied
    encodings = [0] * len(found) if version == 1 else _encodings(place, found)
    sizes = [prod(shape) * _bytes(bound, enc) for (bound, shape), enc in zip(found, encodings, strict=True)]
    end = place.offset + count * sum(sizes)
    if len(data) != end:
        raise ContainerError("E9003" if len(data) < end else "E9005")
    for _ in range(count):
        yield [_values(place, bound, shape, enc) for (bound, shape), enc in zip(found, encodings, strict=True)]


def _encodings(place: _Place, found: Sequence[Leaf]) -> list[int]:
    """R78."""
    if place.number(4) != len(found):
        raise ContainerError("E9005")
    encodings = list(place.take(len(found)))
    if any(enc > 2 or (enc and bound is not None) for enc, (bound, _) in zip(encodings, found, strict=True)):
        raise ContainerError("E9002")
    return encodings


def _bytes(bound: int | None, enc: int) -> int:
    return (8, 4, 2)[enc] if bound is None else idx_bytes(bound)


def _values(place: _Place, bound: int | None, shape: list[int], enc: int) -> list[float]:
    stored = [place.take(_bytes(bound, enc)) for _ in range(prod(shape))]
    if bound is None:
        return [_real(one, enc) for one in stored]
    numbers = [int.from_bytes(one, "little") for one in stored]
    if any(number >= bound for number in numbers):
        raise ContainerError("E9004")
    return list(numbers)


def _real(stored: bytes, enc: int) -> float:
    """R82."""
    number: float = struct.unpack("<d" if enc == 0 else "<f", b"\0\0" + stored if enc == 2 else stored)[0]
    return number


def write(
    text: str,
    encodings: Sequence[int] | None,
    samples: Sequence[Sequence[Sequence[float]]],
    supplied: list[Leaf] | None = None,
) -> bytes:
    """R79 and R90: the bytes of a file; `supplied` as for `read`."""
    found = type_leaves(text) if supplied is None else supplied
    encs = list(encodings or [0] * len(found))
    raw = text.encode()
    version = 2 if any(encs) else 1
    head = b"PSKD" + struct.pack("<HI", version, len(raw)) + raw + struct.pack("<Q", len(samples))
    if version == 2:
        head += struct.pack("<I", len(found)) + bytes(encs)
    return head + b"".join(_sample(sample, found, encs) for sample in samples)


def _sample(sample: Sequence[Sequence[float]], found: Sequence[Leaf], encodings: Sequence[int]) -> bytes:
    if len(sample) != len(found):
        raise ContainerError("E9005")
    stored = b""
    for values, (bound, shape), enc in zip(sample, found, encodings, strict=True):
        if len(values) != prod(shape):
            raise ContainerError("E9005")
        stored += b"".join(_stored(value, bound, enc) for value in values)
    return stored


def _stored(value: float, bound: int | None, enc: int) -> bytes:
    if bound is not None:
        if not isinstance(value, int) or not 0 <= value < bound:
            raise ContainerError("E9004")
        return value.to_bytes(idx_bytes(bound), "little")
    if not math.isfinite(value):
        raise ContainerError("E9004")
    try:
        stored = struct.pack("<d" if enc == 0 else "<f", value)
    except OverflowError:
        raise ContainerError("E9004") from None
    stored = stored[2:] if enc == 2 else stored
    if _real(stored, enc) != value:
        raise ContainerError("E9004")
    return stored


# --- texts: R97 to R99 ------------------------------------------------------------------------------------


def vocabulary(text: str) -> list[str]:
    """R97."""
    return sorted(set(text), key=ord)


def encode(text: str, vocab: Sequence[str]) -> list[int]:
    """R98."""
    if any(len(token) != 1 for token in vocab) or not set(text) <= set(vocab):
        raise ContainerError("E9004")
    return [vocab.index(character) for character in text]


def decode(tokens: Sequence[int], vocab: Sequence[str]) -> str:
    """R98."""
    return "".join(vocab[token] for token in tokens)


def windows(tokens: Sequence[int], seq: int, stride: int) -> list[list[list[int]]]:
    """R99."""
    found: list[list[list[Any]]] = []
    first = 0
    while first + seq + 1 <= len(tokens):
        found.append([list(tokens[first : first + seq]), list(tokens[first + 1 : first + 1 + seq])])
        first += stride
    return found
