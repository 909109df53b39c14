"""A digest of everything that a stream's bytes depend on (R72 to R76).

Owns `describe`, `digest` and `explain_difference`. Invariant: equal descriptions give equal batches, in every process;
what has no stable description (a lambda, a closure) is an error that names it, never a guess.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import inspect
import json
import os
import re
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from loader_service.errors import FingerprintError

__all__ = ["CONTRACT_VERSION", "describe", "digest", "explain_difference"]

CONTRACT_VERSION = 1
"""Rises if the same stream should ever give other bytes."""


def _name(kind: Any) -> str:
    """The name that a description holds; this package was once `core`, and fingerprints outlive its folders."""
    module = re.sub(r"^loader_service\.contract\.", "loader_service.core.", str(kind.__module__))
    return f"{module}:{kind.__qualname__}"


def _module_name(thing: Any, path: str) -> str:
    name = _name(thing)
    if "<lambda>" in name or "<locals>" in name:
        raise FingerprintError(
            f"{path} is {name}, which no other process can tell apart from another of that name; "
            "use a function or class at module level, or give the stream a `version`"
        )
    return name


def _describe_function(function: Any, path: str) -> Any:
    owner = getattr(function, "__self__", None)  # a bound method's object, of a built-in perhaps its module
    if owner is None or isinstance(owner, types.ModuleType):
        name = _module_name(function, path)
        found: Any = sys.modules.get(function.__module__ or "")
        for part in function.__qualname__.split("."):
            found = getattr(found, part, None)
        if found is not None and found is not function:  # a wrapper that took another function's name
            raise FingerprintError(f"{path} bears the name {name}, which is another function; give a `version`")
        return {"function": name}
    return {"method": function.__qualname__, "of": describe(owner, path)}


def _describe_array(array: np.ndarray[Any, Any], path: str) -> Any:
    if array.dtype.kind not in "biufcSU" or type(array) not in (np.ndarray, np.memmap):
        raise FingerprintError(
            f"{path} is a {type(array).__name__} of {array.dtype}; use a plain array of numbers, or give a `version`"
        )
    content = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return {"array": array.dtype.str, "shape": list(array.shape), "sha256": content}


def _arguments(value: Any, path: str) -> dict[str, Any]:
    """The constructor's arguments, found again as attributes `name` or `_name`."""
    if "__dataclass_fields__" in vars(type(value)):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    if type(value).__init__ is object.__init__:
        return _attributes(value, path)
    found: dict[str, Any] = {}
    for name in list(inspect.signature(type(value).__init__).parameters)[1:]:
        if not (hasattr(value, name) or hasattr(value, f"_{name}")):
            raise FingerprintError(
                f"{path} is a {_name(type(value))} that keeps no attribute for its argument {name!r}; "
                "keep the argument, give the class a `fingerprint` attribute, or the stream a `version`"
            )
        found[name] = getattr(value, name) if hasattr(value, name) else getattr(value, f"_{name}")
    return found or _attributes(value, path)


def _attributes(value: Any, path: str) -> dict[str, Any]:
    """Values that were set on an object whose constructor takes nothing, without what it has cached."""
    kind: Any = type(value)
    if kind.__new__ is not object.__new__ or not hasattr(value, "__dict__") or isinstance(value, np.ufunc):
        raise FingerprintError(
            f"{path} is a {_name(kind)}, whose state cannot be seen from outside; "
            "give the class a `fingerprint` attribute, or the stream a `version`"
        )
    cached = {name for name in vars(value) if isinstance(getattr(kind, name, None), functools.cached_property)}
    return {name: item for name, item in vars(value).items() if name not in cached}


