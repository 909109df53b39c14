"""Text on standard output in whatever encoding that has."""

from __future__ import annotations

import io
import sys

import pytest

from loader_service.cli.output import say


def said(monkeypatch: pytest.MonkeyPatch, encoding: str, text: str) -> bytes:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    say(text)
    return written.getvalue()


def test_what_the_encoding_has_is_printed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, "utf-8", "träin ℝ").decode() == "träin ℝ\n"


def test_what_the_encoding_lacks_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, "ascii", "träin ℝ") == rb"tr\xe4in \u211d" + b"\n"
