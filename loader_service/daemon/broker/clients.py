"""The clients that are connected, and how their end is noticed.

Owns `Client` and `Clients`. Invariant: a client is known by the first 16 bytes of its sockets' identities, from its
Hello until its Bye or its process's end: by pidfd at once, or, where its pid means nothing here, when a ping finds
its connection gone. Numbers that a client gives itself are bounded here: clients of a process, consumers of a client.
Fails with ProtocolError.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from loader_service.daemon.ports import EventSource
from loader_service.errors import ConsumerClosedError, ProtocolError, ServiceClosedError
from loader_service.wire.messages import Hello, Open, Stop, Tune
from loader_service.wire.process import memory_image, open_pidfd, pid_namespace

__all__ = ["Client", "Clients", "token_of"]

_TOKEN_BYTES = 16
_MAX_CLIENTS = 8192
_MAX_OF_A_PROCESS = 1024
_MAX_CONSUMERS = 4096


def token_of(identity: bytes) -> bytes:
    """Return the part of a socket's identity that names its client."""
    return identity[:_TOKEN_BYTES]


@dataclass(slots=True, eq=False)
class Client:
    """One connected client.

    Args:
        identity: of the socket that said Hello.
        pid: its process.
        pidfd: a descriptor that is readable once the process has ended; None where it cannot be seen from here.
        consumers: the client's own numbers of its consumers -> the daemon's ids.
        newest: the highest number of an Open so far.
        skipped: the last few numbers below it that have not come yet.
        given_up: the numbers of which the Close came before the Open.
    """

    identity: bytes
    pid: int
    pidfd: int | None
    image: tuple[int, ...] = ()
    consumers: dict[int, int] = field(default_factory=dict)
    newest: int = 0
    skipped: set[int] = field(default_factory=set)
    given_up: set[int] = field(default_factory=set)

    @property
    def runs_another_program(self) -> bool:
        """True if its process has called execve since its Hello, as far as that can be seen."""
        now = memory_image(self.pid) if self.image else ()
        return bool(now) and now != self.image

    @property
    def sockets(self) -> tuple[bytes, bytes]:
        """The sockets that it keeps: of its Hello, until it is closed, and its first, which tells of ended leases."""
        return self.identity, token_of(self.identity) + bytes(4)

    def give_up(self, consumer: int) -> None:
        """Note a Close for a consumer that is not open: its Open may be on its way on another socket."""
        is_to_come = consumer > self.newest or consumer in self.skipped
        if is_to_come:
            self.given_up.add(consumer)
            if len(self.given_up) > _MAX_CONSUMERS:
                self.given_up.remove(min(self.given_up))

    def check_new(self, consumer: int) -> None:
        """Raise ProtocolError where it cannot open one more under this number."""
        self._note(consumer)
        if consumer in self.given_up:
            self.given_up.discard(consumer)
            raise ConsumerClosedError(f"consumer {consumer} was closed before it was opened")
        if consumer in self.consumers:
            raise ProtocolError(f"consumer {consumer} of this client is open; give each a number of its own")
        if len(self.consumers) >= _MAX_CONSUMERS:
            raise ProtocolError(f"this client has {_MAX_CONSUMERS} consumers open, and may have no more; close some")

    def _note(self, consumer: int) -> None:
        """Note an Open under this number; threads may send theirs in another order than that of the numbers."""
        self.skipped.discard(consumer)
        if consumer > self.newest:
            self.skipped.update(range(max(self.newest + 1, consumer - _MAX_CONSUMERS), consumer))
            self.newest = consumer
            if len(self.skipped) > _MAX_CONSUMERS:
                self.skipped = {number for number in self.skipped if number >= consumer - _MAX_CONSUMERS}


class Clients:
    """The clients that are connected.

    Args:
        loop: the daemon's event loop, which watches their processes.
        gone: called once for each client that ended without a Bye.

    Attributes:
        incarnation: a number that tells this daemon from those before and after it.
    """

    def __init__(self, loop: EventSource, gone: Callable[[Client], None]) -> None:
        self.incarnation = secrets.randbits(62)
        self._loop, self._gone = loop, gone
        self._known: dict[bytes, Client] = {}

    def __iter__(self) -> Iterator[Client]:
        return iter(list(self._known.values()))

    def __len__(self) -> int:
        return len(self._known)

    def handshake(self, identity: bytes, hello: Hello) -> Client:
        """Take note of a client and watch its process where it can be seen. Raises ProtocolError at a limit."""
        token = token_of(identity)
        known = self._known.get(token)
        if known is not None:
            known.identity = identity  # it gave up waiting for an answer on the connection before
            return known
        of_process = sum(client.pid == hello.pid for client in self._known.values())
        if of_process >= _MAX_OF_A_PROCESS or len(self._known) >= _MAX_CLIENTS:
            raise ProtocolError(
                f"process {hello.pid} has {of_process} clients here, of {len(self._known)} in all; a process may have "
                f"{_MAX_OF_A_PROCESS}, and all together {_MAX_CLIENTS}: close some"
            )
        visible = hello.pid_namespace == pid_namespace() != 0
        image = memory_image(hello.pid) if visible else ()
        client = Client(identity, hello.pid, open_pidfd(hello.pid) if visible else None, image)
        self._known[token] = client
        if client.pidfd is not None:
            self._loop.watch(client.pidfd, lambda: self.lose(client))
        return client

    def knows(self, identity: bytes) -> bool:
        """Return whether this is a socket of a client that has said Hello."""
        return identity[:_TOKEN_BYTES] in self._known

    def of(self, identity: bytes) -> Client:
        """Return the client of a socket. Raises ServiceClosedError where it has not said Hello to this daemon."""
        client = self._known.get(identity[:_TOKEN_BYTES])
        if client is None:
            raise ServiceClosedError(
                "this daemon does not know the client (it was started after the client connected); connect again"
            )
        return client

    def check_meant(self, message: Open | Tune | Stop) -> None:
        """Raises ServiceClosedError where an earlier daemon was meant: a socket delivers what it has left."""
        if message.incarnation != self.incarnation:
            raise ServiceClosedError(f"the daemon that this {message.kind} was meant for is gone, and another is here")

    def unsure(self) -> list[Client]:
        """List those that have to be asked whether they are there.

        They are those that cannot be seen, idle ones, who may have just gone, and those whose process has executed
        another program, with which its connections ended. Any other whose process lives is there, whatever its
        connections are.
        """
        return [one for one in self if one.pidfd is None or not one.consumers or one.runs_another_program]

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