def _describe_object(value: Any, path: str) -> Any:
    """Its class with its own `fingerprint`, else with its constructor's arguments and its length."""
    own = getattr(value, "fingerprint", None)
    if own is not None:
        return {"class": _name(type(value)), "fingerprint": str(own() if callable(own) else own)}
    if isinstance(value, list | tuple | dict | set | frozenset | str | bytes | int | float):
        raise FingerprintError(
            f"{path} is a {_name(type(value))}, more than the plain value that it is made from; use that"
        )
    described: dict[str, Any] = {"class": _module_name(type(value), path)}
    arguments = _arguments(value, path)
    described["arguments"] = {name: describe(item, f"{path}.{name}") for name, item in arguments.items()}
    if hasattr(value, "__len__"):
        described["length"] = len(value)
    return described


def _describe_leaf(value: Any, path: str) -> Any:
    """`value` where it is a plain value, an array or a function; else None."""
    if type(value) is float:
        return {"float": value.hex()}
    if type(value) is int:
        return {"int": hex(value)}  # too long for a decimal number
    if type(value) is bytes:
        return {"bytes": hashlib.sha256(value).hexdigest()}
    if isinstance(value, np.generic):
        return _describe_array(np.asarray(value), path) | {"scalar": True}
    if isinstance(value, np.ndarray):
        return _describe_array(value, path)
    if isinstance(value, np.dtype):
        return {"dtype": repr(value.descr)}
    if isinstance(value, enum.Enum):
        return {"enum": _name(type(value)), "name": value.name}
    if isinstance(value, os.PathLike):
        return {"path": os.fspath(value)}
    if isinstance(value, type):
        return {"type": _module_name(value, path)}
    if isinstance(value, types.FunctionType | types.BuiltinFunctionType | types.MethodType):
        return _describe_function(value, path)
    return None


def describe(value: Any, path: str = "stream") -> Any:
    """`value` as JSON-able values that two processes agree on; `path` names the part in errors.

    An object is described by its `fingerprint` attribute where it has one, else by its class, its constructor's
    arguments and its length. Raises FingerprintError.

    >>> describe({"seed": 7, "shape": (2, 3)})
    {'dict': {'seed': 7, 'shape': {'tuple': [2, 3]}}, 'order': ['seed', 'shape']}
    """
    try:
        return _describe(value, path)
    except FingerprintError:
        raise
    except Exception as error:  # of the value's own code, or a value that holds itself
        raise FingerprintError(
            f"{path} cannot be described ({type(error).__name__}: {error}); give its class a `fingerprint` attribute, "
            "or the stream a `version`"
        ) from error


def _describe(value: Any, path: str) -> Any:
    if value is None or type(value) in (bool, str) or (type(value) is int and value.bit_length() <= 64):
        return value
    leaf = _describe_leaf(value, path)
    if leaf is not None:
        return leaf
    if type(value) in (list, tuple) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        items = [_describe(item, f"{path}[{i}]") for i, item in enumerate(value)]
        named = {} if type(value) in (list, tuple) else {"class": _module_name(type(value), path)}
        return items if type(value) is list else {"tuple": items} | named
    if type(value) in (set, frozenset):
        return {"set": sorted(json.dumps(_describe(item, path), sort_keys=True) for item in value)}
    if type(value) is dict:
        items_by_key = {_key(key, path): _describe(item, f"{path}.{key}") for key, item in value.items()}
        return {"dict": items_by_key, "order": list(items_by_key)}
    if isinstance(value, functools.partial):
        return {"partial": _describe(value.func, path), "given": _describe([value.args, value.keywords], path)}
    return _describe_object(value, path)


def _key(key: Any, path: str) -> str:
    """A dict's key as text: 1 and "1" are different keys."""
    return key if isinstance(key, str) else json.dumps(["key", describe(key, path)], sort_keys=True)


def digest(description: Any) -> str:
    """SHA-256 of a description, hexadecimal: the fingerprint."""
    text = json.dumps(description, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class _Missing:
    def __str__(self) -> str:
        return "nothing"


_MISSING = _Missing()


def explain_difference(ours: Any, theirs: Any) -> str:
    """Say in which parts two streams (or two descriptions) differ; an empty text where they are the same.

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
