"""Settings that can change while the daemon runs, because no byte of any batch depends on them: the check.

Owns `changed_config`, which checks a change as the configuration file is checked; `server.retuning` applies it.
Invariant: the running configuration is never changed, a new one is made. Fails with ConfigurationError and
UnknownStreamError.
"""

from __future__ import annotations

from typing import Any

from loader_service.daemon.config.load import Config
from loader_service.errors import ConfigurationError, UnknownStreamError

__all__ = ["SERVER_SETTINGS", "STREAM_SETTINGS", "changed_config"]

SERVER_SETTINGS = ("workers", "memory_limit", "evict_after_s")
STREAM_SETTINGS = ("prefetch", "max_lanes")
_SOURCE = "set"


def changed_config(config: Config, stream: str, settings: dict[str, Any]) -> Config:
    """Return the configuration with these settings.

    Args:
        config: the configuration that holds now.
        stream: the stream that `STREAM_SETTINGS` are for; empty for each.
        settings: by name, of `SERVER_SETTINGS` and `STREAM_SETTINGS`.
    """
    unknown = [name for name in settings if name not in SERVER_SETTINGS + STREAM_SETTINGS]
    if unknown or not settings:
        wrong = f"{', '.join(unknown[:8])} cannot be changed on a running daemon" if unknown else "no setting is given"
        raise ConfigurationError(
            f"{_SOURCE}: {wrong}; what can be changed: {', '.join(SERVER_SETTINGS)}, and of streams "
            f"{', '.join(STREAM_SETTINGS)}"
        )
    if stream and stream not in config.streams:
        raise UnknownStreamError(f"there is no stream {stream!r}; this daemon serves {', '.join(config.streams)}")
    plain = config.to_mapping()
    plain["server"] |= {name: value for name, value in settings.items() if name in SERVER_SETTINGS}
    for name in [stream] if stream else config.streams:
        plain["streams"][name] |= {key: value for key, value in settings.items() if key in STREAM_SETTINGS}
    return Config.of(plain, source=_SOURCE)
