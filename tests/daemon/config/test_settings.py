"""Settings that change while the daemon runs: those that touch no byte, each checked as in the file."""

from __future__ import annotations

from typing import Any

import pytest

from loader_service.daemon.config.load import Config
from loader_service.daemon.config.settings import changed_config
from loader_service.errors import ConfigurationError, LoaderServiceError, UnknownStreamError

CONFIG = Config.of(
    {
        "server": {"workers": 2, "memory_limit": 2**20},
        "streams": {
            "a": {"factory": "m:f", "prefetch": 4},
            "b": {"factory": "m:g", "args": {"seed": 7}, "prefetch": 8},
        },
    }
)


def refused(error: type[LoaderServiceError], stream: str = "", **settings: Any) -> str:
    """The message; the configuration is as it was."""
    before = CONFIG.to_mapping()
    with pytest.raises(error) as caught:
        changed_config(CONFIG, stream, settings)
    assert type(caught.value) is error
    assert CONFIG.to_mapping() == before
    return caught.value.message


def changed(stream: str, **settings: Any) -> dict[str, Any]:
    """The leaves of the configuration that a change of settings changes."""
    plain, other = CONFIG.to_mapping(), changed_config(CONFIG, stream, settings).to_mapping()
    tables = {"server": (plain["server"], other["server"])}
    tables |= {name: (plain["streams"][name], other["streams"][name]) for name in plain["streams"]}
    return {
        f"{table}.{key}": new[key] for table, (old, new) in tables.items() for key in new if old.get(key) != new[key]
    }


def test_each_setting_changes_that_one_thing() -> None:
    assert changed("", workers=5) == {"server.workers": 5}
    assert changed("", memory_limit="1MiB") == {"server.memory_limit": "1MiB"}
    assert changed("", evict_after_s=3) == {"server.evict_after_s": 3}
    assert changed("", prefetch=5) == {"a.prefetch": 5, "b.prefetch": 5}
    assert changed("", max_lanes=2) == {"a.max_lanes": 2, "b.max_lanes": 2}


def test_those_of_streams_may_be_for_one_and_those_of_the_server_are_for_all() -> None:
    assert changed("b", prefetch=5, max_lanes=1) == {"b.prefetch": 5, "b.max_lanes": 1}
    assert changed("a", workers=1, prefetch=5) == {"server.workers": 1, "a.prefetch": 5}
    assert changed("a", prefetch=4) == {}


@pytest.mark.parametrize(
    "name",
    [
        "seed",
        "factory",
        "args",
        "slot_bytes",
        "endpoint",
        "import_paths",
        "start_timeout_s",
        "heartbeat_s",
        "Workers",
    ],
)
def test_whatever_else_cannot_be_changed_on_a_running_daemon(name: str) -> None:
    """Neither alone nor beside what can."""
    attempts: list[dict[str, Any]] = [{name: 1}, {"workers": 3, name: 1}]
    for settings in attempts:
        told = refused(ConfigurationError, **settings)
        assert told == (
            f"set: {name} cannot be changed on a running daemon; what can be changed: workers, memory_limit, "
            "evict_after_s, and of streams prefetch, max_lanes"
        )


def test_no_setting_at_all_is_refused() -> None:
    assert refused(ConfigurationError).startswith("set: no setting is given; what can be changed: workers, ")


def test_a_stream_that_is_not_served_is_told_with_those_that_are() -> None:
    told = refused(UnknownStreamError, "c", prefetch=5)
    assert told == "there is no stream 'c'; this daemon serves a, b"


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("workers", -1, "set: [server] workers is -1; it must be an integer from 0 to 1024"),
        ("workers", 1025, "set: [server] workers is 1025; it must be an integer from 0 to 1024"),
        ("workers", "4", "set: [server] workers is '4'; it must be an integer from 0 to 1024"),
        ("workers", None, "set: [server] workers is None; it must be an integer from 0 to 1024"),
        ("workers", [1], "set: [server] workers is [1]; it must be an integer from 0 to 1024"),
        ("memory_limit", "lots", "set: [server] memory_limit: size is 'lots'"),
        ("memory_limit", -1, "set: [server] memory_limit is -1; it must be at least 0"),
        (
            "evict_after_s",
            -0.5,
            "set: [server] evict_after_s is -0.5; it must be a number from 0 to 1000000",
        ),
        ("evict_after_s", float("nan"), "set: [server] evict_after_s is nan"),
        ("prefetch", 0, "set: [streams.a] prefetch is 0; it must be an integer from 1 to 65536"),
        (
            "prefetch",
            65537,
            "set: [streams.a] prefetch is 65537; it must be an integer from 1 to 65536",
        ),
        ("prefetch", True, "set: [streams.a] prefetch is True; it must be an integer from 1 to 65536"),
        ("max_lanes", -1, "set: [streams.a] max_lanes is -1; it must be an integer from 0 to 65536"),
        ("max_lanes", b"1", "set: [streams.a] max_lanes is b'1'"),
    ],
)
def test_a_value_is_checked_as_in_the_file(name: str, value: Any, told: str) -> None:
    assert refused(ConfigurationError, **{name: value}).startswith(told)
