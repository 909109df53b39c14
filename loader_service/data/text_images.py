"""Real text as line images: every line of some text files, drawn with the font that Pillow carries.

Owns `TextLineImages`. Invariant: a sample depends on the files' text, the height and the glyphs alone. Each
character of the text is drawn once, at construction; a line is its glyphs side by side at their advance widths,
without kerning. So reading touches no font and no file, is safe in threads and costs about 0.1 ms.
Fails at construction: ArgumentError names the file, ConfigurationError the missing Pillow.

    x_k = sum of the advances before character k, moved right until all ink lies inside a margin of one column
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import index as as_index
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loader_service.contract.collate import ImageBatchCollator
from loader_service.contract.sample import ImageSample
from loader_service.contract.samplers import ShuffledSampler
from loader_service.contract.stream import Stream
from loader_service.errors import ArgumentError, ConfigurationError

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

__all__ = ["TextLineImages", "text_line_images"]

_MARGIN = 1
_MIN_HEIGHT, _MAX_HEIGHT = 8, 1024


class TextLineImages:
    """A dataset of the non-blank lines of text files, in the order of the files.

    files: paths of UTF-8 texts, by default the top-level sources of Python's standard library; height: pixels,
    8 to 1024; max_lines: how many lines to keep, all by default. Sample i: image float32 [1, height, W_i] with
    ink 1.0 on 0.0; target int32 [L], 1 + each character's place in `vocabulary` (0 is CTC's blank); label:
    which file. Tabs are expanded and blanks at a line's end dropped. Raises ArgumentError, ConfigurationError.

    vocabulary: the characters of all lines, sorted; fingerprint: of the lines, the height and the font.
    """

    def __init__(
        self,
        files: Sequence[str | PathLike[str]] | None = None,
        height: int = 32,
        max_lines: int | None = None,
    ) -> None:
        self.height = _checked_int("height", height, _MIN_HEIGHT, _MAX_HEIGHT)
        limit = None if max_lines is None else _checked_int("max_lines", max_lines, 1, 2**31 - 1)
        self._lines, self._labels = _read_lines(_paths(files), limit)
        self.vocabulary = "".join(sorted(set("".join(self._lines))))
        self._codes = _code_points(self.vocabulary)  # uint32 [V], ascending
        font, font_version = _font(self.height)
        self._glyphs = _Glyphs.draw(font, self.vocabulary, self.height)
        self.fingerprint = _fingerprint(font_version, self.height, self._lines, self._labels)

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int, /) -> ImageSample:
        """The sample at 0 <= index < len(self), in arrays of its own. Raises ArgumentError."""
        places = np.searchsorted(self._codes, _code_points(self.text(index)))  # int64 [L]
        target = (places + 1).astype(np.int32)
        return ImageSample(self._glyphs.line(places), target, int(self._labels[index]))

    def widths(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The widths of the samples at `indices`, without drawing them: int64 [N]."""
        lines = (np.searchsorted(self._codes, _code_points(self.text(index))) for index in indices.tolist())
        return np.array([self._glyphs.place(places)[1] for places in lines], np.int64)

    def text(self, index: int) -> str:
        """The line at 0 <= index < len(self). Raises ArgumentError."""
        if not 0 <= as_index(index) < len(self._lines):
            raise ArgumentError(f"index is {index}; the dataset's indices lie in [0, {len(self._lines)})")
        return self._lines[index]


