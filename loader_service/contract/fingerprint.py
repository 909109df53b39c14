"""A digest of everything that a stream's bytes depend on (R72 to R76).

Owns `describe`, `digest` and `explain_difference`. Invariant: equal descriptions give equal batches, in every process;
what has no stable description (a lambda, a closure) is an error that names it, never a guess. A description is small
whatever it describes: a long value stands in it as a digest (`contract.content`), code as one too (`contract.code`).

    object -> its `fingerprint`, else class, code, arguments as bound (base classes' too), other attributes, length
"""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import json
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from loader_service.contract.code import Code, is_shipped, public_name
from loader_service.contract.content import TooManyError, array_digest, items_digest
from loader_service.contract.layout import dtype_text, is_carried
from loader_service.errors import FingerprintError

__all__ = ["CONTRACT_VERSION", "describe", "digest", "explain_difference", "function_digest"]

CONTRACT_VERSION = 2
"""Rises if the same stream should ever give other bytes, or a description mean something else (R111)."""
_SPELLED_ITEMS = 64
_SPELLED_CHARACTERS = 4096
_SPELLED_TEXT = 256
_REMEDY = "give its class a `fingerprint` attribute, or the stream a `version`"


def describe(value: Any, path: str = "stream") -> Any:
    """Describe a value so that two processes agree on it.

    Args:
        value: a plain value, an array, a function, or an object. An object is described by its `fingerprint` attribute
            where it has one; else by its class, its code, its constructor's arguments, found again as attributes `name`
            or `_name`, its other attributes, and its length. What is shipped with this package is described without its
            code, for which CONTRACT_VERSION stands.
        path: names the part in errors.

    Returns:
        Values that JSON can hold, of bounded size.

    Raises:
        FingerprintError: a part has no stable description.

    >>> describe({"seed": 7, "shape": (2, 3)})
    {'dict': {'seed': 7, 'shape': {'tuple': [2, 3]}}, 'order': ['seed', 'shape']}
    """
    return _guarded(_Describer(), value, path)


def _guarded(describer: _Describer, value: Any, path: str) -> Any:
    try:
        return describer.describe(value, path)
    except FingerprintError:
        raise
    except Exception as error:  # of the value's own code, or a value that holds itself
        raise FingerprintError(f"{path} cannot be described ({type(error).__name__}: {error}); {_REMEDY}") from error


def digest(description: Any) -> str:
    """Digest a description: SHA-256, hexadecimal. That of a stream is its fingerprint."""
    return hashlib.sha256(_json(description).encode()).hexdigest()


def _json(description: Any) -> str:
    return json.dumps(description, sort_keys=True, separators=(",", ":"))


def _bounded(description: Any) -> Any:
    """A description as it is, or its digest where it is long."""
    text = _json(description)
    if len(text) <= _SPELLED_CHARACTERS:
        return description
    return {"sha256": hashlib.sha256(text.encode()).hexdigest(), "characters": len(text)}


def _module_name(thing: Any, path: str) -> str:
    name = public_name(thing)
    if "<lambda>" in name or "<locals>" in name:
        raise FingerprintError(
            f"{path} is {name}, which no other process can tell apart from another of that name; "
            "use a function or class at module level, or give the stream a `version`"
        )
    return name


