"""The cases: each can be made, names its consumers apart, and says what it lacks here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.peers import cases, jpegs
from benchmarks.peers.cases import CASES, Case, Role, missing
from benchmarks.peers.roles import ROLES


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_a_case_is_made_of_known_roles_and_plain_values(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "_JPEGS", 1)
    directory = tmp_path / "of-the-case"
    directory.mkdir()
    roles = case.roles(directory)
    assert {role.name for role in roles} <= set(ROLES)
    consumers = [role.options.get("consumer", 0) for role in roles if role.consumes]
    assert sorted(consumers) == list(range(len(consumers)))
    assert consumers
    assert [json.loads(json.dumps(role.options)) for role in roles] == [role.options for role in roles]


def test_a_case_names_what_is_not_installed() -> None:
    case = Case("x", "x", lambda _: [Role("memcpy")], needs=("numpy", "a_module_that_nobody_has"))
    assert missing(case) == ["a_module_that_nobody_has"]


def test_pictures_are_what_was_written(tmp_path: Path) -> None:
    jpegs.write_folder(tmp_path, 3)
    pictures = jpegs.Pictures(str(tmp_path))
    assert len(pictures) == 3
    assert pictures[2]["image"].shape == (3, jpegs.SIZE, jpegs.SIZE)
