"""The streams of a soak and the settings of its daemon.

Owns the daemon's configuration and the same stream in this process. `TUNED` holds the settings that faults change
while the soak runs; they are set back before the daemon is looked at for leaks.
"""

from __future__ import annotations

from loader_service import Stream

__all__ = [
    "CONSUMERS",
    "MEMORY_LIMITS",
    "MIN_PREFETCH",
    "PREFETCH",
    "STREAM",
    "TUNED",
    "WORKERS",
    "configuration",
    "make_stream",
]

STREAM = "lines"
CONSUMERS, WORKERS, PREFETCH, MIN_PREFETCH = 8, 2, 8, 5
_BATCH_SIZE, _SAMPLES = 4, 50
_RING_BYTES = PREFETCH * 140_000
"""A segment holds 4 images of at most 32 x 256 float32 pixels."""
MEMORY_LIMITS = {6: 6 * _RING_BYTES, 9: 9 * _RING_BYTES, 12: 12 * _RING_BYTES}
"""Number of rings -> memory limit in bytes that suffices for them; the last one is the configuration's."""
TUNED = {"workers": WORKERS, "prefetch": PREFETCH, "memory_limit": MEMORY_LIMITS[12]}

_CONFIG = """
[server]
endpoint = "{endpoint}"
workers = {workers}
memory_limit = {memory_limit}
evict_after_s = 5

[streams.{stream}]
factory = "loader_service.data:synthetic_lines"
args = {{ seed = {seed}, batch_size = {batch_size}, count = {samples} }}
prefetch = {prefetch}
"""


def configuration(endpoint: str, seed: int) -> str:
    """Write the daemon's configuration as TOML."""
    return _CONFIG.format(
        endpoint=endpoint, stream=STREAM, seed=seed, batch_size=_BATCH_SIZE, samples=_SAMPLES, **TUNED
    )


def make_stream(seed: int) -> Stream:
    """Make the stream that a daemon with this configuration serves."""
    from loader_service.data import synthetic_lines  # consumers do not need it, and start sooner without

    return synthetic_lines(seed, _BATCH_SIZE, _SAMPLES)
