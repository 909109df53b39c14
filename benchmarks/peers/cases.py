"""The cases: which processes make each, and what it needs to run here.

Owns `Case`, `Role` and `CASES`. Invariant: a case is described by plain values, and nothing is imported for it but in
its own processes.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers import jpegs
from benchmarks.peers.options import Options

__all__ = ["CASES", "Case", "Role", "missing"]

_JPEGS = 1024


@dataclass(frozen=True, slots=True)
class Role:
    """One process of a case.

    Attributes:
        name: Of a function in `roles`.
        options: What it is told, as plain values.
        consumes: It takes batches, and counts them under the number `consumer` of its options.
    """

    name: str
    options: Options = field(default_factory=dict)
    consumes: bool = True


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table.

    Attributes:
        name: On the command line.
        title: As a person reads it.
        roles: Makes the processes, given a directory of the case's own.
        needs: Modules of others that must be installed.
        group: Cases of one group are compared.
    """

    name: str
    title: str
    roles: Callable[[Path], list[Role]]
    needs: tuple[str, ...] = ()
    group: str = "lines"


def missing(case: Case) -> list[str]:
    """Name the modules that the case needs and that are not installed."""
    return [name for name in case.needs if importlib.util.find_spec(name) is None]


def _alone(name: str, **options: object) -> Callable[[Path], list[Role]]:
    return lambda _: [Role(name, dict(options))]


def _ours(workers: int, consumers: int, compiled: str = "off") -> Callable[[Path], list[Role]]:
    def roles(directory: Path) -> list[Role]:
        endpoint = f"ipc://{directory}/daemon.sock"
        factory = "loader_service.data:synthetic_lines"
        served = {"endpoint": endpoint, "workers": workers, "directory": str(directory), "factory": factory}
        served["compiled"] = compiled
        read = {"endpoint": endpoint, "start_step": "live"}
        readers = [Role("read", {**read, "consumer": number}) for number in range(consumers)]
        return [Role("serve", served, consumes=False), *readers]

    return roles


def _trainers(count: int) -> Callable[[Path], list[Role]]:
    return lambda _: [Role("torch_loader", {"workers": 1, "consumer": number}) for number in range(count)]


def _tensorsocket(consumers: int) -> Callable[[Path], list[Role]]:
    def roles(directory: Path) -> list[Role]:
        port = 17_000 + sum(map(ord, directory.name)) % 1400 * 10
        producer = Role("tensorsocket_producer", {"port": port}, consumes=False)
        return [
            producer,
            *(Role("tensorsocket_consumer", {"port": port, "consumer": number}) for number in range(consumers)),
        ]

    return roles


def _jpeg_folder(directory: Path) -> Path:
    folder = directory.parent / "jpegs"
    jpegs.write_folder(folder, _JPEGS)
    return folder


def _jpegs_torch(workers: int) -> Callable[[Path], list[Role]]:
    return lambda directory: [Role("torch_jpegs", {"workers": workers, "folder": str(_jpeg_folder(directory))})]


def _jpegs_ours(workers: int, consumers: int) -> Callable[[Path], list[Role]]:
    def roles(directory: Path) -> list[Role]:
        server, *readers = _ours(workers, consumers)(directory)
        made = {"factory": "benchmarks.peers.jpegs:jpeg_stream", "args": {"folder": str(_jpeg_folder(directory))}}
        return [
            Role("serve", {**server.options, **made}, consumes=False),
            *(Role("read", {**reader.options, "tensor": "image"}) for reader in readers),
        ]

    return roles


def _table() -> list[Case]:
    cases = [
        Case("memcpy", "M: a cold 4 MiB memcpy into a ring of 8", _alone("memcpy")),
        Case("numpy", "N: the best numpy build, in process", _alone("numpy_build")),
        Case("loader", "our Loader, in process, numpy", _alone("loader", compiled="off")),
        Case("loader_fused", "our Loader, in process, kernels", _alone("loader", compiled="on"), ("numba",)),
    ]
    cases += [
        Case(f"ours_w{workers}_c{consumers}", f"our daemon, {workers} workers, {consumers} consumers", roles)
        for workers in (1, 2)
        for consumers in (1, 2, 4, 8, 16)
        for roles in [_ours(workers, consumers)]
    ]
    cases += [
        Case(
            f"fused_w{workers}_c{consumers}",
            f"our daemon with kernels, {workers} workers, {consumers} consumers",
            _ours(workers, consumers, "on"),
            ("numba",),
        )
        for workers in (1, 2)
        for consumers in (1, 4)
    ]
    cases += [
        Case(
            f"torch_w{workers}",
            f"torch DataLoader, {workers} workers",
            _alone("torch_loader", workers=workers),
            ("torch",),
        )
        for workers in (0, 1, 2)
    ]
    cases += [
        Case(f"trainers_{count}", f"{count} trainers, a DataLoader with 1 worker each", _trainers(count), ("torch",))
        for count in (2, 4)
    ]
    cases += [
        Case("spdl_t1", "spdl, 1 thread", _alone("spdl_pipeline", threads=1), ("spdl",)),
        Case("spdl_t2", "spdl, 2 threads", _alone("spdl_pipeline", threads=2), ("spdl",)),
        Case("grain_w0", "grain, in process", _alone("grain_loader", workers=0), ("grain",)),
        Case("grain_w2", "grain, 2 workers", _alone("grain_loader", workers=2), ("grain",)),
        Case("tensorsocket_c1", "tensorsocket, 1 consumer", _tensorsocket(1), ("tensorsocket", "torch")),
        Case("tensorsocket_c2", "tensorsocket, 2 consumers", _tensorsocket(2), ("tensorsocket", "torch")),
    ]
    jpeg = {"group": "jpeg"}
    cases += [
        Case("jpeg_torch_w2", "JPEG: torch DataLoader, 2 workers", _jpegs_torch(2), ("torch", "PIL"), **jpeg),
        Case("jpeg_ours_w2_c1", "JPEG: our daemon, 2 workers, 1 consumer", _jpegs_ours(2, 1), ("PIL",), **jpeg),
        Case("jpeg_ours_w2_c4", "JPEG: our daemon, 2 workers, 4 consumers", _jpegs_ours(2, 4), ("PIL",), **jpeg),
    ]
    return cases


CASES = {case.name: case for case in _table()}
"""By name, in the order of the table."""
