"""Options: sizes as they are written, and what a pipeline stands for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_service.daemon.config.options import (
    PIPELINE_FACTORY,
    PipelineConfig,
    ServerConfig,
    StreamConfig,
    parse_bytes,
)
from loader_service.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("17", 17),
        ("1k", 1000),
        ("1K", 1000),
        ("1KiB", 1024),
        ("1.5KiB", 1536),
        (" 4 GB ", 4 * 10**9),
        ("512MiB", 512 << 20),
        ("2T", 2 * 10**12),
        ("2TiB", 2 << 40),
        ("0.1GiB", 107374182),
    ],
)
def test_a_size_is_read_as_it_is_written(text: str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@given(st.integers(0, 10**15 - 1))  # fifteen digits at most
def test_a_number_is_its_bytes_as_a_number_or_as_text(nbytes: int) -> None:
    assert parse_bytes(nbytes) == parse_bytes(str(nbytes)) == parse_bytes(f"{nbytes}B") == nbytes


@pytest.mark.parametrize("text", ["", "large", "-1", "1 KK", "1e3", "1.KiB", ".5", "1 PiB", "0x10", "1kiB 2"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_bytes(text)
    assert repr(text) in refused.value.message


def test_sizes_of_the_tables_are_bytes() -> None:
    assert ServerConfig(memory_limit="1GiB").memory_limit_bytes == 1 << 30
    assert StreamConfig("m:f", slot_bytes="1MB").initial_slot_bytes == 10**6


def test_a_pipeline_stands_for_a_factory_and_its_arguments() -> None:
    keys = PipelineConfig("stream x.psk.d |> batch(B = 2)", ["tokens"]).factory("/data")
    assert keys["factory"] == PIPELINE_FACTORY
    assert keys["args"] == {
        "pipeline": "stream x.psk.d |> batch(B = 2)",
        "names": ["tokens"],
        "directory": "/data",
    }
