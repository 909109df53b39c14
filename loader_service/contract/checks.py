"""Checks of arguments: each takes a value as the equal plain Python value, or raises one ArgumentError.

Owns all of them, for every room. Invariant: an integer is an int, a numpy integer or a 0-d array of one, and a bool
never is; a number is finite; a sequence is neither a text nor a lone value. What a check returns is a plain int, float,
bool or str, which neither overflows nor wraps in later arithmetic. A message names the argument, what was got and the
limit.
"""

from __future__ import annotations

import inspect
import math
import reprlib
from collections.abc import Callable, Collection, Sequence
from operator import index
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from loader_service.errors import ArgumentError

__all__ = [
    "FLOAT32_MAX",
    "MAX_BATCH_SIZE",
    "MAX_N",
    "checked_bool",
    "checked_callable",
    "checked_choice",
    "checked_float",
    "checked_float32",
    "checked_index",
    "checked_indices",
    "checked_int",
    "checked_integer_array",
    "checked_integers",
    "checked_number",
    "checked_parts",
    "checked_sequence",
    "checked_span",
    "checked_step",
    "checked_text",
    "set_fields",
    "shown",
]

MAX_N = 2**63
"""The most samples that a dataset may have: an index fits int64."""
MAX_BATCH_SIZE = 2**31 - 1
_REPR = reprlib.Repr()
_REPR.maxother = _REPR.maxstring = 120
FLOAT32_MAX = float(np.finfo(np.float32).max)

_T = TypeVar("_T")


def shown(value: Any) -> str:
    """`value` for a message: its repr, cut to a bounded length, or dtype and shape; its type where that fails."""
    try:
        if isinstance(value, np.ndarray) and value.ndim:
            return _described(value)
        text = _REPR.repr(value)
    except Exception:  # of the value's own code, or an int of more digits than Python prints
        return f"a {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}…"


def _scalar(value: Any) -> Any:
    """A 0-d array as the numpy scalar that it holds; anything else as it is."""
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value