class _Describer:
    """The description of one value; the code of each class in it is digested once.

    Args:
        plain: objects are refused and functions told by their names: for what code refers to.
    """

    def __init__(self, plain: bool = False) -> None:
        self._plain = plain
        self._classes: dict[type, str] = {}

    def describe(self, value: Any, path: str) -> Any:
        """Describe one value. Raises FingerprintError, and whatever the value's own code raises."""
        if value is None or type(value) is bool or (type(value) is int and -(2**63) <= value < 2**64):
            return value
        leaf = self._leaf(value, path)
        if leaf is not None:
            return leaf
        if type(value) in (list, tuple) or (isinstance(value, tuple) and hasattr(value, "_fields")):
            return self._sequence(value, path)
        if type(value) in (set, frozenset):
            if len(value) > _SPELLED_ITEMS and {*map(type, value)} in ({str}, {int}):
                return self._digested("set", sorted(value), path)
            items = sorted(_json(self.describe(item, path)) for item in value)
            return {"set": items} if len(items) <= _SPELLED_ITEMS else self._digested("set", items, path)
        if type(value) is dict:
            return self._dict(value, path)
        if isinstance(value, functools.partial):
            given = self.describe([value.args, value.keywords], path)
            return {"partial": self.describe(value.func, path), "given": given}
        if self._plain:
            raise FingerprintError(f"{path} is a {public_name(type(value))}, which is no plain value")
        return self._object(value, path)

    # --- plain values ------------------------------------------------------------------------------------

    def _leaf(self, value: Any, path: str) -> Any:
        """The description of a plain value, an array or a function; None for another."""
        if type(value) is str:
            return value if len(value) <= _SPELLED_TEXT else _long(value.encode(errors="surrogatepass"), "text")
        if type(value) is float:
            return {"float": value.hex()}
        if type(value) is int:
            number = hex(value)  # too long for a decimal number
            return {"int": number} if len(number) <= _SPELLED_TEXT else _long(number.encode(), "int")
        if type(value) is bytes:
            return {"bytes": hashlib.sha256(value).hexdigest()}
        if type(value) is complex:
            return {"complex": [value.real.hex(), value.imag.hex()]}
        if type(value) is range:
            return {"range": [self.describe(part, path) for part in (value.start, value.stop, value.step)]}
        if isinstance(value, np.generic):
            return _array(np.asarray(value), path) | {"scalar": True}
        if isinstance(value, np.ndarray):
            return _array(value, path)
        if isinstance(value, np.dtype):
            return {"dtype": repr(value.descr) if value.names else dtype_text(value)}
        if isinstance(value, enum.Enum):
            return {"enum": public_name(type(value)), "name": value.name}
        if isinstance(value, os.PathLike):
            return {"path": self.describe(os.fspath(value), path)}
        if isinstance(value, np.ufunc):
            return _ufunc(value, path)
        if isinstance(value, type):
            return {"type": _module_name(value, path)} | self._code(value)
        if isinstance(value, types.FunctionType | types.BuiltinFunctionType | types.MethodType):
            return self._function(value, path)
        return None

    def _sequence(self, value: Any, path: str) -> Any:
        kind = type(value).__name__ if type(value) in (list, tuple) else "tuple"
        named = {} if type(value) in (list, tuple) else {"class": _module_name(type(value), path)}
        if len(value) > _SPELLED_ITEMS:
            return self._digested(kind, value, path) | named
        items = [self.describe(item, f"{path}[{i}]") for i, item in enumerate(value)]
        return _bounded(items if type(value) is list else {"tuple": items} | named)

    def _dict(self, value: dict[Any, Any], path: str) -> Any:
        if len(value) > _SPELLED_ITEMS:
            keys, values = list(value), list(value.values())
            return self._digested("dict", [keys, values], path) | {"dict": len(value)}
        items = {self._key(key, path): self.describe(item, f"{path}.{key}") for key, item in value.items()}
        return _bounded({"dict": items, "order": list(items)})

    def _key(self, key: Any, path: str) -> str:
        """A dict's key as text: 1 and "1" are different keys."""
        return key if isinstance(key, str) else _json(["key", self.describe(key, path)])

    def _digested(self, kind: str, items: Any, path: str) -> dict[str, Any]:
        try:
            return {kind: len(items), "sha256": items_digest(items, lambda item: self.describe(item, f"{path}[…]"))}
        except TooManyError as error:
            raise FingerprintError(f"{path} cannot be described at a bounded cost ({error}); {_REMEDY}") from None

    # --- code and objects --------------------------------------------------------------------------------

    def _code(self, thing: Any) -> dict[str, str]:
        """The digest of the code of a function or class of a user's; nothing for what is shipped or built in."""
        if self._plain or is_shipped(thing) or not isinstance(thing, types.FunctionType | type):
            return {}
        if isinstance(thing, types.FunctionType):
            return {"code": function_digest(thing)}
        if thing not in self._classes:
            self._classes[thing] = _code().class_digest(thing)
        return {"code": self._classes[thing]}

    def _function(self, function: Any, path: str) -> Any:
        owner = getattr(function, "__self__", None)  # a bound method's object, of a built-in perhaps its module
        if owner is not None and not isinstance(owner, types.ModuleType):
            return {"method": function.__qualname__, "of": self.describe(owner, path)}
        name = _module_name(function, path)
        found: Any = sys.modules.get(function.__module__ or "")
        for part in function.__qualname__.split("."):
            found = getattr(found, part, None)
        if found is not None and found is not function:  # a wrapper that took another function's name
            raise FingerprintError(f"{path} bears the name {name}, which is another function; give a `version`")
        return {"function": name} | self._code(function)

    def _object(self, value: Any, path: str) -> Any:
        kind: Any = type(value)
        own = getattr(value, "fingerprint", None)
        if own is not None:
            return {
                "class": public_name(kind),
                "fingerprint": self.describe(str(own() if callable(own) else own), path),
            }
        if isinstance(value, list | tuple | dict | set | frozenset | str | bytes | int | float):
            raise FingerprintError(
                f"{path} is a {public_name(kind)}, more than the plain value that it is made from; use that"
            )
        described: dict[str, Any] = {"class": _module_name(kind, path)} | self._code(kind)
        state = _state(value)
        arguments = _arguments(value, state, path)
        if not arguments and not state:
            _check_visible(value, path)
        described["arguments"] = _bounded(
            {name: self.describe(item, f"{path}.{name}") for name, item in arguments.items()}
        )
        others = {} if is_shipped(kind) else self._others(state, arguments, path)
        if others:
            described["attributes"] = _bounded(others)
        if hasattr(value, "__len__"):
            described["length"] = len(value)
        return described

    def _others(self, state: dict[str, Any], arguments: dict[str, Any], path: str) -> dict[str, Any]:
        """The other attributes of an object; one that has no description, such as a lock, is told by its class."""
        others: dict[str, Any] = {}
        for name, item in state.items():
            if name not in arguments and name.removeprefix("_") not in arguments:
                try:
                    others[name] = _guarded(self, item, f"{path}.{name}")
                except FingerprintError:
                    if not arguments:
                        raise
                    others[name] = {"undescribed": public_name(type(item))}
        return others


