"""In which parts two descriptions of streams differ, in words.

Owns `explain_difference`. Invariant: an empty text says that they are the same. Standard library only, for trainers
explain with it why a run cannot go on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

__all__ = ["explain_difference"]


class _Missing:
    def __str__(self) -> str:
        return "nothing"


_MISSING = _Missing()


def explain_difference(ours: Any, theirs: Any) -> str:
    """In words, in which parts two streams (or two descriptions) differ; an empty text where they are the same.

    >>> explain_difference({"seed": 1, "sampler": "a"}, {"seed": 2, "sampler": "a"})
    'seed: 1 here, 2 there'
    """
    ours, theirs = getattr(ours, "description", ours), getattr(theirs, "description", theirs)
    return "\n".join(_differences(ours, theirs, ""))


def _differences(ours: Any, theirs: Any, path: str) -> Iterator[str]:
    if isinstance(ours, dict) and isinstance(theirs, dict) and _as_float(ours) is _as_float(theirs) is None:
        for key in [*ours, *(key for key in theirs if key not in ours)]:
            yield from _differences(
                ours.get(key, _MISSING), theirs.get(key, _MISSING), f"{path}.{key}" if path else key
            )
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for place, (our, their) in enumerate(zip(ours, theirs, strict=True)):
            yield from _differences(our, their, f"{path}[{place}]")
    elif ours != theirs or type(ours) is not type(theirs):  # True is equal to 1, its description is not
        yield f"{path or 'all'}: {_words(ours)} here, {_words(theirs)} there"


def _words(value: Any) -> str:
    number = _as_float(value)
    if number is not None:
        return repr(number)
    return str(value) if value is _MISSING else json.dumps(value, ensure_ascii=False)


def _as_float(value: Any) -> float | None:
    """The number whose description `value` is, else None: a dict of a user's may have a key "float" too."""
    try:
        return float.fromhex(value["float"]) if value.keys() == {"float"} else None
    except (AttributeError, TypeError, ValueError):
        return None