@dataclass(frozen=True, slots=True)
class _Glyphs:
    """The drawn characters of a vocabulary of V.

    ink: V arrays float32 [width, height], column by column, so that a glyph lands in one piece of memory;
    left: columns from the pen to the ink, int64 [V]; right: to where the ink ends, int64 [V]; advance: how far
    the pen goes, int64 [V].
    """

    ink: tuple[NDArray[np.float32], ...]
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    advance: NDArray[np.int64]
    height: int

    @classmethod
    def draw(cls, font: FreeTypeFont, vocabulary: str, height: int) -> _Glyphs:
        """Draw each character once, from the top of the line down."""
        ink = tuple(_draw(font, character, height) for character in vocabulary)
        left = np.array([font.getbbox(character)[0] for character in vocabulary], np.int64)
        right = left + np.array([len(glyph) for glyph in ink], np.int64)
        advance = np.array([round(font.getlength(character)) for character in vocabulary], np.int64)
        return cls(ink, left, right, advance, height)

    def place(self, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
        """Where the ink of each character of a line begins, int64 [L], and how wide the line is, with its margins."""
        pens = np.cumsum(self.advance[places]) - self.advance[places]  # [L], from 0
        starts, ends = pens + self.left[places], pens + self.right[places]
        first = min(0, int(starts.min()))
        return starts - first + _MARGIN, int(ends.max()) - first + 2 * _MARGIN

    def line(self, places: NDArray[np.int64]) -> NDArray[np.float32]:
        """The characters at `places` of the vocabulary, int64 [L], as an image float32 [1, height, W]."""
        starts, width = self.place(places)
        canvas = np.zeros((width, self.height), np.float32)
        for place, start in zip(places.tolist(), starts.tolist(), strict=True):
            glyph = self.ink[place]
            columns = canvas[start : start + len(glyph)]  # [width, height]
            np.maximum(columns, glyph, out=columns)
        return np.ascontiguousarray(canvas.T)[np.newaxis]  # [W, height] -> [1, height, W]


def _draw(font: FreeTypeFont, character: str, height: int) -> NDArray[np.float32]:
    """One character's ink in [0, 1], float32 [width, height]; blanks are drawn as they are, without ink."""
    from PIL import Image, ImageDraw

    left, _, right, _ = font.getbbox(character)
    canvas = Image.new("L", (max(0, int(right - left)), height))
    ImageDraw.Draw(canvas).text((-left, 0), character, fill=255, font=font)
    return np.ascontiguousarray(np.asarray(canvas, np.float32).T / np.float32(255))


def _font(height: int) -> tuple[FreeTypeFont, str]:
    """The largest built-in font whose ascent and descent fit the height together, and what identifies it."""
    try:
        from PIL import ImageFont, __version__, features

        sizes = (ImageFont.load_default(size) for size in range(height, 0, -1))
        font = next(font for font in sizes if not isinstance(font, ImageFont.ImageFont) and _fits(font, height))
    except ImportError as error:
        raise ConfigurationError(
            f"text lines are drawn with Pillow and its FreeType, which cannot be imported here ({error}); "
            "pip install 'loader-service[images]'"
        ) from error
    return font, f"{font.getname()} {font.size} Pillow {__version__} FreeType {features.version('freetype2')}"


def _fits(font: FreeTypeFont, height: int) -> bool:
    return sum(font.getmetrics()) <= height


def _paths(files: Sequence[str | PathLike[str]] | None) -> list[Path]:
    if isinstance(files, str | PathLike):
        raise ArgumentError(f"files is the single path {str(files)!r}; pass a list of paths")
    if files is None:
        folder = Path(sysconfig.get_paths()["stdlib"])
        files = sorted(folder.glob("*.py"))
        if not files:
            raise ArgumentError(f"{folder} holds no sources of the standard library here; pass files=[...]")
    if not files:
        raise ArgumentError("files is empty; pass at least one path, or None for Python's own sources")
    return [Path(file) for file in files]


def _read_lines(paths: Sequence[Path], limit: int | None) -> tuple[list[str], NDArray[np.int32]]:
    """All non-blank lines, and for each the place of its file: int32 [lines]."""
    lines: list[str] = []
    labels: list[int] = []
    for label, path in enumerate(paths):
        found = [line.expandtabs().rstrip() for line in _read(path).split("\n") if line.strip()]
        lines += found
        labels += [label] * len(found)
        if limit is not None and len(lines) >= limit:
            break
    if not lines:
        raise ArgumentError(f"no line with text in {', '.join(map(str, paths))}; pass files with some text")
    return lines[:limit], np.array(labels[:limit], np.int32)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ArgumentError(f"cannot read {path}: {error.strerror}; check path and permissions") from error


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), "<u4")


def _fingerprint(font: str, height: int, lines: Iterable[str], labels: NDArray[np.int32]) -> str:
    hasher = hashlib.sha256(f"{font}\n{height}\n".encode())
    hasher.update("\n".join(lines).encode())
    hasher.update(labels.astype("<i4").tobytes())
    return hasher.hexdigest()


def _checked_int(name: str, value: Any, low: int, high: int) -> int:
    try:
        value = as_index(value)
    except TypeError:
        raise ArgumentError(f"{name} is {value!r}; it must be an integer") from None
    if not low <= value <= high:
        raise ArgumentError(f"{name} is {value}; it must lie in [{low}, {high}]")
    return int(value)


def text_line_images(
    files: Sequence[str | PathLike[str]] | None = None,
    seed: int = 0,
    batch_size: int = 32,
    width_multiple: int = 8,
    max_lines: int | None = None,
) -> Stream:
    """A shuffled stream of `TextLineImages(files)`, padded with background. Raises what it raises."""
    dataset = TextLineImages(files, max_lines=max_lines)
    sampler = ShuffledSampler(len(dataset), batch_size, seed)
    return Stream(dataset, sampler, ImageBatchCollator(width_multiple), seed=seed)