def function_digest(function: Callable[..., Any]) -> str:
    """Digest the code of a function and what it refers to: SHA-256, hexadecimal."""
    return _code().function_digest(function)


def _code() -> Code:
    return Code(lambda value: _Describer(plain=True).describe(value, "code"))


def _ufunc(function: Any, path: str) -> dict[str, str]:
    name = str(function.__name__)
    if getattr(np, name, None) is not function:
        raise FingerprintError(f"{path} is {function!r}, which is none of numpy's own; {_REMEDY}")
    return {"function": f"numpy:{name}"}


def _long(content: bytes, kind: str) -> dict[str, Any]:
    return {kind: len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _array(array: np.ndarray[Any, Any], path: str) -> dict[str, Any]:
    plain = type(array) in (np.ndarray, np.memmap) and (array.dtype.kind in "SU" or is_carried(array.dtype))
    if not plain:
        raise FingerprintError(
            f"{path} is a {type(array).__name__} of {array.dtype}; use a plain array of numbers, or give a `version`"
        )
    return {"array": dtype_text(array.dtype), "shape": list(array.shape), "sha256": array_digest(array)}


def _state(value: Any) -> dict[str, Any]:
    """The attributes of an object, in its dict and its slots, without what it has cached."""
    kind = type(value)
    state = dict(getattr(value, "__dict__", {}))
    for base in (base for base in kind.__mro__ if "__slots__" in vars(base)):
        for name, slot in vars(base).items():
            if isinstance(slot, types.MemberDescriptorType) and hasattr(value, name):
                state[name] = getattr(value, name)
    cached = {name for name in state if isinstance(getattr(kind, name, None), functools.cached_property)}
    return {name: item for name, item in state.items() if name not in cached}


def _arguments(value: Any, state: dict[str, Any], path: str) -> dict[str, Any]:
    """The arguments of the constructors of its class and of the bases, found again on the object."""
    found: dict[str, Any] = {}
    makers = [made for base in type(value).__mro__ if (made := _maker(base)) is not None]
    for place, maker in enumerate(makers):
        for parameter in list(inspect.signature(maker).parameters.values())[1:]:
            name = parameter.name
            handed_on = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) and place + 1 < len(makers)
            if name in found or _find(value, state, name, found) or handed_on:
                continue
            raise FingerprintError(
                f"{path} is a {public_name(type(value))} that keeps no attribute for its argument {name!r}; "
                "keep the argument, give the class a `fingerprint` attribute, or the stream a `version`"
            )
    return found


def _maker(kind: type) -> Any:
    """The constructor that a class itself defines, in Python; not what typing puts there for a protocol."""
    maker = vars(kind).get("__init__")
    return maker if isinstance(maker, types.FunctionType) and maker.__module__ != "typing" else None


def _find(value: Any, state: dict[str, Any], name: str, found: dict[str, Any]) -> bool:
    """Put the attribute that keeps an argument into `found`; a class attribute of the name keeps nothing."""
    for kept in (name, f"_{name}"):
        if kept in state:
            found[name] = state[kept]
            return True
    if isinstance(inspect.getattr_static(type(value), name, None), property):
        found[name] = getattr(value, name)
        return True
    return False


def _check_visible(value: Any, path: str) -> None:
    """An object without a visible state may have one in C, or in what its `__new__` made."""
    kind: Any = type(value)
    if kind.__new__ is not object.__new__ or not hasattr(value, "__dict__") or isinstance(value, np.ufunc):
        raise FingerprintError(
            f"{path} is a {public_name(kind)}, whose state cannot be seen from outside; "
            "give the class a `fingerprint` attribute, or the stream a `version`"
        )


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
