"""A container served by a daemon through a pipeline's text."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import loader_client
from loader_service import LocalService
from loader_service.daemon.config.load import Config
from loader_service.data.pskd import pipeline_stream, write
from loader_service.errors import ConfigurationError, FactoryError
from tests.e2e.harness import ROOT, digests

_PIPELINE = "stream corpus.psk.d |> shuffle(seed = 7) |> batch(B = 8)"


def _configured(directory: Path, pipeline: str = _PIPELINE, more: str = "") -> Path:
    path = directory / "loader.toml"
    path.write_text(f'[streams.s]\npipeline = "{pipeline}"\nnames = ["tokens", "weight"]\nprefetch = 3\n{more}')
    return path


def test_a_pipeline_in_the_configuration_is_a_whole_stream(tmp_path: Path) -> None:
    samples = [(np.array([i % 7, i % 5]), np.array(i / 8)) for i in range(100)]
    write(tmp_path / "corpus.psk.d", "(idx[7][2], ℝ[])", samples)
    expected = pipeline_stream(_PIPELINE, ["tokens", "weight"], str(tmp_path))
    with (
        LocalService(_configured(tmp_path)) as daemon,
        loader_client.connect(daemon.endpoint) as client,
        client.open("s", 5, 40) as consumer,
    ):
        assert [batch.digest() for batch in consumer] == digests(expected, 5, 40)
        assert consumer.fingerprint == expected.fingerprint


def test_mistakes_are_told_where_they_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"\[streams\.s\] pipeline: the stages are shuffle, batch, take"):
        Config.load(_configured(tmp_path, "stream a |> shufle(7)"))
    with pytest.raises(ConfigurationError, match="a factory and a pipeline"):
        Config.load(_configured(tmp_path, more='factory = "a:b"'))
    with pytest.raises(ConfigurationError, match="has no key 'args'; known keys: pipeline, names"):
        Config.load(_configured(tmp_path, more="args = {}"))
    with pytest.raises(FactoryError, match=r"stream 's': .*corpus\.psk\.d cannot be read"):
        LocalService(_configured(tmp_path)).start()


def test_the_text_demo_agrees() -> None:
    source = str(ROOT / "loader_service" / "contract" / "augment.py")
    command = [sys.executable, "-m", "loader_service", "demo", "--text", "--steps", "9", "--batch-size", "4", source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "all three digests agree" in done.stdout
    assert "each of the 9 steps was built once" in done.stdout
