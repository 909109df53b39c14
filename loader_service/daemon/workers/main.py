"""The start of a worker: makes the streams, says READY, and hands over to `WorkerLoop`.

Owns `run_worker` and the process's `main`. Invariant: a worker process ends with its connection, whatever signals come,
and with the daemon; what it prints goes to the daemon's log.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import io
import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

from loader_service.contract.fused import checked_mode, set_compiled, warm_up
from loader_service.contract.stream import Stream
from loader_service.daemon.ops.signals import IGNORED, do_nothing_at, restore_defaults
from loader_service.daemon.workers.factory import load_stream
from loader_service.daemon.workers.messages import (
    Start,
    Started,
    StartFailed,
    StreamFacts,
    StreamSpec,
    decode_to_worker,
    encode,
)
from loader_service.daemon.workers.stack_text import STACK_SIGNAL
from loader_service.daemon.workers.worker_loop import WorkerLoop
from loader_service.errors import ArgumentError, BuildError, FactoryError

__all__ = ["main", "run_worker"]

_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *(one for one in IGNORED if one != STACK_SIGNAL))
"""The daemon ends its workers itself."""


def run_worker(connection: Connection) -> None:
    """Work until the connection ends.

    Args:
        connection: this end of it; the first message on it is `Start`.
    """
    with contextlib.suppress(EOFError, ConnectionError):
        start = decode_to_worker(connection.recv_bytes())
        assert isinstance(start, Start)  # the daemon's first message
        streams = _start(connection, start)
        if streams is not None:
            WorkerLoop(connection, streams).run()


def _facts(spec: StreamSpec, stream: Stream) -> StreamFacts:
    batch_bytes = None
    if spec.measure:
        with contextlib.suppress(BuildError):  # it comes again, to the consumer, at its step
            batch_bytes = stream.layout(0).nbytes
    description = _sendable(stream.description)
    return StreamFacts(spec.name, stream.steps_per_epoch, stream.fingerprint, description, batch_bytes)


def _sendable(value: Any) -> Any:
    """A description as messages can carry it: no half characters (of a file's name), no integer of more bits."""
    if isinstance(value, dict):
        return {_sendable(key): _sendable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_sendable(item) for item in value]
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if type(value) is int and not -(2**63) <= value < 2**64:
        return {"int": hex(value)}
    return value


def _start(connection: Connection, start: Start) -> list[Stream] | None:
    """Make the streams and say READY; None where one failed, which has been said then."""
    sys.path[:0] = [path for path in start.import_paths if path not in sys.path]
    try:
        set_compiled(checked_mode(start.compiled))
        streams = [load_stream(spec.name, spec.factory, spec.args, BaseException) for spec in start.streams]
        warm_up()  # now that the factories have imported the kernels of their own
    except (ArgumentError, FactoryError) as error:
        connection.send_bytes(encode(StartFailed(error.to_record())))
        return None
    for stream in streams:
        stream.caught = BaseException
    facts = [_facts(spec, stream) for spec, stream in zip(start.streams, streams, strict=True)]
    connection.send_bytes(encode(Started(facts)))
    return streams


def _die_with_parent() -> None:
    """Linux: SIGKILL when the daemon ends, also in the middle of a blocked read."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def _write_stack_into(fd: int) -> None:
    """At a signal, and where one ends the process: also in a blocked call, or in C code that holds the GIL."""
    os.set_inheritable(fd, False)
    faulthandler.enable(fd)
    faulthandler.register(STACK_SIGNAL, fd)
    os.register_at_fork(after_in_child=_forget_stack)


def _forget_stack() -> None:
    """A process that a dataset forks has the default disposition."""
    faulthandler.unregister(STACK_SIGNAL)
    signal.signal(STACK_SIGNAL, signal.SIG_DFL)


def _print_by_line() -> None:
    """Hand on each line at once: output is a pipe here, which Python would fill first."""
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(line_buffering=True, errors="backslashreplace")


def main() -> None:
    """`python -m loader_service.daemon.workers.main FD FILE`: this end of the socket pair, the file for the stack."""
    restore_defaults()
    do_nothing_at(_HANDLED)
    _die_with_parent()
    _write_stack_into(int(sys.argv[2]))
    _print_by_line()
    with Connection(int(sys.argv[1])) as connection:
        run_worker(connection)


if __name__ == "__main__":
    main()
