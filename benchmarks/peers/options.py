"""Options of the processes of a case: plain values by their names."""

from __future__ import annotations

from typing import Any

__all__ = ["Options"]

Options = dict[str, Any]
"""The options of one role, as JSON carries them."""
