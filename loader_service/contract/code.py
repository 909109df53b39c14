"""Digests of code: what a function, or a class of a user's, computes with.

Owns `function_digest` and `class_digest`. Invariant: the digest changes with the instructions, constants, names and
defaults of a function, and with those of the functions, classes and plain constants of the same top-level package that
it refers to; not with comments, docstrings, line numbers or files. What belongs to other packages counts by its name.
The digest holds for one release of Python: another may compile the same text otherwise.
"""

from __future__ import annotations

import functools
import hashlib
import json
import types
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Code", "is_shipped", "public_name"]

_PUBLIC = (
    ("loader_service.contract.augment", "loader_service.augment"),
    ("loader_service.contract.fused", "loader_service.augment"),
    ("loader_service.contract.", "loader_service"),
    ("loader_service.loader", "loader_service"),
    ("loader_service.data.pskd.", "loader_service.data.pskd"),
    ("loader_service.data.", "loader_service.data"),
)
"""Modules, and the packages by whose names their classes are described: these outlive the folders."""
_UNCOUNTED = frozenset(
    [
        "__abstractmethods__",
        "__annotations__",
        "__annotate__",
        "__annotate_func__",
        "__annotations_cache__",
        "__class_getitem__",
        "__dataclass_fields__",
        "__dataclass_params__",
        "__dict__",
        "__doc__",
        "__firstlineno__",
        "__match_args__",
        "__module__",
        "__orig_bases__",
        "__parameters__",
        "__protocol_attrs__",
        "__qualname__",
        "__repr__",
        "__slots__",
        "__static_attributes__",
        "__str__",
        "__weakref__",
        "_abc_impl",
        "_is_protocol",
        "_is_runtime_protocol",
    ]
)
"""Names of a class that say nothing about what it computes."""
_SHIPPED = ("loader_service", "loader_client")
_MAX_PARTS = 2000
"""The most functions and classes that one digest counts."""

Describe = Callable[[Any], Any]
"""Gives the description of a plain value. Raises FingerprintError for another."""


def public_name(thing: Any) -> str:
    """The name by which a class or a function is described: "module:name", for what is shipped its public module."""
    module = str(getattr(thing, "__module__", None))
    for prefix, public in _PUBLIC:
        if module.startswith(prefix):
            module = public
            break
    return f"{module}:{getattr(thing, '__qualname__', thing)}"


def is_shipped(thing: Any) -> bool:
    """Tell whether it is part of this package, for whose code CONTRACT_VERSION stands."""
    return _package(thing) in _SHIPPED


def _package(thing: Any) -> str:
    return str(getattr(thing, "__module__", None) or "").partition(".")[0]


