"""Configurations: what a file may say, and what it means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader_service.daemon.config.load import Config
from loader_service.daemon.config.options import ServerConfig, StreamConfig, parse_bytes
from loader_service.daemon.workers.messages import Start, StreamSpec, decode_to_worker, encode
from loader_service.errors import ConfigurationError
from tests.daemon import streams

STREAM = '[streams.train]\nfactory = "tests.daemon.streams:small"\n'
WHOLE = """
[server]
endpoint = "ipc:///run/user/1000/loader-service/mine.sock"
workers = 3
memory_limit = "1.5GiB"
start_timeout_s = 5
import_paths = ["src", "/absolute"]
evict_after_s = 2.5
heartbeat_s = 0.5
[streams.train]
factory = "tests.daemon.streams:small"
args = { seed = 7, nested = { list = [1, 2.5, "x", true] } }
prefetch = 16
slot_bytes = 4096
max_lanes = 3
[streams."odd name.é"]
factory = "a.b.c:Class.method"
"""


def load(tmp_path: Path, text: str) -> Config:
    file = tmp_path / "loader.toml"
    file.write_text(text, encoding="utf-8")
    return Config.load(file)


# --- what is taken ---------------------------------------------------------------------------------------


def test_every_option_comes_from_the_file(tmp_path: Path) -> None:
    config = load(tmp_path, WHOLE)
    assert config.server == ServerConfig(
        endpoint="ipc:///run/user/1000/loader-service/mine.sock",
        workers=3,
        memory_limit="1.5GiB",
        start_timeout_s=5.0,
        import_paths=[str(tmp_path / "src"), "/absolute", str(tmp_path)],
        evict_after_s=2.5,
        heartbeat_s=0.5,
    )
    assert config.server.memory_limit_bytes == 3 * 2**29
    args = {"seed": 7, "nested": {"list": [1, 2.5, "x", True]}}
    assert config.streams["train"] == StreamConfig("tests.daemon.streams:small", args, 16, 4096, 3)
    assert config.streams["train"].initial_slot_bytes == 4096
    assert config.streams["odd name.é"] == StreamConfig("a.b.c:Class.method")


def test_options_that_are_not_given_have_their_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, STREAM)
    assert config.server == ServerConfig(import_paths=[str(tmp_path)])
    assert (config.server.workers, config.server.memory_limit_bytes, config.server.endpoint) == (2, 0, "")
    assert (config.server.evict_after_s, config.server.heartbeat_s, config.server.build_timeout_s) == (0, 2, 0)
    train = config.streams["train"]
    assert (train.prefetch, train.initial_slot_bytes, train.max_lanes, train.verify) == (8, 0, 0, 0)


@pytest.mark.parametrize(
    ("lines", "name", "value"),
    [
        *[(f"evict_after_s = {number}", "evict_after_s", number) for number in (0, 0.0, 1e-3, 1, 1e6)],
        *[(f"heartbeat_s = {number}", "heartbeat_s", number) for number in (0.01, 1, 86400)],
        *[(f"build_timeout_s = {number}", "build_timeout_s", number) for number in (0, 0.5, 86400)],
    ],
)
def test_times_of_the_server_reach_their_limits(tmp_path: Path, lines: str, name: str, value: float) -> None:
    assert getattr(load(tmp_path, f"[server]\n{lines}\n{STREAM}").server, name) == value


@pytest.mark.parametrize("table", [STREAM, "[streams.train]\npipeline = 'stream a.psk.d |> batch(B = 2)'\n"])
@pytest.mark.parametrize("max_lanes", [0, 1, 2, 65535, 65536])
def test_the_lanes_of_a_stream_are_limited_however_it_is_made(tmp_path: Path, table: str, max_lanes: int) -> None:
    config = load(tmp_path, f"{table}max_lanes = {max_lanes}\nprefetch = 3\nslot_bytes = 5\nverify = 7\n")
    train = config.streams["train"]
    assert (train.max_lanes, train.prefetch, train.slot_bytes, train.verify) == (max_lanes, 3, 5, 7)
    assert Config.of(json.loads(json.dumps(config.to_mapping()))) == config


def test_the_files_directory_is_an_import_path_wherever_it_is_loaded_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "conf")
    (tmp_path / "conf" / "loader.toml").write_text('[server]\nimport_paths = ["../src"]\n' + STREAM)
    monkeypatch.chdir(tmp_path)
    for path in ("conf/loader.toml", Path("link/loader.toml"), tmp_path / "conf/../conf/loader.toml"):
        assert Config.load(path).server.import_paths == [str(tmp_path / "src"), str(tmp_path / "conf")]


def test_a_configuration_survives_the_journey_to_another_process(tmp_path: Path) -> None:
    config = load(tmp_path, WHOLE)
    assert Config.of(json.loads(json.dumps(config.to_mapping()))) == config
    assert Config.of(config) is config


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=4), plain, max_size=4))
def test_plain_arguments_reach_the_factory_unchanged(args: dict[str, Any]) -> None:
    config = Config.of({"streams": {"train": {"factory": "a:b", "args": args}}})
    carried = Config.of(json.loads(json.dumps(config.to_mapping()))).streams["train"].args
    start = Start([], [StreamSpec("train", "a:b", carried, measure=False)])
    assert carried == args
    assert decode_to_worker(encode(start)) == start


@pytest.mark.parametrize("factory", [streams.small, "tests.daemon.streams:small"])
def test_a_factory_may_be_given_as_a_function(factory: Any) -> None:
    config = Config.of({"streams": {"train": {"factory": factory}}})
    assert config.streams["train"].factory == "tests.daemon.streams:small"


SIZES = [
    *[(number, number) for k in (10, 20, 32, 53) for number in (2**k - 1, 2**k, 2**k + 1)],
    *[(str(number), number) for k in (0, 10, 20, 32, 49) for number in (2**k - 1, 2**k, 2**k + 1)],
    *[(0, 0), ("0", 0), ("0GiB", 0), ("7B", 7), ("1KiB", 1024), ("1kiB", 1024), ("1Ki", 1024), ("1KB", 1000)],
    *[("1k", 1000), ("1K", 1000), ("512MiB", 2**29), ("2MB", 2_000_000), ("4 GB", 4_000_000_000), (" 2 MiB ", 2**21)],
    *[("1TiB", 2**40), ("1.5GiB", 3 * 2**29), ("0.1KiB", 102), ("1.001KB", 1001), ("999999999999999", 10**15 - 1)],
]


@pytest.mark.parametrize(("text", "nbytes"), SIZES)
def test_sizes_are_read_exactly(text: int | str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


BAD_SIZES = ["", " ", "x", "KiB", "-1", "+1", "1e3", "0x10", "1.", ".5", "1 2", "1,5MB", "1 KiBs", "1iB", "1i", "1PiB"]


@pytest.mark.parametrize("text", [*BAD_SIZES, "1" * 16, "9" * 400, "9" * 5000, "1MiB\nx"])
def test_a_bad_size_is_told_with_how_to_write_one(text: str) -> None:
    with pytest.raises(
        ConfigurationError, match="write a number of bytes, or text such as '512MiB' or '4GB'"
    ) as caught:
        parse_bytes(text)
    assert repr(text) in str(caught.value)
