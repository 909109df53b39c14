"""Sockets of a client: one context for all, descriptors that are checked first, and none of it in a forked child."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import zmq

from loader_client.sockets import SocketFactory, require_descriptors, reserved
from loader_service.errors import ForkedClientError, ServiceClosedError, ServiceUnavailableError


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def only(more: int) -> Iterator[None]:
    """Let this process open at most `more` files more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() - 1 + more, before[1]))  # one is that of the listing
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def sockets(endpoint: str) -> Iterator[SocketFactory]:
    made = SocketFactory(endpoint)
    yield made
    made.close()


def test_the_sockets_of_a_client_share_the_first_bytes_of_their_identities(endpoint: str) -> None:
    one, other = SocketFactory(endpoint), SocketFactory(endpoint)
    made = [one.new(), one.new(), other.new()]
    identities = [bytes(socket.get(zmq.ROUTING_ID)) for socket in made]
    for socket in made:
        socket.close(linger=0)
    assert identities[0][:16] == identities[1][:16] != identities[2][:16]
    assert [int.from_bytes(identity[16:], "big") for identity in identities] == [0, 1, 0]
    one.close()
    other.close()


def test_clients_of_a_process_share_one_context_until_the_last_is_closed(sockets: SocketFactory) -> None:
    before = descriptors()
    others = [SocketFactory(sockets.endpoint) for _ in range(20)]
    assert descriptors() == before
    for other in others:
        for _ in range(2):
            other.close()
    sockets.new().close(linger=0)


@pytest.mark.parametrize("more", [0, 1, 7])
def test_too_few_descriptors_are_refused_with_the_limit_and_the_remedy(more: int) -> None:
    with only(more):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        with pytest.raises(ServiceUnavailableError) as raised, reserved():
            pytest.fail("there are not as many")
    for part in ("Too many open files", f"may have {limit} open files", "ulimit -n"):
        assert part in str(raised.value)


def test_what_one_thread_reserves_is_promised_to_no_other() -> None:
    with only(20):
        with reserved(8), reserved(8):
            with pytest.raises(ServiceUnavailableError), reserved(8):
                pytest.fail("16 of 20 are promised")
            with reserved(4):
                pass
        with reserved(20):
            pass


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9])
def test_that_there_are_enough_costs_none(count: int) -> None:
    before = descriptors()
    require_descriptors(count)
    assert descriptors() == before


def test_a_closed_client_makes_no_sockets(endpoint: str) -> None:
    sockets = SocketFactory(endpoint)
    sockets.close()
    with pytest.raises(ServiceClosedError, match="this client is closed"):
        sockets.new()


def test_another_process_is_refused(sockets: SocketFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    sockets.check_process()
    assert not sockets.forked
    monkeypatch.setattr(sockets, "process_id", os.getpid() + 1)
    assert sockets.forked
    with pytest.raises(ForkedClientError, match=rf"forked child {os.getpid()}; call loader_client\.connect\(\)"):
        sockets.check_process()
    monkeypatch.undo()
