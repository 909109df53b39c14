"""A view never changes under your hands: a lease lives as long as the last array over it."""

from __future__ import annotations

import gc
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import loader_client
from loader_client import Client, Consumer
from loader_service.errors import HoldLimitError, ReleasedError
from tests.e2e.harness import digests, eventually, service, stream_status
from tests.e2e.streams import slow, small


def _advance(consumer: Consumer, steps: int) -> None:
    for _ in range(steps):
        with next(consumer):
            pass


def _leased(client: Client) -> int:
    return sum(one["leases"] for one in client.status()["consumers"])


def test_arrays_are_views_that_cannot_be_written() -> None:
    with (
        service("small") as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s") as consumer,
        consumer.get(0) as batch,
    ):
        images = batch["images"]
        assert not images.flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            images[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            images.flags.writeable = True
        copy = batch.copy()
        copy["images"][0] = 1
        assert batch.digest() == small().build(0).digest()


def test_a_view_outlives_release_loop_consumer_and_client_unchanged_while_the_daemon_goes_on() -> None:
    expected = small().build(2)
    with service("small") as daemon:
        with loader_client.connect(daemon.endpoint) as client:
            with client.open("s") as consumer:
                for batch in consumer:
                    if batch.step == 2:
                        kept: NDArray[Any] = batch["images"][1:, :, ::2]
                        batch.release()
                        with pytest.raises(ReleasedError):
                            batch["images"]
                        break
                del batch
            with client.open("s", 3) as other:
                _advance(other, 40)
            np.testing.assert_array_equal(kept, expected["images"][1:, :, ::2])
        with loader_client.connect(daemon.endpoint) as second:
            with second.open("s") as other:
                _advance(other, 40)
            np.testing.assert_array_equal(kept, expected["images"][1:, :, ::2])
            eventually(lambda: _leased(second) == 1, "only the view that is kept is leased")
            del kept
            eventually(lambda: _leased(second) == 0, "the lease ends with the last view")
    assert expected.step == 2


def test_a_view_outlives_the_daemon() -> None:
    with service("small") as daemon, loader_client.connect(daemon.endpoint) as client:
        consumer = client.open("s")
        kept = consumer.get(0)["images"]
        daemon.stop()
        consumer.close()
        np.testing.assert_array_equal(kept, small().build(0)["images"])


@pytest.mark.parametrize("prefetch", [3, 4, 8])
def test_a_view_that_is_kept_is_in_the_way_of_no_step_after_a_seek(prefetch: int) -> None:
    """Forwards and back, near and far: a whole window of steps each."""
    with (
        service("small", prefetch=prefetch) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", hold_timeout_s=1.0) as consumer,
    ):
        _advance(consumer, 10)
        view = consumer.get(10)["images"]
        kept = view.copy()
        expected = digests(small(), 0, 60)
        for start in (10 + prefetch, 40, 0, 9, 10, 30):
            consumer.seek(start)
            for step in range(start, start + prefetch):
                with next(consumer) as batch:
                    assert (batch.step, batch.digest()) == (step, expected[step])
        np.testing.assert_array_equal(view, kept)


def test_the_slot_is_built_again_as_soon_as_the_last_view_dies() -> None:
    with (
        service("slow", prefetch=2) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", hold_timeout_s=30) as consumer,
    ):
        view = consumer.get(0)["images"][:1]
        _advance(consumer, 1)
        eventually(lambda: stream_status(client)["built"] == 2, "the ring is full")
        assert stream_status(client)["lanes"][0]["base"] == 0
        del view
        eventually(lambda: stream_status(client)["lanes"][0]["base"] == 2, "the window moves")
        eventually(lambda: stream_status(client)["built"] == 4, "both slots are built again")


def test_a_request_at_the_hold_limit_goes_on_when_another_thread_drops_a_view() -> None:
    with (
        service("slow", prefetch=2) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", hold_timeout_s=30) as consumer,
    ):
        kept = [next(consumer), next(consumer)]
        threading.Timer(0.1, kept.clear).start()
        assert next(consumer).step == 2


@pytest.mark.parametrize("prefetch", [1, 2, 3, 8])
def test_listing_a_consumer_ends_in_the_error_that_names_copy(prefetch: int) -> None:
    with (
        service("small", prefetch=prefetch) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", hold_timeout_s=0.05) as consumer,
    ):
        with pytest.raises(HoldLimitError, match=r"batch\.copy\(\)") as raised:
            list(consumer)
        assert f"{prefetch} slots" in str(raised.value)
        del raised
        gc.collect()
        copies = []
        for _ in range(3 * prefetch):
            with next(consumer) as batch:
                copies.append(batch.copy())
        first = copies[0].step
        assert [copy.digest() for copy in copies] == [small().build(first + i).digest() for i in range(3 * prefetch)]


def test_an_old_view_stays_while_the_consumer_jumps_far_away() -> None:
    with (
        service("slow", prefetch=4) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s") as consumer,
    ):
        kept = consumer.get(0)["images"]
        for step in (100, 5000, 3, 77, 4, 5, 6, 7, 8, 9, 10, 11, 12):
            with consumer.get(step) as batch:
                assert batch.digest() == slow().build(step).digest()
        np.testing.assert_array_equal(kept, slow().build(0)["images"])


def test_views_in_reference_cycles_and_threads_end_their_leases() -> None:
    with (
        service("slow", prefetch=4) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", hold_timeout_s=30) as consumer,
    ):
        cycle: list[Any] = [consumer.get(5)]  # one by one: none is sent ahead
        cycle.append(cycle)
        del cycle
        box = [consumer.get(9)]
        thread = threading.Thread(target=box.clear)
        thread.start()
        thread.join()
        gc.collect()
        assert consumer.held_steps == []
        eventually(lambda: _leased(client) == 0, "both leases have ended at the daemon")


def test_after_a_seek_an_idle_consumer_maps_what_it_holds_and_nothing_else() -> None:
    with (
        service("slow", prefetch=4) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s") as consumer,
    ):
        _advance(consumer, 8)
        view = consumer.get(8)["images"]
        assert len(_mapped()) == 4
        consumer.seek(5000)
        assert len(_mapped()) == 1
        np.testing.assert_array_equal(view, slow().build(8)["images"])
        del view
        assert _mapped() == set()
        assert next(consumer).digest() == slow().build(5000).digest()


def _mapped() -> set[str]:
    """The segments that this process maps."""
    return set(re.findall(r"/dev/shm/(lsv-\S+)", Path("/proc/self/maps").read_text()))
