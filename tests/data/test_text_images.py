"""Text lines as images: whole glyphs, true widths, targets that read back as the text, and clear refusals."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ImageFont
from PIL.ImageFont import FreeTypeFont

from loader_service.data import TextLineImages, text_line_images
from loader_service.errors import ArgumentError, ConfigurationError, FileAccessError

TEXT = "def f(x):\n    return x\n\n   \n\tg = 'jÀ|_$'   \nlast"
LATIN = "".join(chr(code) for code in range(0x21, 0x250) if chr(code).isprintable())

Write = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(content: str | bytes) -> Path:
        path = tmp_path / f"text-{len(list(tmp_path.iterdir()))}.txt"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


def texts(dataset: TextLineImages) -> list[str]:
    return [dataset.text(index) for index in range(len(dataset))]


def test_lines_are_the_non_blank_ones_with_tabs_expanded(write: Write) -> None:
    dataset = TextLineImages([write(TEXT)])
    assert texts(dataset) == ["def f(x):", "    return x", "        g = 'jÀ|_$'", "last"]
    assert dataset.vocabulary == "".join(sorted(set("".join(texts(dataset)))))


@pytest.mark.parametrize("content", [b"a\nb\nc", b"a\r\nb\r\nc\r\n", b"a\rb\rc", b"\n\na\n \nb\nc\n"], ids=str)
def test_all_line_endings_end_a_line(write: Write, content: bytes) -> None:
    assert texts(TextLineImages([write(content)])) == ["a", "b", "c"]


def test_bytes_that_are_no_utf_8_are_replaced(write: Write) -> None:
    assert texts(TextLineImages([write(b"caf\xe9")])) == ["caf\ufffd"]


def test_targets_read_back_as_the_text(write: Write) -> None:
    dataset = TextLineImages([write(TEXT), write("日本語 𝒳")])
    for index, text in enumerate(texts(dataset)):
        target = dataset[index].target
        assert target.dtype == np.int32
        assert "".join(dataset.vocabulary[code - 1] for code in target) == text


def test_a_label_says_which_file(write: Write) -> None:
    dataset = TextLineImages([write("a\nb"), write(""), write("c")])
    assert [dataset[index].label for index in range(3)] == [0, 0, 2]


def test_images_are_ink_on_an_empty_background(write: Write) -> None:
    image = TextLineImages([write("Hello")])[0].image
    assert image.dtype == np.float32
    assert image.shape[:2] == (1, 32)
    assert image.min() == 0
    assert image.max() == 1
    assert image.flags.c_contiguous


def test_a_line_is_as_wide_as_its_ink_and_a_margin(write: Write) -> None:
    dataset = TextLineImages([write("MM\nMMM\n  MM\nM . M\n|")])
    for index in range(len(dataset)):
        columns = dataset[index].image[0].any(axis=0)
        assert not columns[0]
        assert not columns[-1]
        assert columns[-4:].any()
    widths = [dataset[index].image.shape[2] for index in range(3)]
    assert widths[0] < widths[1]
    assert widths[0] < widths[2]


def test_glyphs_stand_side_by_side_in_the_order_of_the_text(write: Write) -> None:
    dataset = TextLineImages([write("A\nB\nAB")])
    first, second, both = (dataset[index].image[0] for index in range(3))
    assert np.array_equal(both[:, : first.shape[1] - 1], first[:, :-1])
    assert np.array_equal(both[:, 1 - second.shape[1] :], second[:, 1:])


@pytest.mark.parametrize("height", [8, 9, 13, 16, 24, 31, 32, 33, 48, 64])
def test_no_glyph_is_cut_at_the_bottom_or_the_top(write: Write, height: int) -> None:
    dataset = TextLineImages([write("\n".join(LATIN))], height=height)
    fonts = [ImageFont.load_default(size) for size in range(1, height + 1)]
    font = [font for font in fonts if isinstance(font, FreeTypeFont) and sum(font.getmetrics()) <= height][-1]
    for index, character in enumerate(LATIN):
        whole = np.frombuffer(bytes(font.getmask(character)), np.uint8).sum()
        drawn = (dataset[index].image * 255).round().sum()
        assert drawn == whole, character


def test_the_font_fills_the_height(write: Write) -> None:
    rows = TextLineImages([write("É|gjpqy")], height=32)[0].image[0].any(axis=1).nonzero()[0]
    assert rows.max() - rows.min() + 1 >= 24


def test_a_line_without_ink_still_has_an_image(write: Write) -> None:
    sample = TextLineImages([write("\u2800\u200b")])[0]
    assert sample.image.shape[2] >= 1
    assert len(sample.target) == 2


def test_max_lines_keeps_the_first_lines(write: Write) -> None:
    files = [write("a\nb"), write("c\nd")]
    dataset = TextLineImages(files, max_lines=3)
    assert texts(dataset) == ["a", "b", "c"]
    assert dataset.vocabulary == "abc"
    assert texts(TextLineImages(files, max_lines=99)) == ["a", "b", "c", "d"]


def test_threads_and_copies_read_the_same_samples(write: Write) -> None:
    dataset = TextLineImages([write(TEXT)])
    expected = [dataset[index].image for index in range(4)]
    twin = pickle.loads(pickle.dumps(dataset))
    assert twin.fingerprint == dataset.fingerprint
    with ThreadPoolExecutor(4) as pool:
        for index, sample in zip([0, 1, 2, 3] * 50, pool.map(twin.__getitem__, [0, 1, 2, 3] * 50), strict=True):
            assert np.array_equal(sample.image, expected[index])


def test_equal_text_has_an_equal_fingerprint_and_other_text_another(write: Write) -> None:
    prints = [
        TextLineImages(files, height).fingerprint
        for files, height in [
            ([write("a\nb")], 32),
            ([write("a\nb")], 31),
            ([write("a\nc")], 32),
            ([write("ab")], 32),
            ([write("a"), write("b")], 32),
        ]
    ]
    assert len(set(prints)) == len(prints)
    assert TextLineImages([write("a\r\n\nb")]).fingerprint == prints[0]


@pytest.mark.parametrize("index", [-1, 2, 2**70])
def test_an_index_outside_the_dataset_is_refused(write: Write, index: int) -> None:
    dataset = TextLineImages([write("a\nb")])
    for read in (dataset.__getitem__, dataset.text):
        with pytest.raises(ArgumentError, match=rf"index is {index}; .* lie in \[0, 2\)"):
            read(index)


def test_a_numpy_index_is_an_index(write: Write) -> None:
    index: Any = np.int64(1)
    assert TextLineImages([write("a\nb")]).text(index) == "b"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"nowhere\.txt cannot be read or written: No such file"):
        TextLineImages([tmp_path / "nowhere.txt"])


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileAccessError, match="no regular file"):
        TextLineImages([tmp_path / "pipe"])


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="cannot be read or written: Is a directory"):
        TextLineImages([tmp_path])


def test_files_without_text_are_named(write: Write) -> None:
    with pytest.raises(ArgumentError, match=r"no line with text in .*text-0\.txt, .*text-1\.txt"):
        TextLineImages([write(""), write(" \n\t\n")])


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"files": []}, "files is empty"),
        ({"files": "one.txt"}, "single path 'one.txt'; pass a list"),
        ({"files": Path("one.txt")}, r"single path PosixPath\('one.txt'\); pass a list"),
        ({"height": 7}, "height is 7"),
        ({"height": 1025}, "height is 1025"),
        ({"height": 8.5}, "height is 8.5; it must be an integer"),
        ({"max_lines": 0}, "max_lines is 0"),
    ],
    ids=str,
)
def test_arguments_outside_their_range_are_refused(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        TextLineImages(**arguments)


def test_without_pillow_the_remedy_is_named(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'loader-service\[images\]'"):
        TextLineImages([write("a")])


def test_importing_the_datasets_does_not_import_pillow() -> None:
    program = "import sys, loader_service.data; print('PIL' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert answer.strip() == "False"


def test_the_default_is_the_standard_librarys_own_source() -> None:
    stream = text_line_images(max_lines=2000)
    batch = stream.build(3)
    assert stream.steps_per_epoch == 2000 // 32
    assert batch["images"].shape[:3] == (32, 1, 32)
    assert batch["images"].shape[3] % 8 == 0
    assert batch["targets"].min() >= 1
    assert stream.fingerprint == text_line_images(max_lines=2000).fingerprint


def test_the_factory_takes_files_seed_and_sizes(write: Write) -> None:
    files = [str(write("\n".join("abcdefgh")))]
    batches = [text_line_images(files, seed, batch_size=4, width_multiple=16).build(0) for seed in (1, 2)]
    assert batches[0]["images"].shape[3] % 16 == 0
    assert batches[0]["indices"].tolist() != batches[1]["indices"].tolist()
