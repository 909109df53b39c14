"""The loop: descriptors, timers and signals in, handlers called one at a time."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from loader_service.daemon.server.event_loop import Loop


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Pipe:
    """A pipe that is readable once something was written."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()

    def fill(self) -> None:
        os.write(self.write, b"x")

    def drain(self) -> None:
        os.read(self.read, 1)

    def close(self) -> None:
        for end in (self.read, self.write):
            os.close(end)


@pytest.fixture
def pipes() -> Iterator[list[Pipe]]:
    made = [Pipe() for _ in range(3)]
    yield made
    for pipe in made:
        pipe.close()


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop(time.monotonic)
    yield made
    made.close()


def test_a_readable_descriptor_calls_its_handler(loop: Loop, pipes: list[Pipe]) -> None:
    called: list[int] = []
    for number, pipe in enumerate(pipes):
        loop.watch(pipe.read, partial(called.append, number))
    pipes[1].fill()
    loop.turn()
    assert called == [1]
    pipes[1].drain()
    for pipe in pipes:
        pipe.fill()
    loop.turn()
    assert sorted(called) == [0, 1, 1, 2]


def test_a_paused_descriptor_calls_nothing_until_it_is_watched_again(loop: Loop, pipes: list[Pipe]) -> None:
    called: list[str] = []
    loop.watch(pipes[0].read, lambda: called.append("read"))
    loop.watch(pipes[0].read, None)
    pipes[0].fill()
    loop.after(0, lambda: called.append("timer"))
    loop.turn()
    loop.watch(pipes[0].read, lambda: called.append("read"))
    loop.turn()
    assert called == ["timer", "read"]


def test_a_descriptor_that_can_be_written_to_calls_its_handler_for_that(loop: Loop) -> None:
    """Also while nothing is read from it, and beside what is."""
    called: list[str] = []
    one, other = socket.socketpair()
    with one, other:
        loop.watch_writeable(one.fileno(), lambda: called.append("write"))
        loop.turn()
        loop.watch(one.fileno(), lambda: called.append("read"))
        other.send(b"x")
        loop.turn()
        loop.watch_writeable(one.fileno(), None)
        loop.turn()
        loop.unwatch(one.fileno())
    assert called == ["write", "read", "write", "read"]


def test_a_handler_is_called_again_as_long_as_there_is_something_to_read(loop: Loop, pipes: list[Pipe]) -> None:
    called: list[int] = []
    loop.watch(pipes[0].read, lambda: called.append(0))
    pipes[0].fill()
    loop.turn()
    loop.turn()
    assert called == [0, 0]


def test_an_unwatched_descriptor_calls_nothing(pipes: list[Pipe]) -> None:
    clock, called = Clock(), list[str]()
    loop = Loop(clock)
    loop.watch(pipes[0].read, lambda: called.append("pipe"))
    for _ in range(2):
        loop.unwatch(pipes[0].read)
    pipes[0].fill()
    loop.after(0, lambda: called.append("timer"))
    loop.turn()
    assert called == ["timer"]


def test_a_handler_that_unwatches_another_of_the_same_turn_is_heeded(loop: Loop, pipes: list[Pipe]) -> None:
    called: list[int] = []

    def only(number: int) -> None:
        called.append(number)
        for pipe in pipes:
            loop.unwatch(pipe.read)

    for number, pipe in enumerate(pipes):
        loop.watch(pipe.read, partial(only, number))
        pipe.fill()
    loop.turn()
    assert len(called) == 1


def test_a_number_that_is_used_again_within_a_turn_is_not_mistaken(loop: Loop, pipes: list[Pipe]) -> None:
    """A client that is gone and one that has just come may have the same descriptor; the end was the former's."""
    first, second, fresh = pipes
    called: list[str] = []

    def replace() -> None:
        for pipe in (first, second):
            loop.unwatch(pipe.read)
        os.dup2(fresh.read, second.read)
        os.dup2(fresh.read, first.read)
        for pipe in (first, second):
            loop.watch(pipe.read, lambda: called.append("of the new one"))

    for pipe in (first, second):
        loop.watch(pipe.read, replace)
        pipe.fill()
    loop.turn()
    assert called == []
    fresh.fill()
    loop.turn()
    assert set(called) == {"of the new one"}


