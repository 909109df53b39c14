"""Waiting in an event loop for what a channel brings.

Owns `readable`, `turns`, `pause` and `aside`. Invariant: the loop goes on while a task waits; a task that is cancelled
has taken nothing; no exception is raised to end a wait, for its traceback would keep frames, and the batches in them,
alive. Descriptors are watched by duplicates, so that one that is closed meanwhile is never mixed up with another.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import zmq

from loader_client.channel import Channel

__all__ = ["aside", "pause", "readable", "turns"]


@asynccontextmanager
async def turns(consumer: Any) -> AsyncIterator[None]:
    """The tasks that ask one consumer, one after the other."""
    if consumer._turn is None:
        consumer._turn = asyncio.Lock()
    async with consumer._turn:
        yield


async def pause(seconds: float) -> None:
    """Let others go on for a while."""
    await asyncio.sleep(seconds)


async def readable(channel: Channel, timeout_s: float) -> None:
    """Until something has come, the daemon has ended, or `timeout_s` seconds have passed."""
    if channel.has_message():  # looks and resets the edge: the descriptor tells of what comes from now on
        await asyncio.sleep(0)
        return
    loop = asyncio.get_running_loop()
    arrived = loop.create_future()
    sources = [os.dup(int(channel.socket.getsockopt(zmq.FD)))]
    sources += [] if channel.daemon_pidfd is None else [os.dup(channel.daemon_pidfd)]
    for source in sources:
        loop.add_reader(source, _set, arrived)
    timer = loop.call_later(max(0.0, timeout_s), _set, arrived)
    try:
        await arrived
    finally:
        timer.cancel()
        for source in sources:
            loop.remove_reader(source)
            os.close(source)
    channel.wait(0)  # takes note of an end


async def aside(act: Callable[[Callable[[], bool]], None]) -> None:
    """Do what blocks in a thread. It is handed what tells whether nobody waits for it any more."""
    given_up = threading.Event()
    try:
        await asyncio.to_thread(act, given_up.is_set)
    finally:
        given_up.set()


def _set(arrived: asyncio.Future[None]) -> None:
    if not arrived.done():
        arrived.set_result(None)
