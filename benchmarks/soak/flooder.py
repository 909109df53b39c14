"""A stranger who floods the daemon's socket: `python -m benchmarks.soak.flooder ENDPOINT SEED LOG`.

It never introduces itself. For some seconds it opens connections, sends random bytes, frames that it never finishes,
endless multipart messages and long messages of clients. Meanwhile it watches the daemon as a bystander: the process
records an error where the daemon's memory grows beyond a bound, or where a consumer cannot read on.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import zmq

import loader_client
from benchmarks.processes import resource_usage
from benchmarks.soak.event_log import EventLog, ShardStep
from benchmarks.soak.streams import LINES
from loader_client import Client
from loader_service.errors import BuildError, EvictedError, MemoryLimitError, ServiceClosedError, SharedMemoryError
from loader_service.wire.messages import Release
from loader_service.wire.protocol import VERSION, encode

__all__ = ["main"]

_FLOOD_S = 2.0
_MAX_GROWN_KIB = 64 * 1024
"""What the daemon may take while strangers flood it, its rings for others included."""
_GREETING = b"\xff" + b"\0" * 7 + b"\x01\x7f\x03\x00NULL" + b"\0" * 48


def main() -> None:
    """Run with the arguments ENDPOINT SEED LOG."""
    endpoint, seed, path = sys.argv[1:]
    log, rng = EventLog(path), random.Random(f"flooder {seed}")
    ending = threading.Event()
    floods = [threading.Thread(target=flood, args=(endpoint, rng.randbytes(8), ending)) for flood in _FLOODS]
    try:
        with loader_client.connect(endpoint, timeout_s=60.0, reconnect_s=120.0) as client:
            for thread in floods:
                thread.start()
            try:
                _watch(client, rng.randrange(3000), log)
            finally:
                ending.set()
                for thread in floods:
                    thread.join()
    except (MemoryLimitError, SharedMemoryError, EvictedError, ServiceClosedError) as error:
        log.note(f"refused {type(error).__name__}: {error.message[:300]}")
    except BuildError as error:
        if error.cause_type not in ("MemoryLimitError", "SharedMemoryError"):
            log.error(error)
    except Exception as error:
        log.error(error)
    log.close()


def _watch(client: Client, step: int, log: EventLog) -> None:
    """Read beside the flood, and measure the daemon after each step."""
    client.status()
    pid = client.daemon_pid
    before = resource_usage(pid)
    largest_kib = 0 if before is None else before.pss_kib
    with client.open(LINES, step) as consumer:
        end_s = time.monotonic() + _FLOOD_S
        while time.monotonic() < end_s:
            batch = consumer.get(consumer.next_step, timeout_s=60.0)
            log.batch(ShardStep(LINES, batch.step, 0, 1), batch.digest())
            batch.release()
            now = resource_usage(pid)  # None: it was killed meanwhile
            largest_kib = max(largest_kib, 0 if now is None else now.pss_kib)
            time.sleep(0.01)
    if before is not None and largest_kib - before.pss_kib > _MAX_GROWN_KIB:
        log.error(f"a flood of strangers took the daemon from {before.pss_kib} KiB to {largest_kib} KiB")
    log.note("flood survived")


def _repeat(ending: threading.Event, act: Callable[[], None]) -> None:
    while not ending.wait(0.005):
        with suppress(OSError, zmq.ZMQError):  # it is hung up on, or the daemon is gone for a moment
            act()


def _raw_connections(endpoint: str, seed: bytes, ending: threading.Event) -> None:
    """Greetings that stop half way, random bytes, and a frame of 1 GiB that is never finished."""
    rng = random.Random(seed)
    huge = _GREETING + b"\x02" + (2**30).to_bytes(8, "big")

    def act() -> None:
        with socket.socket(socket.AF_UNIX) as caller:
            caller.settimeout(0.5)
            caller.connect(endpoint.removeprefix("ipc://"))
            caller.sendall(rng.choice([_GREETING[: rng.randint(0, 64)], rng.randbytes(200), huge]))
            for _ in range(rng.randint(0, 20)):
                caller.sendall(bytes(2**16))

    _repeat(ending, act)


def _messages(endpoint: str, seed: bytes, ending: threading.Event) -> None:
    """Messages without a Hello: long lists of leases, endless parts, random bytes of the right version."""
    rng = random.Random(seed)
    release = encode(Release(1, list(range(50_000))))
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger, dealer.sndtimeo, dealer.sndhwm = 0, 200, 10
        dealer.connect(endpoint)

        def act() -> None:
            kind = rng.randrange(3)
            if kind == 0:
                dealer.send_multipart(release)
            elif kind == 1:
                dealer.send_multipart([os.urandom(10)] * 10_000)
            else:
                dealer.send_multipart([VERSION + rng.randbytes(rng.randint(0, 1000))])

        _repeat(ending, act)


_FLOODS = (_raw_connections, _messages)


if __name__ == "__main__":
    main()