def checked_int(name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    """`value` as an int, at least `low` and at most `high` where they are given. Raises ArgumentError.

    >>> checked_int("batch_size", np.int32(4), 1, 8), checked_int("seed", np.array(7))
    (4, 7)
    """
    number = value if type(value) is int else _as_int(value)
    if number is None:
        raise ArgumentError(f"{name} is {shown(value)}; it must be an integer")
    if (low is not None and number < low) or (high is not None and number > high):
        limits = f"be at least {low}" if high is None else f"lie in [{low}, {_limit(high)}]"
        raise ArgumentError(f"{name} is {shown(number)}; it must {limits}")
    return number


def _limit(number: int) -> str:
    """A large power of two, or the number below it, as such."""
    for power, text in ((number, ""), (number + 1, " - 1")):
        if power > 2**20 and power & (power - 1) == 0:
            return f"2^{power.bit_length() - 1}{text}"
    return str(number)


def _as_int(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else int(index(_scalar(value)))
    except Exception:  # TypeError, or whatever an `__index__` of the caller's raises
        return None


def checked_index(value: Any, n: int) -> int:
    """`value` as the index of one of `n` samples, an int in [0, n). Raises ArgumentError."""
    number = checked_int("index", value)
    if not 0 <= number < n:
        raise ArgumentError(f"index is {shown(number)}; the dataset's indices lie in [0, {n})")
    return number


def checked_float(name: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """`value` as a finite float in [low, high]; it must be equal to it. Raises ArgumentError.

    >>> checked_float("share", np.float32(0.5), 0.0)
    0.5
    """
    number = _as_float(value)
    if number is None:
        raise ArgumentError(f"{name} is {shown(value)}; it must be a number")
    if not math.isfinite(number):
        raise ArgumentError(f"{name} is {shown(value)}; it must be finite")
    if not low <= number <= high:
        raise ArgumentError(f"{name} is {shown(value)}; it must {_range(low, high)}")
    return number


def checked_number(name: str, value: Any) -> float:
    """`value` as a bool, an int or a float, NaN and infinities too: what may fill memory. Raises ArgumentError."""
    scalar = _scalar(value)
    if isinstance(scalar, bool | np.bool_):
        return bool(scalar)
    integer = _as_int(scalar)
    number = _as_float(scalar) if integer is None else integer
    if number is None:
        raise ArgumentError(f"{name} is {shown(value)}; it must be a number")
    return number


def checked_float32(name: str, value: Any, low: float = -FLOAT32_MAX, high: float = FLOAT32_MAX) -> float:
    """`value` as a float in [low, high] that is finite in float32 too. Raises ArgumentError."""
    number = checked_float(name, value)
    if not -FLOAT32_MAX <= number <= FLOAT32_MAX:
        raise ArgumentError(f"{name} is {shown(value)}; it must be finite in float32")
    return checked_float(name, number, low, high)


def _as_float(value: Any) -> float | None:
    """The float that is equal to `value`; infinite where it lies beyond all floats, None where it is no real number."""
    scalar = _scalar(value)
    real = scalar.dtype.kind in "iuf" if isinstance(scalar, np.generic) else isinstance(scalar, int | float)
    if not real or isinstance(scalar, bool):
        return None
    try:
        number = float(scalar)
    except OverflowError:  # an int
        return math.inf
    return None if isinstance(scalar, np.longdouble) and number != scalar == scalar else number


def _range(low: float, high: float) -> str:
    if high == math.inf:
        return f"be at least {low:g}"
    return f"lie in [{low:g}, {high:g}]"


def checked_bool(name: str, value: Any) -> bool:
    """`value` as a bool: True or False, numpy's too, and nothing that is only true or false. Raises ArgumentError."""
    scalar = _scalar(value)
    if not isinstance(scalar, bool | np.bool_):
        raise ArgumentError(f"{name} is {shown(value)}; it must be True or False")
    return bool(scalar)


def checked_text(name: str, value: Any) -> str:
    """`value` as a str. Raises ArgumentError."""
    if not isinstance(value, str):
        raise ArgumentError(f"{name} is {shown(value)}; it must be a text")
    return str(value)


def checked_choice(name: str, value: Any, choices: Collection[str]) -> str:
    """`value` as one of the texts in `choices`. Raises ArgumentError."""
    if not isinstance(value, str) or value not in choices:
        raise ArgumentError(f"{name} is {shown(value)}; it must be one of {', '.join(map(repr, choices))}")
    return str(value)


def checked_sequence(name: str, values: Any, check: Callable[[str, Any], _T]) -> tuple[_T, ...]:
    """Each of `values`, checked by `check(name, value)`: a tuple. Raises ArgumentError.

    A text, a set, a dict or a lone value is no sequence; a 1-d array is one.

    >>> checked_sequence("mean", [0.5, 1], checked_float)
    (0.5, 1.0)
    """
    one_dimensional = isinstance(values, np.ndarray) and values.ndim == 1
    if isinstance(values, str | bytes | bytearray) or not (isinstance(values, Sequence) or one_dimensional):
        raise ArgumentError(f"{name} is {shown(values)}; it must be a sequence, such as a list")
    return tuple(check(f"{name}[{place}]", value) for place, value in enumerate(values))


def checked_integers(name: str, values: Any) -> NDArray[np.integer]:
    """`values` as an array of integers [N], int64, uint64 or of the dtype that they have. Raises ArgumentError.

    values: an array of one dimension, or what gives numpy one, such as a tensor; or a sequence of integers.

    >>> checked_integers("lengths", [3, np.uint8(4)])
    array([3, 4])
    """
    array = _as_array(name, values)
    if isinstance(array, np.ma.MaskedArray):
        raise ArgumentError(f"{name} are {_described(array)}; give an array without a mask, such as `.compressed()`")
    if array.ndim != 1:
        raise ArgumentError(f"{name} have the shape {list(array.shape)}; they must have one dimension")
    if not array.size:
        return array.astype(np.int64)  # an empty list's dtype says nothing
    if array.dtype.kind not in "iu":
        raise ArgumentError(f"{name} are {array.dtype}; they must be integers of at most 64 bits")
    return np.asarray(array)


def _as_array(name: str, values: Any) -> NDArray[Any]:
    if not _has(values, "__array__") or isinstance(values, type):
        return _plain_integers(name, values)
    try:
        return np.asanyarray(values)
    except Exception as error:  # of the caller's `__array__`
        raise ArgumentError(f"{name} are {shown(values)}, which numpy cannot read: {error}") from error


def _plain_integers(name: str, values: Any) -> NDArray[Any]:
    plain = isinstance(values, list | tuple | range) and {*map(type, values)} <= {int}
    given = values if plain else checked_sequence(name, values, checked_int)
    try:
        return np.array(given, np.uint64 if given and min(given) >= 0 and max(given) >= MAX_N else np.int64)
    except OverflowError:
        raise ArgumentError(f"{name} lie in [{min(given)}, {max(given)}]; no array of 64 bits can hold them") from None


def checked_integer_array(name: str, array: NDArray[Any]) -> NDArray[np.integer]:
    """An array of integers, of any shape, as a plain one. Raises ArgumentError."""
    if isinstance(array, np.ma.MaskedArray) or array.dtype.kind not in "iu":
        raise ArgumentError(f"{name} is {_described(array)}; it must be of integers of at most 64 bits")
    return np.asarray(array)


def _described(array: NDArray[Any]) -> str:
    """Dtype and shape, and the type where it is none of numpy's plain arrays."""
    kind = "" if type(array) in (np.ndarray, np.memmap) else f"{type(array).__name__} of "
    return f"{kind}{array.dtype}{list(array.shape)}"


def checked_indices(name: str, indices: Any, n: int) -> NDArray[np.int64]:
    """`indices` of samples as int64 [N], each in [0, n). Raises ArgumentError."""
    given = checked_integers(name, indices)
    if given.size and not 0 <= int(given.min()) <= int(given.max()) < n:
        raise ArgumentError(f"{name} lie in [{given.min()}, {given.max()}]; they must lie in [0, {_limit(n)})")
    return given.astype(np.int64, copy=False)


def checked_step(step: Any, name: str = "step") -> int:
    """`step` as a global step: an int in [0, 2^63). Raises ArgumentError.

    >>> checked_step(7)
    7
    """
    number = checked_int(name, step)
    if not 0 <= number < MAX_N:
        raise ArgumentError(f"{name} is {shown(number)}; global steps count from 0 and lie below 2^63")
    return number


def checked_span(start_step: Any, stop_step: Any) -> tuple[int, int | None]:
    """The first step and the step before which to end (None: never), as ints. Raises ArgumentError."""
    start = checked_step(start_step, "start_step")
    if stop_step is None:
        return start, None
    stop = checked_step(stop_step, "stop_step")
    if stop < start:
        raise ArgumentError(f"stop_step is {stop} and start_step {start}; it must not lie before it")
    return start, stop


def checked_callable(name: str, value: Any, *parameters: str) -> Any:
    """`value` as it is, if it can be called with these positional arguments. Raises ArgumentError.

    >>> checked_callable("transform", max, "sample", "rng")
    <built-in function max>
    """
    call = f"{name}({', '.join(parameters)})"
    if not callable(value) or isinstance(value, type):
        raise ArgumentError(f"{name} is {shown(value)}; it must be a function, which is called as {call}")
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # of a built-in, which may tell none
        return value
    try:
        signature.bind(*parameters)
    except TypeError as error:
        raise ArgumentError(f"{name} takes {signature}; it is called as {call}: {error}") from None
    return value


def checked_parts(name: str, value: Any, parts: Sequence[str], remedy: str) -> None:
    """Check that `value` is an object, no class, that has all the attributes `parts`. Raises ArgumentError."""
    lacking = parts if isinstance(value, type) else [part for part in parts if not _has(value, part)]
    if lacking:
        raise ArgumentError(f"{name} is {shown(value)}, which has no {', '.join(lacking)}; {remedy}")


def _has(value: Any, part: str) -> bool:
    try:
        return hasattr(value, part)
    except Exception:  # of a property's code
        return False


def set_fields(value: object, **fields: Any) -> None:
    """Set fields of a frozen dataclass, in its `__post_init__`: what a check returned in place of what was given."""
    for name, field in fields.items():
        object.__setattr__(value, name, field)
