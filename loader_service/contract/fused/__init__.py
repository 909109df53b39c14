"""Compiled builds: kernels that write a batch straight into its slot, with the GIL released (extra `fast`, numba).

Invariant: a batch has the same bits whether it is built by compiled kernels or by numpy, so a process chooses by what
is installed; everything works without numba. Nothing here is imported by a client.
"""

from loader_service.contract.fused.compiler import (
    CompiledMode,
    Kernel,
    checked_mode,
    compiles,
    kernel,
    set_compiled,
    warm_up,
)

__all__ = ["CompiledMode", "Kernel", "checked_mode", "compiles", "kernel", "set_compiled", "warm_up"]
