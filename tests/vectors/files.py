"""The files of `vectors/`, read; shared by the tests that compare an implementation with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["VECTORS", "read_vectors"]

VECTORS = Path(__file__).resolve().parents[2] / "vectors"


def read_vectors(name: str) -> dict[str, Any]:
    """The content of `vectors/NAME.json`."""
    content: dict[str, Any] = json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))
    return content
