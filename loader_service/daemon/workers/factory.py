"""Making of a Stream from its configuration, in the worker that builds it.

Owns `load_stream`. Invariant: each way to fail is its own message, which names the stream and the factory. The
factories of the configuration are the only code that a daemon loads.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import traceback
from collections.abc import Callable
from typing import Any

from loader_service.contract.stream import Stream
from loader_service.daemon.workers.stack_text import MAX_TEXT, shortened
from loader_service.errors import FactoryError, LoaderServiceError

__all__ = ["is_loading", "load_stream"]

_loading = 0


def load_stream(name: str, factory: str, args: dict[str, Any], caught: type[BaseException] = Exception) -> Stream:
    """Import a factory, call it, and check what it returns.

    Args:
        name: of the stream, for errors.
        factory: "module:callable".
        args: the keyword arguments of the call.
        caught: the exceptions of the user's code that become a FactoryError; a worker, which nobody interrupts, gives
            BaseException.

    Raises:
        FactoryError: it cannot be imported or called, or returns no Stream; the message names stream and factory.
    """
    global _loading
    _loading += 1
    try:
        return _load(name, factory, args, caught)
    finally:
        _loading -= 1


def is_loading() -> bool:
    """Return whether a factory is being imported or called in this process."""
    return _loading > 0


def _load(name: str, factory: str, args: dict[str, Any], caught: type[BaseException]) -> Stream:
    where = f"stream {name!r}: factory {factory!r}"
    module_name, _, path = factory.partition(":")
    function = _attribute(_module(module_name, where, caught), path, where)
    _check_arguments(function, args, where)
    try:
        stream = function(**args)
    except LoaderServiceError as error:
        raise _fault(f"{where} raised {error}", error) from error
    except caught as error:
        raise _fault(f"{where} raised {_text(error)}", error) from error
    if not isinstance(stream, Stream):
        raise FactoryError(f"{where} returned {type(stream).__name__}; it must return a loader_service.Stream")
    try:
        stream.fingerprint  # noqa: B018 - computed once, here, so that what has no fingerprint fails at start
    except LoaderServiceError as error:
        raise FactoryError(f"{where} made a stream without a fingerprint: {error.message}") from error
    return stream


def _text(error: BaseException) -> str:
    text = f"{type(error).__name__}: {traceback.TracebackException.from_exception(error)}"  # safe where __str__ raises
    return text[:MAX_TEXT]


def _fault(message: str, cause: BaseException) -> FactoryError:
    """The user's code failed: the message ends with where."""
    trace = "".join(traceback.format_exception(cause))
    return FactoryError(f"{message}\n{shortened(trace)}")


def _module(name: str, where: str, caught: type[BaseException]) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise FactoryError(
                f"{where}: there is no module {error.name!r}; check the name, install it, or add its directory to "
                "[server] import_paths"
            ) from error
        raise _fault(f"{where}: importing {name} raised {_text(error)}", error) from error
    except caught as error:
        raise _fault(f"{where}: importing {name} raised {_text(error)}", error) from error


def _attribute(module: Any, path: str, where: str) -> Callable[..., Any]:
    found: Any = module
    for part in path.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, dir(found), 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise FactoryError(f"{where}: module {module.__name__!r} has no attribute {path!r}{hint}")
        found = getattr(found, part)
    if not callable(found):
        raise FactoryError(f"{where} is a {type(found).__name__}; it must be a function that returns a Stream")
    return found  # type: ignore[no-any-return]  # callable() has just said so


def _check_arguments(function: Callable[..., Any], args: dict[str, Any], where: str) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some builtins have none; calling them tells
    try:
        signature.bind(**args)
    except TypeError as error:
        raise FactoryError(f"{where} takes {signature}, and args has {sorted(args)}: {error}") from error
