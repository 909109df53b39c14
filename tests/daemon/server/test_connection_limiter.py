"""Descriptors: as many as there may be, a clear error where they are too few, and half of them left to the daemon."""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable

import pytest

from loader_service.daemon.server.connection_limiter import is_over, raise_limit
from loader_service.errors import EndpointError


class Limits:
    """The limits of a process that is not this one."""

    def __init__(self, soft: int, hard: int) -> None:
        self.now = soft, hard

    def set(self, what: int, limits: tuple[int, int]) -> None:
        assert what == resource.RLIMIT_NOFILE
        self.now = limits


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], Limits]:
    def limit(soft: int, hard: int) -> Limits:
        made = Limits(soft, hard)
        monkeypatch.setattr(resource, "getrlimit", lambda what: made.now)
        monkeypatch.setattr(resource, "setrlimit", made.set)
        return made

    return limit


def test_a_process_gets_all_the_descriptors_that_it_may_have(limited: Callable[[int, int], Limits]) -> None:
    limits = limited(1024, 524288)
    raise_limit(4)
    assert limits.now == (524288, 524288)


@pytest.mark.parametrize(("hard", "workers", "is_enough"), [(132, 1, False), (133, 1, True), (1000, 219, False)])
def test_too_few_are_told_with_how_many_it_needs(
    limited: Callable[[int, int], Limits], hard: int, workers: int, is_enough: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    limited(64, hard)
    if is_enough:
        raise_limit(workers)
        assert caplog.text == ""
    else:
        with pytest.raises(EndpointError, match=rf"may have {hard} open files, and {workers} workers .* at least"):
            raise_limit(workers)


def test_no_limit_is_enough(limited: Callable[[int, int], Limits], caplog: pytest.LogCaptureFixture) -> None:
    limited(resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    raise_limit(1024)
    assert caplog.text == ""


def test_half_of_the_descriptors_are_left_to_the_daemon(
    limited: Callable[[int, int], Limits], caplog: pytest.LogCaptureFixture
) -> None:
    limited(200, 200)
    assert not is_over(99)
    assert caplog.text == ""
    assert is_over(100)
    assert "a connection was refused: descriptor 100 of at most 200" in caplog.text


def test_without_a_limit_none_is_too_many(limited: Callable[[int, int], Limits]) -> None:
    limited(resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert not is_over(2**40)
