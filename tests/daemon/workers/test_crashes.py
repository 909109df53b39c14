"""What is remembered of the steps that workers died of."""

from __future__ import annotations

from loader_service.daemon.workers.crashes import Crash, Crashes


def test_the_third_death_makes_the_error_with_all_three_stories() -> None:
    deaths = Crashes()
    assert deaths.add("s", 4, Crash("one was killed")) is None
    assert deaths.add("s", 4, Crash("two crashed", "its stack")) is None
    assert deaths.count("s", 4) == 2
    error = deaths.add("s", 4, Crash("three hung for 2 s", "where it hung", hung=True))
    assert error is not None
    assert (error.step, error.cause_type, error.remote_traceback) == (4, "WorkerHung", "where it hung")
    story = "one was killed; two crashed; three hung for 2 s; 3 workers died while they built this step"
    assert error.cause_message == story
    assert len(deaths) == 0


def test_steps_of_other_streams_count_apart_and_a_built_step_is_forgotten() -> None:
    deaths = Crashes()
    for stream in ("s", "t", "s", "t"):
        assert deaths.add(stream, 4, Crash("killed")) is None
    deaths.forget("s", 4)
    deaths.forget("s", 4)
    assert (deaths.count("s", 4), deaths.count("t", 4)) == (0, 2)


def test_many_samples_are_told_in_short_and_only_of_a_step_that_is_remembered() -> None:
    deaths = Crashes()
    assert deaths.told("s", 0, [1], 1) == ""
    deaths.add("s", 0, Crash("killed"))
    assert deaths.told("s", 0, [5, 6], 2) == "dataset indices 5, 6: of them killed"
    assert deaths.told("s", 0, [5, 6], 128) == "dataset indices 5, 6, … (128 in all): of them killed"
    assert "31, … (64 in all)" in deaths.told("s", 0, list(range(64)), 64)


def test_no_more_steps_are_remembered_than_a_thousand() -> None:
    deaths = Crashes()
    for step in range(3000):
        deaths.add("s", step, Crash("killed"))
    assert len(deaths) == 1000
    assert (deaths.count("s", 1999), deaths.count("s", 2000)) == (0, 1)
