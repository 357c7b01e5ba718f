"""Weights & Biases without a network: its own process writes what `wandb sync` would send."""

from pathlib import Path

import pytest

from tests.integration.monitors.wandb_files import history, run_of
from tests.unit.monitors.builders import SECRET, setting, whole_points
from trinity.run.monitors.wandb import WandbMonitor

wandb = pytest.importorskip("wandb")

FILES = "wandb/offline-run-*/*.wandb"


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B reads its variables and its address once in a process, unless it begins anew."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    wandb.teardown()


def shown(directory: Path, **arguments: str) -> dict[str, Path]:
    """A whole run written, as files by the name of the run."""
    monitor = WandbMonitor(setting(directory, **arguments))
    points = whole_points()
    monitor.write_points(points[:4])
    monitor.write_points(points[4:])
    monitor.close()
    return {run_of(file).display_name: file for file in directory.glob(FILES)}


@pytest.mark.usefixtures("offline")
def test_offline_runs_have_each_step_once_also_after_a_resume(tmp_path: Path) -> None:
    shown(tmp_path)
    runs = shown(tmp_path)
    assert len(list(tmp_path.glob(FILES))) == len(runs)
    assert {"first/rft_explorer", "first/rft_trainer", "first/sft_trainer"} <= set(runs)
    losses = [row for row in history(runs["first/rft_trainer"]) if "actor/loss" in row]
    assert [(row["train_step"], row["actor/loss"]) for row in losses] == [
        (1, 1),
        (2, 0.5),
        (3, 1 / 3),
    ]
    about = run_of(runs["first/rft_trainer"])
    assert (about.project, about.run_group, list(about.tags)) == ("sums", "first", ["trainer"])


@pytest.mark.usefixtures("offline")
def test_no_key_stands_in_what_wandb_keeps(tmp_path: Path) -> None:
    shown(tmp_path, api_key=SECRET.replace("-", "0").ljust(40, "0"), base_url="http://127.0.0.1:1")
    texts = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert texts
    for secret in (SECRET, SECRET.replace("-", "0")):
        assert not any(secret.encode() in text for text in texts)
