"""Every error, in other people's hands: what copies, sends or raises it again keeps its class and its text."""

from __future__ import annotations

import copy
import pickle
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

from loader_service import errors
from loader_service.errors import ArgumentError, BuildError, DataError, LoaderServiceError, from_record


def classes(base: type[LoaderServiceError] = LoaderServiceError) -> Iterator[type[LoaderServiceError]]:
    yield base
    for child in base.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from classes(child)


CLASSES = sorted(set(classes()), key=lambda one: one.__name__)
FULL = BuildError(
    step=7, slot=1, index=30, cause_type="OSError", cause_message="gone", remote_traceback="Traceback: in b.py"
)
EXAMPLES = [cls("a text") for cls in CLASSES] + [FULL, DataError("E9003", "the file ends early")]


def state(error: BaseException) -> tuple[Any, ...]:
    return type(error), str(error), repr(error), vars(error)


def raise_it(error: BaseException) -> None:
    raise error


def by_torch(error: LoaderServiceError) -> LoaderServiceError:
    """As `torch._utils.ExceptionWrapper.reraise` makes it again in the process of the trainer."""
    kind, text = type(error), "".join(traceback.format_exception(error))
    message = f"Caught {kind.__name__} in DataLoader worker process 0.\nOriginal {text}"
    return kind(message=message) if getattr(kind, "message", None) else kind(message)


def test_every_class_is_public_and_has_a_code_of_its_own() -> None:
    assert {cls.__name__ for cls in CLASSES} | {"from_record"} == set(errors.__all__)
    assert len({cls.code for cls in CLASSES}) == len(CLASSES)


@pytest.mark.parametrize("cls", CLASSES)
def test_a_class_is_made_of_a_text_alone(cls: type[LoaderServiceError]) -> None:
    make: Callable[..., LoaderServiceError] = cls
    for error in (make("a text"), make(message="a text")):
        assert (error.message, str(error), error.args) == ("a text", f"{cls.code}: a text", ("a text",))
    assert make().message == ""


@pytest.mark.parametrize("error", EXAMPLES, ids=repr)
@pytest.mark.parametrize(
    "again",
    [
        copy.copy,
        copy.deepcopy,
        lambda error: pickle.loads(pickle.dumps(error, 0)),
        lambda error: pickle.loads(pickle.dumps(error)),
        lambda error: from_record(error.to_record()),
    ],
    ids=["copy", "deepcopy", "old pickle", "pickle", "record"],
)
def test_a_copy_is_the_same_error(error: LoaderServiceError, again: Callable[[Any], Any]) -> None:
    assert state(again(error)) == state(error)


@pytest.mark.parametrize("error", EXAMPLES, ids=repr)
def test_raised_again_by_its_text_it_is_the_same_class_with_that_text(error: LoaderServiceError) -> None:
    again = by_torch(error)
    assert type(again) is type(error)
    assert again.code == error.code
    assert str(error) in str(again)


def test_notes_of_a_callers_travel_with_the_error() -> None:
    error = copy.copy(FULL)
    error.add_note("while warming up")
    again = pickle.loads(pickle.dumps(error))
    assert again.__notes__ == ["Where the build failed:\nTraceback: in b.py", "while warming up"]


def test_a_subclass_of_a_users_survives_too() -> None:
    assert state(pickle.loads(pickle.dumps(OwnError("mine", 3)))) == state(OwnError("mine", 3))
    assert type(from_record(ArgumentError("ours").to_record())) is ArgumentError


class OwnError(ArgumentError):
    """One with an argument more, and the code of its base."""

    def __init__(self, message: str = "", limit: int = 0) -> None:
        super().__init__(message)
        self.limit = limit


def test_an_error_of_a_worker_process_arrives_as_itself() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        for error in EXAMPLES:
            arrived = pool.submit(raise_it, error).exception(60)
            assert arrived is not None
            assert state(arrived) == state(error)


def test_an_unknown_code_is_an_error_that_keeps_code_and_text() -> None:
    error = from_record({"code": "E9999", "message": "from the future", "details": {}})
    assert (type(error), error.message) == (LoaderServiceError, "E9999: from the future")


def test_a_text_that_no_message_can_carry_is_made_one_that_can() -> None:
    record = ArgumentError("file \udcff").to_record()
    assert record["message"] == "file \\udcff"
