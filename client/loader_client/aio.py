"""Waiting in an event loop for what a channel brings.

Owns `readable`, `serialize_tasks`, `pause` and `run_in_thread`. Invariant: the loop goes on while a task waits; a task
that is cancelled has taken nothing; no exception is raised to end a wait, for its traceback would keep frames, and the
batches in them, alive. Descriptors are watched by duplicates, so that one that is closed meanwhile is never mixed up
with another.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

import zmq

from loader_client.channel import Channel
from loader_client.sockets import is_shortage

__all__ = ["pause", "readable", "run_in_thread", "serialize_tasks"]

_POLL_S = 0.005
"""A wait looks for a message so often where no descriptors are left to watch for it."""


class _Lock(Protocol):
    """A lock of `threading`, of either kind."""

    def acquire(self, blocking: bool = ...) -> bool: ...

    def release(self) -> None: ...


@asynccontextmanager
async def serialize_tasks(locks: MutableMapping[Any, asyncio.Lock]) -> AsyncIterator[None]:
    """Let the tasks that ask one consumer do so one after the other.

    Args:
        locks: of that consumer, one for each event loop (a lock belongs to the loop in which it was first waited for);
            of those that have ended none is kept where the mapping is weak.
    """
    loop = asyncio.get_running_loop()
    lock = locks.get(loop)
    if lock is None:
        lock = locks.setdefault(loop, asyncio.Lock())
    async with lock:
        yield


async def pause(seconds: float) -> None:
    """Let other tasks run for `seconds`."""
    await asyncio.sleep(seconds)


async def readable(channel: Channel, lock: _Lock, timeout_s: float) -> None:
    """Wait until something has come, the daemon has ended, or `timeout_s` seconds have passed.

    lock: of the channel, which is touched only under it, and left alone while another thread reads.
    """
    if not lock.acquire(blocking=False):
        await asyncio.sleep(min(timeout_s, _POLL_S))
        return
    try:
        has_message = channel.has_message()  # resets the edge: the descriptor tells of what comes from now on
    finally:
        lock.release()
    if has_message:
        await asyncio.sleep(0)
        return
    loop = asyncio.get_running_loop()
    arrived = loop.create_future()
    sources = _duplicates(channel)
    for source in sources:
        loop.add_reader(source, _set, arrived)
    timer = loop.call_later(max(0.0, timeout_s if sources else min(timeout_s, _POLL_S)), _set, arrived)
    try:
        await arrived
    finally:
        timer.cancel()
        for source in sources:
            loop.remove_reader(source)
            os.close(source)
    if lock.acquire(blocking=False):
        try:
            channel.wait(0)  # takes note of an end
        finally:
            lock.release()


async def run_in_thread(act: Callable[[Callable[[], bool]], None]) -> None:
    """Run what blocks in a thread. It is given a function that tells whether nobody waits for it any more."""
    given_up = threading.Event()
    try:
        await asyncio.to_thread(act, given_up.is_set)
    finally:
        given_up.set()


def _duplicates(channel: Channel) -> list[int]:
    """Descriptors to watch, for the caller to close; none where this process can have no more of them."""
    made: list[int] = []
    try:
        made.append(os.dup(int(channel.socket.getsockopt(zmq.FD))))
        if channel.daemon_pidfd is not None:
            made.append(os.dup(channel.daemon_pidfd))
    except (OSError, zmq.ZMQError) as error:
        for descriptor in made:
            os.close(descriptor)
        if not is_shortage(error) and error.errno not in (errno.EBADF, errno.ENOTSOCK):  # else it was closed meanwhile
            raise
        return []
    return made


def _set(arrived: asyncio.Future[None]) -> None:
    if not arrived.done():
        arrived.set_result(None)
