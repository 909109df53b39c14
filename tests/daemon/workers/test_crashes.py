"""Steps at which workers crashed: remembered, and failed at the third crash."""

from __future__ import annotations

from loader_service.daemon.workers.crashes import Crash, Crashes


def test_the_third_crash_makes_the_error_with_all_three_stories() -> None:
    crashes = Crashes()
    assert crashes.add("s", 4, Crash("one was killed")) is None
    assert crashes.add("s", 4, Crash("two crashed", "its stack")) is None
    assert crashes.count("s", 4) == 2
    error = crashes.add("s", 4, Crash("three hung for 2 s", "where it hung", hung=True))
    assert error is not None
    assert (error.step, error.cause_type, error.remote_traceback) == (4, "WorkerHung", "where it hung")
    story = "one was killed; two crashed; three hung for 2 s; 3 workers died while they built this step"
    assert error.cause_message == story
    assert len(crashes) == 0


def test_steps_of_other_streams_count_apart_and_a_built_step_is_forgotten() -> None:
    crashes = Crashes()
    for stream in ("s", "t", "s", "t"):
        assert crashes.add(stream, 4, Crash("killed")) is None
    crashes.forget("s", 4)
    crashes.forget("s", 4)
    assert (crashes.count("s", 4), crashes.count("t", 4)) == (0, 2)


def test_many_samples_are_told_in_short_and_only_of_a_step_that_is_remembered() -> None:
    crashes = Crashes()
    assert crashes.add_samples("s", 0, [1], 1) == ""
    crashes.add("s", 0, Crash("killed"))
    assert crashes.add_samples("s", 0, [5, 6], 2) == "dataset indices 5, 6: of them killed"
    assert crashes.add_samples("s", 0, [5, 6], 128) == "dataset indices 5, 6, … (128 in all): of them killed"
    assert "31, … (64 in all)" in crashes.add_samples("s", 0, list(range(64)), 64)


def test_no_more_steps_are_remembered_than_a_thousand() -> None:
    crashes = Crashes()
    for step in range(3000):
        crashes.add("s", step, Crash("killed"))
    assert len(crashes) == 1000
    assert (crashes.count("s", 1999), crashes.count("s", 2000)) == (0, 1)
