"""Every Nth step is built twice before anybody gets it."""

from __future__ import annotations

import pytest

from loader_service.daemon.workers.messages import Verify
from loader_service.errors import BuildError
from tests.daemon.broker.broker_harness import PAGE, BrokerHarness


def counts(harness: BrokerHarness) -> tuple[int, int, int, int]:
    told = harness.broker.streams["a"].report(builds=False)
    return told["built"], told["verified"], told["impure"], told["unverified"]


def waiting(workers: int = 2, prefetch: int = 2, step: int = 0) -> tuple[BrokerHarness, int]:
    """A harness that verifies every second step, a consumer that waits for `step`, and worker 0 has built it."""
    harness = BrokerHarness(workers=workers, prefetch=prefetch, verify=2)
    consumer = harness.open(step=step)
    harness.get(consumer, step)
    place = next(number for number in range(workers) if step in harness.steps(number))
    assert harness.build(place) == [] if step % 2 == 0 else True
    return harness, place


def test_a_step_is_granted_once_another_worker_has_built_the_same_bytes() -> None:
    harness, builder = waiting()
    other = 1 - builder
    assert harness.verifying(builder) == []
    assert harness.verifying(other) == [0]
    verify = next(task for task in harness.workers.all[other].tasks if isinstance(task, Verify))
    build = harness.workers.given[0]
    assert (verify.placement, verify.nbytes) == (build.placement, 128)
    while harness.steps(other)[0] != 0:
        harness.build(other)
    [(_, reply)] = harness.build(other)
    assert harness.ready([reply]).placement == build.placement
    assert counts(harness)[1:] == (1, 0, 0)


def test_only_every_nth_step_is_verified() -> None:
    harness = BrokerHarness(workers=2, prefetch=8, verify=3)
    harness.open(step=4)
    verified: list[int] = []
    while any(harness.steps(place) for place in range(2)):
        for place in range(2):
            if harness.steps(place):
                verified += (
                    harness.verifying(place)[:1] if harness.verifying(place)[:1] == harness.steps(place)[:1] else []
                )
                harness.build(place)
    assert sorted(verified) == [6, 9]
    assert counts(harness) == (8, 2, 0, 0)


def test_a_step_that_differs_fails_for_its_consumers_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    harness, builder = waiting()
    other = 1 - builder
    while harness.steps(other)[0] != 0:
        harness.build(other)
    [(_, reply)] = harness.build(other, "tensor 'x': 1 of 128 elements differ", "tensor 'y': nothing, then int32[1]")
    error = harness.error([reply])
    assert isinstance(error, BuildError)
    assert (error.step, error.cause_type) == (0, "PurityViolation")
    text = (
        f"worker {builder} built it, and worker {other} other bytes: tensor 'x': 1 of 128 elements differ; tensor 'y'"
    )
    assert text in error.message
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert f"stream a step 0: step 0 could not be built: PurityViolation: {text}" in caplog.text
    assert counts(harness)[1:] == (1, 1, 0)
    assert harness.broker.streams["a"].metrics.failed == 1
    consumer = harness.open(2, step=1)
    while harness.steps(0) or harness.steps(1):
        harness.build(0 if harness.steps(0) else 1)
    assert harness.ready(harness.get(consumer, 1, client=2)).step == 1


def test_a_second_build_that_raises_is_a_violation_with_that_story() -> None:
    harness, builder = waiting()
    other = 1 - builder
    while harness.steps(other)[0] != 0:
        harness.build(other)
    [(_, reply)] = harness.fail(other)
    error = harness.error([reply])
    assert isinstance(error, BuildError)
    assert error.cause_type == "PurityViolation"
    assert f"worker {builder} built it, and the second build raised ValueError: no data" in error.message
    assert counts(harness)[1:] == (1, 1, 0)


def test_what_cannot_be_compared_is_granted_and_counted() -> None:
    harness, builder = waiting()
    other = 1 - builder
    while harness.steps(other)[0] != 0:
        harness.build(other)
    [(_, reply)] = harness.build(other, skipped="there is no memory")
    assert harness.ready([reply]).step == 0
    assert counts(harness)[1:] == (0, 0, 1)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_builder_verifies_only_where_no_other_is_ready(workers: int) -> None:
    harness = BrokerHarness(workers=workers, prefetch=1, verify=1)
    harness.workers.away = {1}
    harness.get(harness.open(), 0)
    harness.build()
    assert harness.verifying() == [0]
    assert len(harness.build()) == 1


def test_while_all_others_are_busy_the_step_waits_for_one_of_them_and_builds_go_on() -> None:
    harness = BrokerHarness(workers=2, prefetch=6, verify=6)
    harness.open()
    assert (harness.steps(0), harness.steps(1)) == ([0, 2], [1, 3])
    harness.build(0)
    assert (harness.verifying(1), harness.steps(0)) == ([], [2, 4])
    harness.build(1)
    assert (harness.verifying(1), harness.steps(1)) == ([0], [3, 0])


def test_a_worker_that_dies_while_it_verifies_leaves_the_first_build_as_it_is() -> None:
    harness, builder = waiting(prefetch=1)
    other = 1 - builder
    given = len(harness.workers.given)
    assert harness.die(other) == []
    assert harness.verifying(other) == [0]
    assert len(harness.workers.given) == given, "it is not built from the start"
    [(_, reply)] = harness.build(other)
    assert harness.ready([reply]).step == 0


def test_after_three_deaths_in_all_the_step_fails() -> None:
    harness = BrokerHarness(workers=1, prefetch=1, verify=1)
    harness.get(harness.open(), 0)
    assert harness.die() == []
    harness.build()
    assert harness.verifying() == [0]
    assert harness.die() == []
    [(_, reply)] = harness.die()
    assert isinstance(error := harness.error([reply]), BuildError)
    assert error.cause_type == "WorkerDied"


def test_a_verification_that_only_waited_behind_another_is_not_to_blame() -> None:
    harness = BrokerHarness(workers=2, prefetch=2, verify=2)
    harness.workers.away = {1}
    harness.open()
    harness.workers.away = set()
    assert harness.steps(0) == [0, 1]
    harness.build(0)
    assert harness.verifying(1) == [0]
    harness.workers.all[1].tasks.insert(0, harness.workers.all[0].tasks.pop(0))
    assert harness.steps(1) == [1, 0]
    harness.workers.away = {1}
    harness.die(1)
    deaths = harness.broker.queue._crashes
    assert (deaths.count("a", 1), deaths.count("a", 0)) == (1, 0)
    assert harness.verifying(0) == [0], "by its builder, who is the only one left"


def test_a_lane_whose_consumers_leave_meanwhile_ends_with_the_verification() -> None:
    harness, builder = waiting(prefetch=1)
    harness.close(1)
    assert harness.broker.streams["a"].lanes.lanes, "a worker still reads its segment"
    harness.build(1 - builder)
    assert not harness.broker.streams["a"].lanes.lanes
    assert list(harness.memory.sizes.values()) == [PAGE]


def test_a_layout_too_large_to_travel_twice_is_not_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """A side that sends much to a worker that sends much waits for one who waits for it."""
    monkeypatch.setattr("loader_service.daemon.broker.build_queue._MAX_VERIFY_BYTES", 16)
    harness = BrokerHarness(workers=2, prefetch=2, verify=2)
    consumer = harness.open()
    harness.get(consumer, 0)
    place = next(number for number in range(2) if 0 in harness.steps(number))
    [(_, reply)] = harness.build(place)
    assert harness.ready([reply]).step == 0
    assert harness.verifying(0) == harness.verifying(1) == []
    assert counts(harness)[1:] == (0, 0, 1)
