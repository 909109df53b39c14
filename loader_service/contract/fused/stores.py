"""Stores of four values that go past the caches, for slots that are larger than what a core keeps.

Owns `copy_four`, `scale_four`, `put_four` and `publish`. A store that passes the caches spares the read of the line
that it overwrites: a batch of 4 MiB is written in two thirds of the time. Such stores become visible in any order, so a
kernel that has made some ends with `publish`. Each address written must be a multiple of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from loader_service.contract.fused.compiler import kernel

__all__ = ["copy_four", "publish", "put_four", "scale_four"]

_LANES = 4


class _Emitter:
    """The code of one store in LLVM: a vector of four is loaded or gathered, computed with, and stored."""

    def __init__(self, context: Any, builder: Any, signature: Any) -> None:
        self.context, self.builder, self._types = context, builder, signature.args
        from llvmlite import ir

        self._ir = ir
        self._vector = self._ir.VectorType(self._ir.FloatType(), _LANES)

    def _address(self, place: int, array: Any, index: Any) -> Any:
        """Address of element `index` of the array that is argument `place`."""
        data = self.context.make_array(self._types[place])(self.context, self.builder, array).data
        return self.builder.bitcast(self.builder.gep(data, [index]), self._vector.as_pointer())

    def load(self, place: int, array: Any, index: Any) -> Any:
        loaded = self.builder.load(self._address(place, array, index))
        loaded.align = 4
        return loaded

    def gather(self, values: Sequence[Any]) -> Any:
        vector = self._ir.Constant(self._vector, self._ir.Undefined)
        for lane, value in enumerate(values):
            vector = self.builder.insert_element(vector, value, self._ir.Constant(self._ir.IntType(32), lane))
        return vector

    def scale(self, vector: Any, gain: Any, offset: Any) -> Any:
        """Two rounded operations: without the flags of fast-math LLVM does not contract them."""
        product = self.builder.fmul(vector, self.gather([gain] * _LANES))
        return self.builder.fadd(product, self.gather([offset] * _LANES))

    def store(self, vector: Any, place: int, array: Any, index: Any) -> Any:
        store = self.builder.store(vector, self._address(place, array, index))
        store.align = 16
        one = self._ir.Constant(self._ir.IntType(32), 1)
        store.set_metadata("nontemporal", self.builder.module.add_metadata([one]))
        return self.context.get_dummy_value()


def _emit_copy(context: Any, builder: Any, signature: Any, given: Sequence[Any]) -> Any:
    emitter = _Emitter(context, builder, signature)
    return emitter.store(emitter.load(0, given[0], given[1]), 2, given[2], given[3])


def _emit_scale(context: Any, builder: Any, signature: Any, given: Sequence[Any]) -> Any:
    emitter = _Emitter(context, builder, signature)
    loaded = emitter.load(0, given[0], given[1])
    return emitter.store(emitter.scale(loaded, given[2], given[3]), 4, given[4], given[5])


def _emit_put(context: Any, builder: Any, signature: Any, given: Sequence[Any]) -> Any:
    emitter = _Emitter(context, builder, signature)
    return emitter.store(emitter.gather(given[:4]), 4, given[4], given[5])


def _emit_fence(context: Any, builder: Any, signature: Any, given: Sequence[Any]) -> Any:
    builder.fence("seq_cst")
    return context.get_dummy_value()


@cache
def _functions() -> dict[str, Any]:
    """The compiled form of each kernel below, by name."""
    import numba

    intrinsic, void = numba.extending.intrinsic, numba.types.void

    @intrinsic  # type: ignore[untyped-decorator]  # numba ships no types
    def copy(_: Any, source: Any, first: Any, target: Any, at: Any) -> Any:
        return void(source, first, target, at), _emit_copy

    @intrinsic  # type: ignore[untyped-decorator]  # numba ships no types
    def scale(_: Any, source: Any, first: Any, gain: Any, offset: Any, target: Any, at: Any) -> Any:
        return void(source, first, gain, offset, target, at), _emit_scale

    @intrinsic  # type: ignore[untyped-decorator]  # numba ships no types
    def put(_: Any, a: Any, b: Any, c: Any, d: Any, target: Any, at: Any) -> Any:
        return void(a, b, c, d, target, at), _emit_put

    @intrinsic  # type: ignore[untyped-decorator]  # numba ships no types
    def fence(_: Any) -> Any:
        return void(), _emit_fence

    return {
        "copy_four": numba.njit(lambda source, first, target, at: copy(source, first, target, at)),
        "scale_four": numba.njit(
            lambda source, first, gain, offset, target, at: scale(source, first, gain, offset, target, at)
        ),
        "put_four": numba.njit(lambda a, b, c, d, target, at: put(a, b, c, d, target, at)),
        "publish": numba.njit(lambda: fence()),
    }


@kernel(compiled=lambda: _functions()["copy_four"])
def copy_four(source: Any, first: Any, target: Any, at: Any) -> None:
    """target[at : at + 4] = source[first : first + 4]; float32, contiguous."""
    target[at : at + _LANES] = source[first : first + _LANES]


@kernel(compiled=lambda: _functions()["scale_four"])
def scale_four(source: Any, first: Any, gain: Any, offset: Any, target: Any, at: Any) -> None:
    """target[at : at + 4] = source[first : first + 4] * gain + offset, each rounded to float32."""
    target[at : at + _LANES] = source[first : first + _LANES] * gain + offset


@kernel(compiled=lambda: _functions()["put_four"])
def put_four(a: Any, b: Any, c: Any, d: Any, target: Any, at: Any) -> None:
    """target[at : at + 4] = a, b, c, d."""
    target[at : at + _LANES] = np.array([a, b, c, d], np.float32)


@kernel(compiled=lambda: _functions()["publish"])
def publish() -> None:
    """Order all stores before this call before those after it."""