class Code:
    """A digest in the making: what has been counted is not counted again, so that code may refer to itself.

    Args:
        describe: gives the description of a plain value, and raises for another.
    """

    def __init__(self, describe: Describe) -> None:
        self._describe = describe
        self._counted: set[int] = set()
        self._hasher = hashlib.sha256()

    def function_digest(self, function: Any) -> str:
        """Digest a function and what it refers to: SHA-256, hexadecimal."""
        self._count_function(function, _package(function))
        return self._hasher.hexdigest()

    def class_digest(self, kind: type) -> str:
        """Digest the methods and plain attributes of a class and of its bases: SHA-256, hexadecimal."""
        package = _package(kind)
        for base in kind.__mro__:
            self._count_class(base, package)
        return self._hasher.hexdigest()

    def _say(self, *words: Any) -> None:
        self._hasher.update(json.dumps(words, sort_keys=True).encode(errors="surrogatepass") + b"\n")

    def _is_new(self, thing: Any) -> bool:
        new = id(thing) not in self._counted and len(self._counted) < _MAX_PARTS
        self._counted.add(id(thing))
        return new

    def _count_class(self, kind: type, package: str) -> None:
        self._say("class", public_name(kind))
        if _package(kind) != package or is_shipped(kind) or not self._is_new(kind):
            return
        for name in sorted(vars(kind).keys() - _UNCOUNTED):
            for part in _parts(vars(kind)[name]):
                self._say("attribute", name)
                self._count(part, package)

    def _count_function(self, function: Any, package: str) -> None:
        self._say("function", public_name(function))
        if not self._is_new(function) or is_shipped(function):
            return
        self._count_code(function.__code__, function.__doc__)
        self._count(function.__defaults__, package)
        self._count(function.__kwdefaults__, package)
        for cell in function.__closure__ or ():
            self._count(_content(cell), package)
        for name in sorted(_names(function.__code__)):
            if name in function.__globals__:
                self._say("global", name)
                self._count(function.__globals__[name], package, _names(function.__code__))

    def _count_code(self, code: types.CodeType, doc: str | None) -> None:
        """Instructions and constants; a docstring, which is the first constant, does not count."""
        self._say(code.co_name, code.co_code.hex(), list(code.co_names), list(code.co_varnames), list(code.co_freevars))
        self._say(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        for place, constant in enumerate(code.co_consts):
            if isinstance(constant, types.CodeType):
                self._count_code(constant, None)
            elif not (place == 0 and doc is not None and isinstance(constant, str)):
                self._say("constant", _constant(constant))

    def _count(self, value: Any, package: str, attributes: frozenset[str] = frozenset()) -> None:
        """Something that code refers to: of the same package by its code, of another by its name, else by its value."""
        if not isinstance(value, types.FunctionType | type):
            value = _unwrapped(value)
        if isinstance(value, types.FunctionType):
            if _package(value) == package or "<locals>" in value.__qualname__:
                self._count_function(value, package)
            else:
                self._say("function", public_name(value))
        elif isinstance(value, type):
            self._count_class(value, package)
        elif isinstance(value, types.ModuleType):
            self._count_module(value, package, attributes)
        else:
            self._count_value(value)

    def _count_module(self, module: types.ModuleType, package: str, attributes: frozenset[str]) -> None:
        self._say("module", module.__name__)
        if module.__name__.partition(".")[0] == package and package not in _SHIPPED:
            for name in sorted(attributes & vars(module).keys()):
                part = vars(module)[name]
                if isinstance(part, types.FunctionType | type):
                    self._count(part, package)

    def _count_value(self, value: Any) -> None:
        try:
            self._say("value", self._describe(value))
        except Exception:  # a logger, a lock, a model: what it is must do
            self._say("object", public_name(type(value)))


def _parts(attribute: Any) -> Iterator[Any]:
    """The functions of a method or property, or the attribute itself."""
    if isinstance(attribute, staticmethod | classmethod):
        yield attribute.__func__
    elif isinstance(attribute, property):
        yield from (part for part in (attribute.fget, attribute.fset) if part is not None)
    elif isinstance(attribute, functools.cached_property | functools.partialmethod):
        yield attribute.func
    elif not isinstance(attribute, types.MemberDescriptorType | types.GetSetDescriptorType):
        yield attribute


def _unwrapped(value: Any) -> Any:
    """The function within a cache, a kernel or a dispatcher of numba; another value as it is."""
    for name in ("__wrapped__", "py_func"):
        inner = vars(value).get(name) if hasattr(value, "__dict__") else None
        inner = getattr(value, name, None) if inner is None and name == "py_func" else inner
        if isinstance(inner, types.FunctionType):
            return inner
    return value


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def _names(code: types.CodeType) -> frozenset[str]:
    """The names of globals and attributes that code and the functions within it use."""
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return frozenset(code.co_names).union(*inner)


def _constant(constant: Any) -> Any:
    """A constant with its type: 1, 1.0 and True are three."""
    if isinstance(constant, tuple):
        return ["tuple", *map(_constant, constant)]
    if isinstance(constant, frozenset):
        return ["frozenset", *sorted(json.dumps(_constant(item)) for item in constant)]
    text = constant.hex() if isinstance(constant, float | bytes) else hex(constant) if type(constant) is int else None
    return [type(constant).__name__, repr(constant) if text is None else text]
