"""A job fills the cache with models once, and services wait until it has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stub_hub import StubHub, hub
from trinity.config.plan.model import newest_snapshot

__all__ = ["hub"]
COMMIT = "1" * 40
MODEL = "people/small"
FILES = {"config.json": b"{}", "model.safetensors": b"weights", "pytorch_model.bin": b"no"}
DEADLINE = 120


@pytest.fixture
def filled(hub: StubHub) -> StubHub:
    hub.kind, hub.dataset = "models", MODEL
    hub.commits, hub.newest = {COMMIT: FILES}, COMMIT
    return hub


def fetch(hub: StubHub, cache: Path, *words: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, **hub.variables, "HF_HOME": str(cache)}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "trinity.run.deploy.fetch", *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_who_waits_goes_on_when_all_models_are_whole(
    filled: StubHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = fetch(filled, tmp_path, "--wait", MODEL)
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == f"waiting for {MODEL}\n", "it has looked, and waits"
    assert waiting.poll() is None
    for _ in range(2):
        job = fetch(filled, tmp_path, MODEL)
        said, complaint = job.communicate(timeout=DEADLINE)
        assert job.returncode == 0, complaint
        assert said == f"{MODEL}: whole in the cache\n"
    waiting.communicate(timeout=DEADLINE)
    assert waiting.returncode == 0
    wanted = ["config.json", "model.safetensors"]
    assert sorted(name for _, name in filled.sent) == wanted, "each once, and none that is not read"
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    found = newest_snapshot("model", MODEL)
    assert found is not None and sorted(path.name for path in found.iterdir()) == wanted


def test_what_the_hub_does_not_give_is_an_error_and_nobody_goes_on(
    filled: StubHub, tmp_path: Path
) -> None:
    job = fetch(filled, tmp_path, MODEL, "people/closed")
    _, complaint = job.communicate(timeout=DEADLINE)
    assert job.returncode == 1
    assert "people/closed cannot be fetched" in complaint and "HF_TOKEN" in complaint
    assert "Traceback" not in complaint
    assert not list(tmp_path.glob(".fetched-*")), "the mark would let services start"
