"""The reference: a stream read in this process, by the same rules as from the service."""

from __future__ import annotations

import pytest

from loader_service import Loader
from loader_service.data import synthetic_lines
from loader_service.errors import ConsumerClosedError


def loader(start_step: int = 0, stop_step: int | None = None, shard: tuple[int, int] = (0, 1)) -> Loader:
    return Loader(synthetic_lines(count=20, batch_size=4), start_step, stop_step, shard=shard)


def test_it_goes_on_behind_the_step_that_was_got() -> None:
    one = loader()
    assert (one.get(7).step, next(one).step, one.next_step) == (7, 8, 9)


def test_iteration_closes_it_at_its_stop_step() -> None:
    one = loader(2, 4)
    assert [batch.step for batch in one] == [2, 3]
    assert one.closed
    assert list(one) == []


def test_the_shards_together_are_the_global_batch() -> None:
    whole = loader().get(3)
    labels = [label for rank in range(3) for label in loader(shard=(rank, 3)).get(3)["labels"]]
    assert labels == list(whole["labels"])


def test_memory_is_used_again_only_when_the_last_array_over_it_is_dead() -> None:
    one = loader()
    kept = one.get(0)["labels"]
    before = kept.copy()
    for step in range(1, 6):
        one.get(step)
    assert (kept == before).all()


def test_leaving_the_block_closes_it_and_leaves_arrays_valid() -> None:
    with loader() as one:
        batch = one.get(0)
        digest = batch.digest()
    assert batch.digest() == digest
    with pytest.raises(ConsumerClosedError):
        one.get(1)


def test_its_text_tells_where_it_is() -> None:
    one = loader(5)
    assert "next step 5" in repr(one)
    one.close()
    assert "it was closed" in repr(one)
