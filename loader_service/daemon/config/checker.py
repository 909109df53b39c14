"""Tables of a configuration, turned into the frozen dataclasses that declare their keys.

Owns `Range` and `read_table`. An option is one field of a dataclass: its type and its `Range` say what it may be, its
default what it is where the table lacks it, and nothing else says so again. Invariant: what is returned has every
field, of the declared type and within its range. Fails with a ConfigurationError that names the place and the key, what
was got, and what it must be.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import reprlib
from collections.abc import Iterable, Mapping
from functools import cache
from numbers import Integral, Real
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from loader_service.errors import ConfigurationError

__all__ = ["Range", "check_keys", "read_table"]

_Table = TypeVar("_Table")


@dataclasses.dataclass(frozen=True, slots=True)
class Range:
    """The numbers that an option may be: from `least` to `most`, without `least` itself if `above` is set."""

    least: float
    most: float
    above: bool = False

    def __contains__(self, value: float) -> bool:
        return (self.least < value if self.above else self.least <= value) and value <= self.most

    def __str__(self) -> str:
        first = f"above {self.least:.15g}, at most" if self.above else f"from {self.least:.15g} to"
        return f"{first} {self.most:.15g}"


def read_table(cls: type[_Table], table: object, where: str) -> _Table:
    """Make a `cls` of `table`, a mapping of its fields' names to values.

    Args:
        cls: a dataclass whose fields are `str`, `int`, `float`, `int | str`, lists or dictionaries, numbers annotated
            with a `Range`.
        table: what a file or a caller gave.
        where: the place of the table, with which an error begins.

    Raises:
        ConfigurationError: `table` is no mapping, has a key too many or too few, or a value that does not fit.
    """
    if not isinstance(table, Mapping):
        raise ConfigurationError(f"{where} is {reprlib.repr(table)}; it must be a table")
    kind: Any = cls
    options = _options(kind)
    check_keys(table, options, where)
    given: dict[str, Any] = {}
    for name, (hint, is_required) in options.items():
        if name in table:
            given[name] = _checked(table[name], hint, f"{where} {name}")
        elif is_required:
            raise ConfigurationError(f"{where} must have the key `{name}`")
    return cls(**given)


def check_keys(table: Mapping[Any, Any], known: Iterable[str], where: str) -> None:
    """Raise ConfigurationError, with the key that was probably meant, if `table` has others than the `known` ones."""
    names = list(known)
    for key in table:
        if key not in names:
            near = difflib.get_close_matches(str(key), names, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigurationError(f"{where} has no key {key!r}; {hint}known keys: {', '.join(names)}")


@cache
def _options(cls: Any) -> dict[str, tuple[Any, bool]]:
    """The type of each field, and whether it must be given."""
    hints = get_type_hints(cls, include_extras=True)
    missing = dataclasses.MISSING
    return {
        field.name: (hints[field.name], field.default is missing and field.default_factory is missing)
        for field in dataclasses.fields(cls)
    }


def _checked(value: Any, hint: Any, where: str) -> Any:
    """The value as the Python type that `hint` names. Raises ConfigurationError."""
    limits = next((one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Range)), None)
    plain = get_args(hint)[0] if limits else hint
    kind = plain if plain in _KINDS else get_origin(plain)
    fits, text = _KINDS[kind]
    if limits is not None:
        text = f"{text} {limits}"
    if not fits(value) or (limits is not None and value not in limits):
        raise ConfigurationError(f"{where} is {reprlib.repr(value)}; it must be {text}")
    if kind is list:
        return [_checked(item, get_args(plain)[0], f"{where}[{place}]") for place, item in enumerate(value)]
    if kind is dict:
        key_hint, item_hint = get_args(plain)
        return _table(value, key_hint, item_hint, where)
    return _python(value)


def _table(value: Mapping[Any, Any], key_hint: Any, hint: Any, where: str) -> dict[Any, Any]:
    for key in value:
        if not isinstance(key, key_hint):
            raise ConfigurationError(f"{where} has the key {key!r}; its keys must be text")
    return {key: item if hint is Any else _checked(item, hint, f"{where}.{key}") for key, item in value.items()}


def _python(value: Any) -> Any:
    """A number of numpy's as one of Python's; anything else as it is."""
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)


_KINDS: dict[Any, tuple[Any, str]] = {
    int: (_is_integer, "an integer"),
    float: (_is_number, "a number"),
    str: (lambda value: isinstance(value, str), "text"),
    list: (lambda value: isinstance(value, list | tuple), "a list"),
    dict: (lambda value: isinstance(value, Mapping), "a table"),
    int | str: (lambda value: _is_integer(value) or isinstance(value, str), "an integer or text"),
}
"""By the type of an option: what fits it, and what it must be, in words."""
