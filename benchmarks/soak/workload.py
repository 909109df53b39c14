"""Settings of a soak and of its daemon.

Owns the daemon's configuration. `TUNED` holds the settings that faults change while the soak runs; they are set back
before the daemon is searched for leaks.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.soak.streams import BATCH_SIZE, LINES, OUTLIERS, PROCESSES, SAMPLES

__all__ = [
    "CONSUMERS",
    "MAX_AT_REST_BYTES",
    "MEMORY_LIMITS",
    "MIN_PREFETCH",
    "PREFETCH",
    "RING_BYTES",
    "TUNED",
    "WORKERS",
    "configuration",
]

CONSUMERS, WORKERS, PREFETCH, MIN_PREFETCH = 8, 2, 8, 5
RING_BYTES = PREFETCH * 140_000
"""A segment holds 4 images of at most 32 x 256 float32 pixels; that of an outlier is larger."""
MEMORY_LIMITS = {6: 6 * RING_BYTES, 9: 9 * RING_BYTES, 14: 14 * RING_BYTES}
"""Number of rings -> memory limit in bytes that suffices for them; the last one is the configuration's."""
MAX_AT_REST_BYTES = 4 * RING_BYTES
"""Of the three streams without consumers: a ring of each at its usual size, and the segment of an outlier."""
TUNED = {"workers": WORKERS, "prefetch": PREFETCH, "memory_limit": MEMORY_LIMITS[14]}
_ROOT = Path(__file__).resolve().parents[2]

_CONFIG = """
[server]
endpoint = "{endpoint}"
workers = {workers}
memory_limit = {memory_limit}
evict_after_s = 5
import_paths = ['{root}']

[streams.{lines}]
factory = "loader_service.data:synthetic_lines"
args = {{ seed = {seed}, batch_size = {batch_size}, count = {samples} }}
prefetch = {prefetch}

[streams.{outliers}]
factory = "benchmarks.soak.streams:outlier_lines"
args = {{ seed = {seed} }}
prefetch = {prefetch}

[streams.{processes}]
factory = "benchmarks.soak.streams:process_lines"
args = {{ seed = {seed} }}
prefetch = {prefetch}
"""


def configuration(endpoint: str, seed: int) -> str:
    """Write the daemon's configuration as TOML."""
    names = {"lines": LINES, "outliers": OUTLIERS, "processes": PROCESSES}
    sizes = {"batch_size": BATCH_SIZE, "samples": SAMPLES}
    return _CONFIG.format(endpoint=endpoint, root=_ROOT, seed=seed, **names, **sizes, **TUNED)
