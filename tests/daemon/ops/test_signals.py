"""Signals: what is inherited is undone, what is not meant to end a process does not, children have the defaults."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from loader_service.daemon.ops.signals import ENDING, IGNORED

PRELUDE = "import os, signal, subprocess, sys; from loader_service.daemon.ops import signals; "


def run(code: str) -> str:
    """Run `code` in a process of its own; what it printed."""
    done = subprocess.run([sys.executable, "-c", PRELUDE + code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_process_that_inherits_ignored_children_and_blocked_signals_hears_of_both_again() -> None:
    code = (
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN); signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); "
        "signals.restore_defaults(); "
        "print(signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL, signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    )
    assert run(code) == "True set()"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2, signal.SIGALRM])
def test_a_process_goes_on_at_a_signal_that_means_nothing_here(number: signal.Signals) -> None:
    code = f"signals.do_nothing_at([signal.Signals({number.value})]); os.kill(os.getpid(), {number.value}); print('on')"
    assert run(code) == "on"


def test_a_program_that_it_starts_ends_at_the_signal_as_any_other() -> None:
    started = "child = subprocess.Popen(['sleep', '600']); child.terminate(); print(child.wait(60))"
    assert run(f"signals.do_nothing_at([signal.SIGTERM, signal.SIGINT]); {started}") == "-15"


def test_a_child_that_it_forks_ends_at_the_signal_as_any_other() -> None:
    code = """
signals.do_nothing_at([signal.SIGTERM, signal.SIGINT])
ours, theirs = os.pipe()
pid = os.fork()
if not pid:
    os.write(theirs, b"!")
    signal.pause()
os.read(ours, 1)
os.kill(pid, signal.SIGTERM)
print(os.WTERMSIG(os.waitpid(pid, 0)[1]))
"""
    assert run(code) == "15"


def test_a_hang_up_ends_the_daemon_unless_it_was_ignored_from_the_start() -> None:
    say = "print(signal.SIGHUP in signals.ending_signals(), signal.SIGTERM in signals.ending_signals())"
    assert run(f"signal.signal(signal.SIGHUP, signal.SIG_DFL); {say}") == "True True"
    assert run(f"signal.signal(signal.SIGHUP, signal.SIG_IGN); {say}") == "False True"


def test_a_process_started_in_the_block_ignores_and_this_one_is_as_before() -> None:
    code = (
        "before = signal.getsignal(signal.SIGUSR1)\n"
        "with signals.ignored_by_children([signal.SIGUSR1]):\n"
        "    told = subprocess.run([sys.executable, '-c', 'import signal; print(signal.getsignal(signal.SIGUSR1) is "
        "signal.SIG_IGN)'], capture_output=True, text=True).stdout.strip()\n"
        "print(told, signal.getsignal(signal.SIGUSR1) is before)"
    )
    assert run("\n" + code) == "True True"


def test_no_signal_both_ends_the_daemon_and_is_ignored() -> None:
    assert set(ENDING).isdisjoint(IGNORED)
