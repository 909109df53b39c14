"""Waiting in an event loop for what a channel brings.

Owns `readable` and `aside`. Invariant: the loop goes on while a task waits; a task that is cancelled has taken nothing;
no exception is raised to end a wait, for its traceback would keep frames, and the batches in them, alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import zmq

from loader_client.channel import Channel

__all__ = ["aside", "readable"]


async def readable(channel: Channel, timeout_s: float) -> None:
    """Until something has come, the daemon has ended, or `timeout_s` seconds have passed."""
    if channel.has_message():  # looks and resets the edge: the descriptor tells of what comes from now on
        return
    loop = asyncio.get_running_loop()
    arrived = loop.create_future()
    sources = [int(channel.socket.getsockopt(zmq.FD))]
    sources += [] if channel.daemon_pidfd is None else [channel.daemon_pidfd]
    for source in sources:
        loop.add_reader(source, _set, arrived)
    timer = loop.call_later(max(0.0, timeout_s), _set, arrived)
    try:
        await arrived
    finally:
        timer.cancel()
        for source in sources:
            loop.remove_reader(source)
    channel.wait(0)  # takes note of an end


async def aside(act: Callable[[], None]) -> None:
    """Do what blocks in a thread."""
    await asyncio.to_thread(act)


def _set(arrived: asyncio.Future[None]) -> None:
    if not arrived.done():
        arrived.set_result(None)
