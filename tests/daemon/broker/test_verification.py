"""Every Nth step is built twice before anybody gets it."""

from __future__ import annotations

import pytest

from loader_service.daemon.workers.messages import Verify
from loader_service.errors import BuildError
from tests.daemon.broker.broker_harness import PAGE, BrokerHarness


def counts(desk: BrokerHarness) -> tuple[int, int, int, int]:
    told = desk.broker.streams["a"].report(builds=False)
    return told["built"], told["verified"], told["impure"], told["unverified"]


def waiting(workers: int = 2, prefetch: int = 2, step: int = 0) -> tuple[BrokerHarness, int]:
    """A desk that verifies every second step, a consumer that waits for `step`, and worker 0 has built it."""
    desk = BrokerHarness(workers=workers, prefetch=prefetch, verify=2)
    consumer = desk.open(step=step)
    desk.get(consumer, step)
    place = next(number for number in range(workers) if step in desk.steps(number))
    assert desk.build(place) == [] if step % 2 == 0 else True
    return desk, place


def test_a_step_is_granted_once_another_worker_has_built_the_same_bytes() -> None:
    desk, builder = waiting()
    other = 1 - builder
    assert desk.verifying(builder) == []
    assert desk.verifying(other) == [0]
    verify = next(task for task in desk.workers.all[other].tasks if isinstance(task, Verify))
    build = desk.workers.given[0]
    assert (verify.placement, verify.nbytes) == (build.placement, 128)
    while desk.steps(other)[0] != 0:
        desk.build(other)
    [(_, reply)] = desk.build(other)
    assert desk.ready([reply]).placement == build.placement
    assert counts(desk)[1:] == (1, 0, 0)


def test_only_every_nth_step_is_verified() -> None:
    desk = BrokerHarness(workers=2, prefetch=8, verify=3)
    desk.open(step=4)
    verified: list[int] = []
    while any(desk.steps(place) for place in range(2)):
        for place in range(2):
            if desk.steps(place):
                verified += desk.verifying(place)[:1] if desk.verifying(place)[:1] == desk.steps(place)[:1] else []
                desk.build(place)
    assert sorted(verified) == [6, 9]
    assert counts(desk) == (8, 2, 0, 0)


def test_a_step_that_differs_fails_for_its_consumers_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    desk, builder = waiting()
    other = 1 - builder
    while desk.steps(other)[0] != 0:
        desk.build(other)
    [(_, reply)] = desk.build(other, "tensor 'x': 1 of 128 elements differ", "tensor 'y': nothing, then int32[1]")
    error = desk.error([reply])
    assert isinstance(error, BuildError)
    assert (error.step, error.cause_type) == (0, "PurityViolation")
    text = (
        f"worker {builder} built it, and worker {other} other bytes: tensor 'x': 1 of 128 elements differ; tensor 'y'"
    )
    assert text in error.message
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert f"stream a step 0: step 0 could not be built: PurityViolation: {text}" in caplog.text
    assert counts(desk)[1:] == (1, 1, 0)
    assert desk.broker.streams["a"].metrics.failed == 1
    consumer = desk.open(2, step=1)
    while desk.steps(0) or desk.steps(1):
        desk.build(0 if desk.steps(0) else 1)
    assert desk.ready(desk.get(consumer, 1, client=2)).step == 1


def test_a_second_build_that_raises_is_a_violation_with_that_story() -> None:
    desk, builder = waiting()
    other = 1 - builder
    while desk.steps(other)[0] != 0:
        desk.build(other)
    [(_, reply)] = desk.fail(other)
    error = desk.error([reply])
    assert isinstance(error, BuildError)
    assert error.cause_type == "PurityViolation"
    assert f"worker {builder} built it, and the second build raised ValueError: no data" in error.message
    assert counts(desk)[1:] == (1, 1, 0)


