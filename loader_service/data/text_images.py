"""Real text as line images: each line of text files, drawn with the font that Pillow brings along.

Owns `TextLineImages`. Invariant: a sample depends on the text of the files, the height and the font alone. Each
character of the text is drawn once, at construction; a line is its glyphs side by side at their advance widths, without
kerning. So reading a sample opens no font and no file, is safe in several threads and takes about 0.1 ms. Fails at
construction: ArgumentError names the file, ConfigurationError the missing Pillow.

    x_k = sum of the advances before character k, moved right until all ink lies inside a margin of one column
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loader_service.contract.checks import checked_index, checked_indices, checked_int, checked_sequence, shown
from loader_service.contract.collate import ImageBatchCollator
from loader_service.contract.sample import ImageSample
from loader_service.contract.samplers import ShuffledSampler
from loader_service.contract.stream import Stream
from loader_service.data.files import check_regular_file, checked_path, file_error
from loader_service.errors import ArgumentError, ConfigurationError

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

__all__ = ["TextLineImages", "text_line_images"]

_MARGIN = 1
_MIN_HEIGHT, _MAX_HEIGHT = 8, 1024


class TextLineImages:
    """A dataset of the non-blank lines of text files, in the order of the files.

    Sample i is an `ImageSample`: image float32 [1, height, W_i] with ink 1.0 on 0.0; target int32 [L], 1 + the place of
    each character in `vocabulary` (0 is the blank of CTC); label: the place of the line's file in `files`. Tabs are
    expanded, and blanks at the end of a line dropped.

    Args:
        files: Paths of UTF-8 texts; None for the top-level sources of Python's standard library.
        height: Pixels, 8 to 1024.
        max_lines: Number of lines to keep, the first ones; None for all.

    Attributes:
        vocabulary: The characters of all lines, sorted.
        fingerprint: Digest of the lines, the height and the font.

    Raises:
        ArgumentError: If a file cannot be read, there is no text, or an argument lies outside its range.
        ConfigurationError: If Pillow is missing.
    """

    def __init__(
        self,
        files: Sequence[str | PathLike[str]] | None = None,
        height: int = 32,
        max_lines: int | None = None,
    ) -> None:
        self.height = checked_int("height", height, _MIN_HEIGHT, _MAX_HEIGHT)
        limit = None if max_lines is None else checked_int("max_lines", max_lines, 1, 2**31 - 1)
        self._lines, self._labels = _read_lines(_paths(files), limit)
        self.vocabulary = "".join(sorted(set("".join(self._lines))))
        self._codes = _code_points(self.vocabulary)  # uint32 [V], ascending
        font, font_version = _font(self.height)
        self._glyphs = _Glyphs.draw(font, self.vocabulary, self.height)
        self.fingerprint = _fingerprint(font_version, self.height, self._lines, self._labels)

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int, /) -> ImageSample:
        """Draw the sample at 0 <= index < len(self), in arrays of its own. Raises ArgumentError."""
        index = checked_index(index, len(self))
        places = np.searchsorted(self._codes, _code_points(self._lines[index]))  # int64 [L]
        target = (places + 1).astype(np.int32)
        return ImageSample(self._glyphs.line(places), target, int(self._labels[index]))

    def __iter__(self) -> Iterator[ImageSample]:
        return (self[index] for index in range(len(self)))

    def widths(self, indices: ArrayLike) -> NDArray[np.int64]:
        """Tell the widths of samples without drawing them.

        Args:
            indices: Integers [N] in [0, len(self)).

        Returns:
            Widths in pixels, int64 [N].

        Raises:
            ArgumentError: If an index lies outside.
        """
        wanted = checked_indices("indices", indices, len(self)).tolist()
        lines = (np.searchsorted(self._codes, _code_points(self._lines[index])) for index in wanted)
        return np.array([self._glyphs.layout(places)[1] for places in lines], np.int64)

    def text(self, index: int) -> str:
        """The text of the line at 0 <= index < len(self). Raises ArgumentError."""
        return self._lines[checked_index(index, len(self))]


@dataclass(frozen=True, slots=True)
class _Glyphs:
    """The drawn characters of a vocabulary of V.

    Attributes:
        ink: V arrays float32 [width, height], column by column, so that a glyph is copied in one piece.
        left: Columns from the pen to the first ink, int64 [V].
        right: Columns from the pen to the end of the ink, int64 [V].
        advance: Columns that the pen moves on, int64 [V].
        height: Pixels.
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

    def layout(self, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
        """Lay out a line of the characters at `places` of the vocabulary, int64 [L].

        Returns:
            The column at which the ink of each character begins, int64 [L], and the width of the line with its margins.
        """
        pens = np.cumsum(self.advance[places]) - self.advance[places]  # [L], from 0
        starts, ends = pens + self.left[places], pens + self.right[places]
        first = min(0, int(starts.min()))
        return starts - first + _MARGIN, int(ends.max()) - first + 2 * _MARGIN

    def line(self, places: NDArray[np.int64]) -> NDArray[np.float32]:
        """Draw the characters at `places` of the vocabulary, int64 [L]: an image float32 [1, height, W]."""
        starts, width = self.layout(places)
        canvas = np.zeros((width, self.height), np.float32)
        for place, start in zip(places.tolist(), starts.tolist(), strict=True):
            glyph = self.ink[place]
            columns = canvas[start : start + len(glyph)]  # [width, height]
            np.maximum(columns, glyph, out=columns)
        return np.ascontiguousarray(canvas.T)[np.newaxis]  # [W, height] -> [1, height, W]


def _draw(font: FreeTypeFont, character: str, height: int) -> NDArray[np.float32]:
    """Draw the ink of one character, float32 [width, height] in [0, 1]; a blank has none."""
    from PIL import Image, ImageDraw

    left, _, right, _ = font.getbbox(character)
    canvas = Image.new("L", (max(0, int(right - left)), height))
    ImageDraw.Draw(canvas).text((-left, 0), character, fill=255, font=font)
    return np.ascontiguousarray(np.asarray(canvas, np.float32).T / np.float32(255))


def _font(height: int) -> tuple[FreeTypeFont, str]:
    """Find the largest built-in font whose ascent and descent fit the height, and the text that identifies it."""
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
        raise ArgumentError(f"files is the single path {shown(files)}; pass a list of paths")
    if files is None:
        folder = Path(sysconfig.get_paths()["stdlib"])
        files = sorted(folder.glob("*.py"))
        if not files:
            raise ArgumentError(f"{folder} holds no sources of the standard library here; pass files=[...]")
    paths = list(checked_sequence("files", files, checked_path))
    if not paths:
        raise ArgumentError("files is empty; pass at least one path, or None for Python's own sources")
    return paths


def _read_lines(paths: Sequence[Path], limit: int | None) -> tuple[list[str], NDArray[np.int32]]:
    """Read all non-blank lines, at most `limit`, and for each the place of its file, int32 [lines]."""
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
    check_regular_file(path)
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise file_error(path, error) from error


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), "<u4")


def _fingerprint(font: str, height: int, lines: Iterable[str], labels: NDArray[np.int32]) -> str:
    hasher = hashlib.sha256(f"{font}\n{height}\n".encode())
    hasher.update("\n".join(lines).encode())
    hasher.update(labels.astype("<i4").tobytes())
    return hasher.hexdigest()


def text_line_images(
    files: Sequence[str | PathLike[str]] | None = None,
    seed: int = 0,
    batch_size: int = 32,
    width_multiple: int = 8,
    max_lines: int | None = None,
) -> Stream:
    """Make a shuffled stream of `TextLineImages(files)`, padded with background.

    Args:
        files, max_lines: As of `TextLineImages`.
        seed: Of the order.
        batch_size: Images in a batch.
        width_multiple: The padded width of a batch is a multiple of so many pixels.

    Raises:
        ArgumentError: If an argument lies outside its range, or a file cannot be read.
        ConfigurationError: If Pillow is missing.
    """
    dataset = TextLineImages(files, max_lines=max_lines)
    sampler = ShuffledSampler(len(dataset), batch_size, seed)
    return Stream(dataset, sampler, ImageBatchCollator(width_multiple), seed=seed)
