"""The command line: each mistake is one message and an exit code; help names every command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loader_service import __version__
from loader_service.cli.main import main

CONFIG = """
[streams.train]
factory = "loader_service.data:synthetic_lines"
args = { count = 50, batch_size = 4 }
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "loader.toml"
    path.write_text(CONFIG)
    return str(path)


def exit_code(*arguments: str) -> int | str | None:
    """Return the exit code of a command that argparse ends."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out == f"loader-service {__version__}\n"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--help") == 0
    text = capsys.readouterr().out
    assert [name for name in ("serve", "status", "set", "stop", "explain", "demo", "data") if name not in text] == []


@pytest.mark.parametrize(
    "arguments",
    [(), ("dance",), ("serve",), ("set",), ("explain", "loader.toml", "train", "first"), ("demo", "--steps", "0")],
)
def test_arguments_that_do_not_fit_end_with_2(arguments: tuple[str, ...]) -> None:
    assert exit_code(*arguments) == 2


def test_a_setting_without_a_value_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["set", "workers"]) == 2
    assert "NAME=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "stop"])
def test_without_a_daemon_a_command_fails_and_names_the_endpoint(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint = f"ipc://{tmp_path}/none/daemon.sock"
    assert main([command, "--endpoint", endpoint, "--timeout", "0.1"]) == 1
    assert endpoint in capsys.readouterr().err


def test_a_configuration_that_is_not_there_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.toml"
    assert main(["serve", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_a_batch_is_explained_for_programs(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", config, "train", "13", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["step"], told["epoch"], told["step_in_epoch"]) == (13, 1, 1)
    assert len(told["slots"]) == 4


def test_a_stream_that_is_not_there_is_a_mistake_that_names_those_that_are(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", config, "test", "0"]) == 2
    assert "train" in capsys.readouterr().err


def test_a_picture_of_a_text_demo_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--text", "--save-grid", "x.png"]) == 2
    assert "--save-grid" in capsys.readouterr().err


def test_a_break_by_the_user_ends_with_130(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("loader_service.cli.main.print_explanation", interrupt)
    assert main(["explain", config, "train", "0"]) == 130


def test_without_pillow_the_message_names_the_extra(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*arguments: object) -> None:
        raise ModuleNotFoundError("No module named 'PIL'", name="PIL")

    monkeypatch.setattr("loader_service.cli.main.print_explanation", missing)
    assert main(["explain", config, "train", "0"]) == 2
    assert "loader-service[images]" in capsys.readouterr().err
