"""A dataset that reads many samples at once is asked once a batch; the batches are those of one that reads singly."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loader_service.contract.collate import StackCollator
from loader_service.contract.rng import SampleRng
from loader_service.contract.samplers import SequentialSampler, ShuffledSampler
from loader_service.contract.stream import Stream
from loader_service.errors import BuildError


class OneByOne:
    """Sample i is [i, i + 1]."""

    fingerprint = "pairs"

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int, /) -> NDArray[np.int64]:
        if index == 13:
            raise OSError("sample 13 is gone")
        return np.array([index, index + 1])


class AtOnce(OneByOne):
    """torch's way: a list of samples for a list of ints."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __getitems__(self, indices: list[int]) -> Any:
        self.asked.append(indices)
        return [self[index] for index in indices]


class Changed(AtOnce):
    """Overrides how one sample is read, and inherits how many are."""

    def __getitem__(self, index: int, /) -> NDArray[np.int64]:
        return np.array([-index, 0])


class Answering(AtOnce):
    def __init__(self, answer: Callable[[list[int]], Any]) -> None:
        super().__init__()
        self.answer = answer

    def __getitems__(self, indices: list[int]) -> Any:
        return self.answer(indices)


def stream(dataset: Any, **options: Any) -> Stream:
    return Stream(dataset, SequentialSampler(40, 4), StackCollator(), seed=5, **options)


def test_it_is_asked_once_a_batch_with_plain_ints() -> None:
    dataset = AtOnce()
    batch = stream(dataset).build(2)
    assert dataset.asked == [[8, 9, 10, 11]]
    assert {type(index) for index in dataset.asked[0]} == {int}
    assert batch.digest() == stream(OneByOne()).build(2).digest()


def test_a_rank_asks_for_its_rows_alone() -> None:
    dataset = AtOnce()
    stream(dataset).build(2, (1, 2))
    assert dataset.asked == [[10, 11]]


def test_a_transform_gets_each_sample_with_the_numbers_of_its_slot() -> None:
    def shift(sample: NDArray[np.int64], rng: SampleRng) -> NDArray[np.int64]:
        return sample + rng.next_int(1000)

    digests = [stream(dataset, transform=shift).build(1).digest() for dataset in (AtOnce(), OneByOne())]
    assert digests[0] == digests[1]


def test_an_error_names_the_slot_and_index_of_the_sample() -> None:
    with pytest.raises(BuildError, match="sample 13 is gone") as caught:
        stream(AtOnce()).build(3)
    assert (caught.value.step, caught.value.slot, caught.value.index) == (3, 1, 13)


def test_an_error_of_the_whole_read_names_the_step_alone() -> None:
    def fail(_: list[int]) -> Any:
        raise OSError("the server is away")

    with pytest.raises(BuildError, match="the server is away") as caught:
        stream(Answering(fail)).build(0)
    assert (caught.value.slot, caught.value.index) == (None, None)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda indices: [np.zeros(2)] * (len(indices) - 1), "3 samples for 4 indices"),
        (lambda indices: [np.zeros(2)] * (len(indices) + 1), "5 samples for 4 indices"),
        (lambda indices: None, "NoneType"),
        (lambda indices: iter([np.zeros(2)] * 4), "must give a sequence"),
    ],
)
def test_an_answer_that_is_no_batch_is_an_error(answer: Callable[[list[int]], Any], told: str) -> None:
    with pytest.raises(BuildError, match=told):
        stream(Answering(answer)).build(0)


def test_a_subclass_that_reads_one_sample_otherwise_is_read_one_by_one() -> None:
    dataset = Changed()
    assert stream(dataset).build(1)["data"][:, 0].tolist() == [-4, -5, -6, -7]
    assert dataset.asked == []


def test_builds_in_several_threads_do_not_share_their_indices() -> None:
    shuffled = Stream(AtOnce(), ShuffledSampler(13, 3, 0), StackCollator(), seed=0)
    expected = [shuffled.build(step).digest() for step in range(40)]
    found: dict[int, list[str]] = {}

    def build(thread: int) -> None:
        found[thread] = [shuffled.build(step).digest() for step in range(40)]

    threads = [threading.Thread(target=build, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(digests == expected for digests in found.values())
    assert len(found) == 4


def test_a_dataset_that_builds_another_batch_of_its_stream_while_it_is_read_changes_nothing() -> None:
    class Nested(OneByOne):
        def __getitems__(self, indices: list[int]) -> Any:
            inner.build(0)
            return [self[index] for index in indices]

    inner = Stream(OneByOne(), ShuffledSampler(12, 4, 9), StackCollator(), seed=0)
    outer = Stream(Nested(), ShuffledSampler(12, 4, 0), StackCollator(), seed=0)
    assert (
        outer.build(1).digest()
        == Stream(OneByOne(), ShuffledSampler(12, 4, 0), StackCollator(), seed=0).build(1).digest()
    )
