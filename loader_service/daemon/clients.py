"""The clients that are connected, and how their end is noticed.

Owns `Client` and `Clients`. Invariant: a client is known by the first 16 bytes of its sockets' identities, from its
Hello until its Bye or its process's end: by pidfd at once, or, where its pid means nothing here, when a ping finds
its connection gone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from loader_service.daemon.loop import Loop
from loader_service.wire.messages import Hello
from loader_service.wire.process import open_pidfd, pid_namespace

__all__ = ["Client", "Clients", "token_of"]

_TOKEN_BYTES = 16


def token_of(identity: bytes) -> bytes:
    """Whose socket this is."""
    return identity[:_TOKEN_BYTES]


@dataclass(slots=True, eq=False)
class Client:
    """One connected client. identity: of the socket that said Hello; consumers: its own numbers -> the daemon's."""

    identity: bytes
    pid: int
    pidfd: int | None
    consumers: dict[int, int] = field(default_factory=dict)


class Clients:
    """Who is connected. `gone(client)` is called once for each that ended without a Bye."""

    def __init__(self, loop: Loop, gone: Callable[[Client], None]) -> None:
        self._loop, self._gone = loop, gone
        self._known: dict[bytes, Client] = {}

    def __iter__(self) -> Iterator[Client]:
        return iter(list(self._known.values()))

    def __len__(self) -> int:
        return len(self._known)

    def greet(self, identity: bytes, hello: Hello) -> Client:
        """Take note of a client and watch its process where it can be seen."""
        token = token_of(identity)
        if token in self._known:
            return self._known[token]
        visible = hello.pid_namespace == pid_namespace() != 0
        client = Client(identity, hello.pid, open_pidfd(hello.pid) if visible else None)
        self._known[token] = client
        if client.pidfd is not None:
            self._loop.watch(client.pidfd, lambda: self.lose(client))
        return client

    def of(self, identity: bytes) -> Client | None:
        return self._known.get(token_of(identity))

    def unseen(self) -> list[Client]:
        """Those that have to be asked whether they are still there."""
        return [client for client in self if client.pidfd is None]

    def lose(self, client: Client) -> None:
        """The client's process has ended."""
        if self.forget(client):
            self._gone(client)

    def forget(self, client: Client) -> bool:
        """End the watch; whether it was known."""
        if client.pidfd is not None:
            self._loop.unwatch(client.pidfd)
            os.close(client.pidfd)
            client.pidfd = None
        return self._known.pop(token_of(client.identity), None) is not None

    def close(self) -> None:
        for client in self:
            self.forget(client)
