"""One use of a shared-memory segment.

Owns `Placement`, the value that names it in claims, grants and messages. Invariant: no two builds have equal
placements, for the generation of a segment rises with each; so whoever finds another generation in a segment's header
reads another batch than the one that was meant.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Placement"]


@dataclass(frozen=True, slots=True)
class Placement:
    """Name of a segment, the count of its uses, and its size.

    Args:
        segment: the name under which it can be mapped.
        generation: number of this use, at least 1 for a build; the segment's header holds it.
        nbytes: size of the segment in bytes, its header included.
    """

    segment: str
    generation: int
    nbytes: int
