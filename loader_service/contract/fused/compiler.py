"""Kernels: functions written once in Python, compiled by numba where it is installed.

Owns `Kernel`, the decorator `kernel`, and whether this process compiles. Invariant: a kernel gives the same bits
compiled and in Python: no fast-math, no fused multiply-add, unsigned 64-bit arithmetic that wraps. numba is imported
when the first compiled kernel is asked for, never before; without it everything runs in numpy. Compiled code is kept on
disk beside the source, or in the user's cache directory; where neither can be written it is compiled in each process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal, cast, get_args

from loader_service.contract.checks import checked_choice
from loader_service.errors import ArgumentError

__all__ = [
    "CompiledMode",
    "Kernel",
    "checked_mode",
    "compile_function",
    "compiles",
    "kernel",
    "set_compiled",
    "warm_up",
]

CompiledMode = Literal["auto", "on", "off"]
"""auto: where numba is installed; on: always, an error without numba; off: never."""

_OPTIONS = {"nogil": True, "fastmath": False, "error_model": "numpy", "boundscheck": False}
_chosen: CompiledMode = "auto"
_kernels: list[Kernel] = []


def set_compiled(mode: CompiledMode) -> None:
    """Choose for this process whether batches are built by compiled code. The bytes are the same.

    Raises:
        ArgumentError: an unknown mode, or "on" where numba is not installed.
    """
    global _chosen
    mode = checked_mode(mode)
    if mode == "on" and not _has_numba():
        raise ArgumentError('compiled is "on" and numba is not installed; install loader-service[fast], or use "auto"')
    _chosen = mode


def checked_mode(mode: str) -> CompiledMode:
    """`mode` as a CompiledMode. Raises ArgumentError."""
    return cast(CompiledMode, checked_choice("compiled", mode, get_args(CompiledMode)))


def compiles() -> bool:
    """True where this process builds with compiled kernels."""
    return _chosen != "off" and _has_numba()


@cache
def _has_numba() -> bool:
    try:
        import numba  # noqa: F401 - an extra, and half a second: not before a batch is built
    except ImportError:  # also of one that does not fit the numpy that is installed
        return False
    return True


class Kernel:
    """A function that runs compiled where the process compiles; kernels may call kernels.

    Elsewhere those of a user, and the draws that they use, run in Python; the work of all others is done by numpy.

    function: as it was written; signature: of numba, for kernels that are compiled before their first call.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        signature: str | None,
        in_python: Callable[..., Any] | None,
        compiler: Callable[[], Any],
    ) -> None:
        self.function, self.signature = function, signature
        self._in_python, self._compile = in_python or function, compiler
        self._compiled: Any = None
        self.__wrapped__ = function
        self.__name__, self.__qualname__ = function.__name__, function.__qualname__
        self.__module__, self.__doc__ = function.__module__, function.__doc__
        if signature is not None:
            _kernels.append(self)

    def __call__(self, *arguments: Any) -> Any:
        if self.signature is None or not compiles():
            return self._in_python(*arguments)
        return self.compiled(*arguments)

    def __repr__(self) -> str:
        return f"<kernel {self.__module__}.{self.__qualname__}>"

    def __reduce__(self) -> str:
        return self.__qualname__  # pickled by name, as a function is

    @property
    def compiled(self) -> Any:
        """The dispatcher of numba; one with a signature is compiled, or read from the cache on disk."""
        if self._compiled is None:
            _tell_numba()
            self._compiled = self._compile()
        return self._compiled


@cache
def _tell_numba() -> None:
    """A kernel that another kernel names is the function that it compiles to."""
    import numba
    from numba.core.typing.typeof import typeof_impl

    typeof_impl.register(Kernel)(lambda found, _: numba.types.Dispatcher(found.compiled))


def compile_function(function: Callable[..., Any], signature: str | None) -> Any:
    """The function as numba compiles it: at once where it has a signature, and kept on disk where that can be."""
    import numba

    if signature is None:
        return numba.njit(**_OPTIONS)(function)  # compiled into the kernels that call it
    try:
        return numba.njit(signature, cache=True, **_OPTIONS)(function)
    except (RuntimeError, OSError) as error:  # no directory can be written, or the disk is full
        if isinstance(error, RuntimeError) and "cache" not in str(error):
            raise
        return numba.njit(signature, **_OPTIONS)(function)


def kernel(
    signature: str | None = None,
    *,
    in_python: Callable[..., Any] | None = None,
    compiled: Callable[[], Any] | None = None,
) -> Callable[[Callable[..., Any]], Kernel]:
    """Make a function a `Kernel`.

    Args:
        signature: numba's text for the types, such as "void(float32[::1])"; without one the kernel can only be called
            by other kernels and is compiled into them.
        in_python: stands for the function where nothing is compiled: arithmetic that numpy's scalars warn of.
        compiled: makes the compiled form where it cannot be compiled from the function.
    """

    def decorate(function: Callable[..., Any]) -> Kernel:
        return Kernel(function, signature, in_python, compiled or (lambda: compile_function(function, signature)))

    return decorate


def warm_up() -> int:
    """Compile all kernels that this process has imported, or read them from the cache. Returns their number.

    One that its module does not have under its name, such as one made within a function, is left until it is used.
    """
    if not compiles():
        return 0
    found = [one for one in _kernels if one.function.__globals__.get(one.__qualname__) is one]
    for one in found:
        _ = one.compiled
    return len(found)
