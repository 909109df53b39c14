"""Progress: nothing without a terminal, bars with rich, one line without it."""

from __future__ import annotations

import io
import sys

import pytest

from loader_service.cli.progress import progress


class Terminal(io.StringIO):
    """Text output that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rich", "rich.console", "rich.progress"):
        monkeypatch.setitem(sys.modules, name, None)


def test_nothing_is_written_where_nobody_looks() -> None:
    output = io.StringIO()
    with progress(output) as add:
        add("reading")(1, 2)
    assert output.getvalue() == ""


def test_bars_show_each_work_by_its_name() -> None:
    output = Terminal()
    with progress(output) as add:
        add("reading")(1, 2)
        add("writing")(2, 2)
    assert "reading" in output.getvalue()
    assert "2/2" in output.getvalue()


@pytest.mark.usefixtures("without_rich")
def test_without_rich_all_works_share_a_line_that_ends_with_where_they_are() -> None:
    output = Terminal()
    with progress(output) as add:
        first, second = add("reading"), add("writing")
        for done in range(3):
            first(done, 2)
            second(done, None)
    assert output.getvalue().rpartition("\r")[2].rstrip(" ") == "reading 2/2   writing 2\n"


@pytest.mark.usefixtures("without_rich")
def test_what_is_to_go_leaves_an_empty_line() -> None:
    output = Terminal()
    with progress(output, transient=True) as add:
        add("reading")(1, 2)
    assert output.getvalue().endswith("\r" + " " * len("reading 1/2") + "\r")
    assert "\n" not in output.getvalue()


@pytest.mark.usefixtures("without_rich")
def test_a_name_that_the_terminal_cannot_show_is_escaped() -> None:
    written = io.BytesIO()
    output = io.TextIOWrapper(written, encoding="ascii")
    output.isatty = lambda: True  # type: ignore[method-assign]  # a terminal of that encoding
    with progress(output) as add:
        add("träin")(1, 1)
    assert rb"tr\xe4in 1/1" in written.getvalue()
