"""Text for people on standard output, whatever encoding the terminal has.

Owns `say`. Invariant: a character that the output cannot show is escaped; it never ends a command.
"""

from __future__ import annotations

import sys

__all__ = ["say"]


def say(text: str) -> None:
    """Print one text and a line end; characters that the output's encoding lacks become escapes such as `\\xe4`."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
