"""What is served, and to how many.

Owns the daemon's configuration and the same stream in this process. `TUNED` names what is set back at the end.
"""

from __future__ import annotations

from loader_service import Stream

__all__ = ["CONSUMERS", "LEAST_PREFETCH", "PREFETCH", "RINGS", "STREAM", "TUNED", "WORKERS", "configuration", "stream"]

STREAM = "lines"
CONSUMERS, WORKERS, PREFETCH, LEAST_PREFETCH = 8, 2, 8, 5
_BATCH, _COUNT = 4, 50
_RING_BYTES = PREFETCH * 140_000
"""A segment holds 4 images of at most 32 x 256 singles."""
RINGS = {6: 6 * _RING_BYTES, 9: 9 * _RING_BYTES, 12: 12 * _RING_BYTES}
"""Memory limits in bytes, by how many rings they suffice for; the last is the configuration's."""
TUNED = {"workers": WORKERS, "prefetch": PREFETCH, "memory_limit": RINGS[12]}

_CONFIG = """
[server]
endpoint = "{endpoint}"
workers = {workers}
memory_limit = {memory_limit}
evict_after_s = 5

[streams.{stream}]
factory = "loader_service.data:synthetic_lines"
args = {{ seed = {seed}, batch_size = {batch}, count = {count} }}
prefetch = {prefetch}
"""


def configuration(endpoint: str, seed: int) -> str:
    """As TOML."""
    return _CONFIG.format(endpoint=endpoint, stream=STREAM, seed=seed, batch=_BATCH, count=_COUNT, **TUNED)


def stream(seed: int) -> Stream:
    """What the daemon serves then."""
    from loader_service.data import synthetic_lines  # the wanderers need it not, and start sooner

    return synthetic_lines(seed, _BATCH, _COUNT)