# --- timers ----------------------------------------------------------------------------------------------


def test_timers_are_called_when_due_in_their_order() -> None:
    clock, called = Clock(), list[float]()
    loop = Loop(clock)
    for delay_s in (2, 1, 3, 1.5, 0):
        loop.after(delay_s, partial(called.append, delay_s))
    loop.turn()
    assert called == [0]
    clock.now += 2
    loop.turn()
    assert called == [0, 1, 1.5, 2]
    clock.now += 100
    loop.turn()
    assert called == [0, 1, 1.5, 2, 3]


def test_timers_of_one_moment_are_called_in_the_order_of_their_making() -> None:
    clock, called = Clock(), list[int]()
    loop = Loop(clock)
    for number in range(5):
        loop.after(1, partial(called.append, number))
    clock.now += 1
    loop.turn()
    assert called == [0, 1, 2, 3, 4]


def test_a_timer_is_called_once_and_may_set_the_next() -> None:
    clock, called = Clock(), list[float]()
    loop = Loop(clock)

    def again() -> None:
        called.append(clock.now)
        loop.after(1, again)

    loop.after(1, again)
    for _ in range(3):
        clock.now += 1
        loop.turn()
    assert called == [101, 102, 103]


@pytest.mark.parametrize("delay_s", [0.0, 0.0001, 0.001, 0.03])
def test_a_turn_waits_for_its_timer_and_no_longer(loop: Loop, pipes: list[Pipe], delay_s: float) -> None:
    """A turn never ends a moment before its timer, and spins."""
    called: list[float] = []
    loop.watch(pipes[0].read, pipes[0].drain)
    started = time.monotonic()
    loop.after(delay_s, lambda: called.append(time.monotonic() - started))
    loop.turn()
    assert called[0] >= delay_s
    assert called[0] < 10


def test_a_descriptor_ends_the_wait_for_a_timer(loop: Loop, pipes: list[Pipe]) -> None:
    called: list[str] = []
    loop.after(600, lambda: called.append("timer"))
    loop.watch(pipes[0].read, lambda: called.append("pipe"))
    filler = threading.Timer(0.02, pipes[0].fill)
    filler.start()
    loop.turn()
    filler.join()
    assert called == ["pipe"]


# --- signals ---------------------------------------------------------------------------------------------


def test_a_signal_is_only_recorded_and_acted_on_in_the_loop(loop: Loop) -> None:
    called: list[signal.Signals] = []
    loop.on_signals([signal.SIGUSR1, signal.SIGUSR2], called.append)
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGUSR2)
    assert called == []
    loop.turn()
    assert called == [signal.SIGUSR1, signal.SIGUSR2]


def test_a_signal_ends_a_wait(loop: Loop) -> None:
    called: list[signal.Signals] = []
    loop.on_signals([signal.SIGUSR1], called.append)
    sender = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGUSR1))
    sender.start()
    loop.after(600, lambda: None)
    loop.turn()
    sender.join()
    assert called == [signal.SIGUSR1]


def test_a_storm_of_signals_neither_blocks_nor_is_lost(loop: Loop) -> None:
    called: list[signal.Signals] = []
    loop.on_signals([signal.SIGUSR1], called.append)
    for _ in range(1000):
        os.kill(os.getpid(), signal.SIGUSR1)
    loop.turn()
    assert called


def test_close_gives_the_signals_back_and_may_be_repeated() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGINT)}
    receiver, sender = socket.socketpair()
    loop = Loop(time.monotonic)
    loop.on_signals(list(before), lambda number: None)
    assert {number: signal.getsignal(number) for number in before} != before
    for _ in range(2):
        loop.close()
    assert {number: signal.getsignal(number) for number in before} == before
    assert signal.set_wakeup_fd(-1) == -1
    for end in (receiver, sender):
        end.close()
