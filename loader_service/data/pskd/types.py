"""Reading the text of a sample's type.

Owns `parse_type`. Invariant: the layout that it returns is closed: every dimension is a number (R83, R84). Any other
text is DataError E9001, with the place marked under it.

    type := idx [ N ] [ dims ] | ℝ [ dims ] | Real [ dims ] | ( type , type … );  (T) is T
    dims := nothing | dim , dim …;  dim := number | name : number
"""

from __future__ import annotations

import re
from typing import NoReturn

from loader_service.contract.checks import checked_text
from loader_service.data.pskd.layout import MAX_DIMENSIONS, Layout, Leaf, Tuple, checked_layout, leaves
from loader_service.errors import DataError

__all__ = ["is_params", "layout_of", "parse_type"]

_TOKEN = re.compile(r"\s*(?:(?P<word>[^\W\d]\w*)|(?P<number>[0-9]+)|(?P<mark>\.\.\.|.))", re.DOTALL)
_PARAMS = re.compile(r"\s*params\s+[^\W\d]\w*\s*")
_MAX_DEPTH = 64
_MARGIN = 60
"""Characters of a long text that an error shows on each side of the mark."""


def is_params(text: str) -> bool:
    """True for the type `params NAME`, whose layout the text does not tell (R85)."""
    return _PARAMS.fullmatch(text) is not None


def parse_type(text: str) -> Layout:
    """Read the layout of a closed type.

    Raises:
        DataError: E9001 where the text is open or no data type, with the place marked.
        ArgumentError: If `text` is no str.

    >>> parse_type("(idx[64][seq: 8], ℝ[])")
    Tuple(parts=(Leaf(bound=64, shape=(8,)), Leaf(bound=None, shape=())))
    """
    parser = _Parser(checked_text("the type", text))
    layout = parser.read_type(0)
    if parser.token:
        parser.fail("the type ends here")
    return layout


def layout_of(text: str, layout: Layout | None) -> Layout:
    """Find the layout of samples of the type `text`.

    Args:
        text: The type.
        layout: The caller's layout, which gives a `params` type its leaves, or the parts of a tuple names; None for the
            one that the text tells.

    Raises:
        DataError: E9001 as `parse_type`; E9005 if `layout` has other leaves than the text.
        ArgumentError: If `layout` is none.
    """
    text = checked_text("the type", text)
    if layout is None:
        return parse_type(text)
    checked_layout("layout", layout)
    if not is_params(text) and list(leaves(parse_type(text))) != list(leaves(layout)):
        raise DataError("E9005", f"the layout {layout} has other leaves than its type {text!r}")
    return layout


class _Parser:
    """A position in the text of a type.

    Attributes:
        token: The token there, empty at the end.
        kind: word, number, mark or end.
    """

    def __init__(self, text: str) -> None:
        self._text, self._end = text, 0
        self.advance()

    def advance(self) -> str:
        """Go on to the next token; returns the one before."""
        read = getattr(self, "token", "")
        match = _TOKEN.match(self._text, self._end)
        if match is None or not match[match.lastgroup or 0].strip():
            self.token, self.kind, self._start = "", "end", len(self._text.rstrip())
        else:
            self.kind = match.lastgroup or "mark"
            self.token, self._start, self._end = match[self.kind], match.start(self.kind), match.end()
        return read

    def fail(self, problem: str) -> NoReturn:
        """Raise DataError E9001 with the present token marked."""
        first = max(self._start - _MARGIN, 0)
        part = self._text[first : self._start + _MARGIN]
        shown = "".join(char if char.isprintable() else " " for char in part)  # one line, so that the mark stands right
        marked = f"{shown}\n{' ' * (self._start - first)}^"
        raise DataError("E9001", f"{problem}; a type is such as (idx[64][seq: 8], ℝ[4])\n{marked}")

    def expect(self, mark: str) -> None:
        """Go on behind `mark`, which must stand here."""
        if self.token != mark:
            self.fail(f"{mark!r} is expected here")
        self.advance()

    def number(self, low: int, high: int, what: str) -> int:
        """Read a number in [low, high]."""
        if self.kind != "number":
            self.fail(f"{what} must be a number, for the type is open otherwise")
        if len(self.token) > 20 or not low <= int(self.token) <= high:
            self.fail(f"{what} must lie in [{low}, {high}]")
        return int(self.advance())

    def read_type(self, depth: int) -> Layout:
        """Read one type, `depth` tuples deep."""
        if depth > _MAX_DEPTH:
            self.fail(f"the type is nested more than {_MAX_DEPTH} deep")
        if self.token == "(":
            return self.read_tuple(depth)
        if self.token == "idx":
            self.advance()
            self.expect("[")
            bound = self.number(1, 2**64 - 1, "the bound of an idx")
            self.expect("]")
            return Leaf(bound, self.dimensions())
        if self.token not in ("ℝ", "Real"):
            self.fail("idx, ℝ, Real or ( is expected here; nothing else is a data type")
        self.advance()
        return Leaf(None, self.dimensions())

    def read_tuple(self, depth: int) -> Layout:
        """Read a tuple; one of a single part is that part."""
        self.expect("(")
        parts = [self.read_type(depth + 1)]
        while self.token == ",":
            self.advance()
            parts.append(self.read_type(depth + 1))
        self.expect(")")
        return parts[0] if len(parts) == 1 else Tuple(tuple(parts))

    def dimensions(self) -> tuple[int, ...]:
        """Read the dimensions of a tensor, in brackets."""
        self.expect("[")
        shape: list[int] = []
        while self.token != "]":
            if shape:
                self.expect(",")
            if self.kind == "word":
                self.advance()
                self.expect(":")
            if len(shape) == MAX_DIMENSIONS:
                self.fail(f"a tensor has at most {MAX_DIMENSIONS} dimensions")
            shape.append(self.number(0, 2**63 - 1, "a dimension"))
        self.advance()
        return tuple(shape)