def test_what_cannot_be_compared_is_granted_and_counted() -> None:
    desk, builder = waiting()
    other = 1 - builder
    while desk.steps(other)[0] != 0:
        desk.build(other)
    [(_, reply)] = desk.build(other, skipped="there is no memory")
    assert desk.ready([reply]).step == 0
    assert counts(desk)[1:] == (0, 0, 1)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_builder_verifies_only_where_no_other_is_ready(workers: int) -> None:
    desk = BrokerHarness(workers=workers, prefetch=1, verify=1)
    desk.workers.away = {1}
    desk.get(desk.open(), 0)
    desk.build()
    assert desk.verifying() == [0]
    assert len(desk.build()) == 1


def test_while_all_others_are_busy_the_step_waits_for_one_of_them_and_builds_go_on() -> None:
    desk = BrokerHarness(workers=2, prefetch=6, verify=6)
    desk.open()
    assert (desk.steps(0), desk.steps(1)) == ([0, 2], [1, 3])
    desk.build(0)
    assert (desk.verifying(1), desk.steps(0)) == ([], [2, 4])
    desk.build(1)
    assert (desk.verifying(1), desk.steps(1)) == ([0], [3, 0])


def test_a_worker_that_dies_while_it_verifies_leaves_the_first_build_as_it_is() -> None:
    desk, builder = waiting(prefetch=1)
    other = 1 - builder
    given = len(desk.workers.given)
    assert desk.die(other) == []
    assert desk.verifying(other) == [0]
    assert len(desk.workers.given) == given, "it is not built from the start"
    [(_, reply)] = desk.build(other)
    assert desk.ready([reply]).step == 0


def test_after_three_deaths_in_all_the_step_fails() -> None:
    desk = BrokerHarness(workers=1, prefetch=1, verify=1)
    desk.get(desk.open(), 0)
    assert desk.die() == []
    desk.build()
    assert desk.verifying() == [0]
    assert desk.die() == []
    [(_, reply)] = desk.die()
    assert isinstance(error := desk.error([reply]), BuildError)
    assert error.cause_type == "WorkerDied"


def test_a_verification_that_only_waited_behind_another_is_not_to_blame() -> None:
    desk = BrokerHarness(workers=2, prefetch=2, verify=2)
    desk.workers.away = {1}
    desk.open()
    desk.workers.away = set()
    assert desk.steps(0) == [0, 1]
    desk.build(0)
    assert desk.verifying(1) == [0]
    desk.workers.all[1].tasks.insert(0, desk.workers.all[0].tasks.pop(0))
    assert desk.steps(1) == [1, 0]
    desk.workers.away = {1}
    desk.die(1)
    deaths = desk.broker.queue._crashes
    assert (deaths.count("a", 1), deaths.count("a", 0)) == (1, 0)
    assert desk.verifying(0) == [0], "by its builder, who is the only one left"


def test_a_lane_whose_consumers_leave_meanwhile_ends_with_the_verification() -> None:
    desk, builder = waiting(prefetch=1)
    desk.close(1)
    assert desk.broker.streams["a"].lanes.lanes, "a worker still reads its segment"
    desk.build(1 - builder)
    assert not desk.broker.streams["a"].lanes.lanes
    assert list(desk.memory.sizes.values()) == [PAGE]


def test_a_layout_too_large_to_travel_twice_is_not_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """A side that sends much to a worker that sends much waits for one who waits for it."""
    monkeypatch.setattr("loader_service.daemon.broker.build_queue._MAX_VERIFY_BYTES", 16)
    desk = BrokerHarness(workers=2, prefetch=2, verify=2)
    consumer = desk.open()
    desk.get(consumer, 0)
    place = next(number for number in range(2) if 0 in desk.steps(number))
    [(_, reply)] = desk.build(place)
    assert desk.ready([reply]).step == 0
    assert desk.verifying(0) == desk.verifying(1) == []
    assert counts(desk)[1:] == (0, 0, 1)
