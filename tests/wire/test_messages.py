"""The messages: each kind once, plain values only, and flat where a client sends them."""

from __future__ import annotations

import dataclasses

import pytest

from loader_service.wire import messages
from loader_service.wire.messages import CLIENT_MESSAGES, DAEMON_MESSAGES, Message

FLAT = {"int", "bool", "str", "Name", "list[int]", "dict[Name, Setting]"}


def test_each_class_has_a_kind_of_its_own_and_stands_in_one_table() -> None:
    classes = {cls for cls in vars(messages).values() if isinstance(cls, type) and issubclass(cls, Message)} - {Message}
    assert classes == {*CLIENT_MESSAGES.values(), *DAEMON_MESSAGES.values()}
    assert len(classes) == len(CLIENT_MESSAGES) + len(DAEMON_MESSAGES)
    assert {cls.__name__ for cls in classes} <= set(messages.__all__)


@pytest.mark.parametrize(("kind", "cls"), (CLIENT_MESSAGES | DAEMON_MESSAGES).items())
def test_a_message_is_a_frozen_value_with_slots(kind: str, cls: type[Message]) -> None:
    assert cls.kind == kind
    assert dataclasses.is_dataclass(cls)
    assert cls.__dataclass_params__.frozen
    assert "__slots__" in vars(cls)


@pytest.mark.parametrize("cls", CLIENT_MESSAGES.values())
def test_what_a_client_sends_has_nothing_nested_in_a_list_or_a_map(cls: type[Message]) -> None:
    kinds = {str(field.type) for field in dataclasses.fields(cls)}  # type: ignore[arg-type]  # dataclasses all
    assert kinds <= FLAT


@pytest.mark.parametrize("cls", (CLIENT_MESSAGES | DAEMON_MESSAGES).values())
def test_a_request_number_comes_first(cls: type[Message]) -> None:
    names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]  # dataclasses all
    assert "request" not in names[1:]
