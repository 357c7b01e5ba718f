"""A dry run asks the hub, where it answers, for what is neither here nor in its cache."""

import os
import subprocess
import sys
from pathlib import Path

import yaml

from tests.e2e.conftest import REPOSITORY
from tests.support.stub_hub import StubHub, hub
from tests.unit.config.builders import GRPO
from trinity.config.schema.experiment import deep_merge
from trinity.run.local.addresses import free_port

__all__ = ["hub"]


def dry_run(folder: Path, hub: str, model: str, tasks: str) -> "subprocess.CompletedProcess[str]":
    file = folder / "x.yaml"
    taskset = {"default_reward_fn_type": "exact_match_reward", "taskset": {"path": tasks}}
    changes = {
        "checkpoint_root_dir": str(folder / "runs"),
        "model": {"model_path": model},
        "buffer": {"explorer_input": taskset},
    }
    file.write_text(yaml.safe_dump(deep_merge(GRPO, changes)))
    environment = {name: value for name, value in os.environ.items() if "PROXY" not in name.upper()}
    environment |= {"HF_ENDPOINT": hub, "HF_HOME": str(folder / "home")}
    environment.pop("HF_HUB_OFFLINE", None)
    command = [sys.executable, "-m", "trinity.cli.main", "run", "-c", str(file), "--dry-run"]
    return subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )


def test_what_the_hub_does_not_know_is_a_mistake_and_all_of_it_is_told(
    hub: StubHub, tmp_path: Path
) -> None:
    done = dry_run(tmp_path, hub.address, "no-such/model", "no-such/tasks")
    assert done.returncode == 2
    assert "`model.model_path: no-such/model` is not here and no public model" in done.stderr
    assert "`path: no-such/tasks` is not here and no public dataset" in done.stderr


def test_what_the_hub_knows_is_taken(hub: StubHub, tmp_path: Path) -> None:
    done = dry_run(tmp_path, hub.address, "some/model", "no-such/tasks")
    assert done.returncode == 2
    assert "some/model" not in done.stderr and "no-such/tasks" in done.stderr


def test_without_the_hub_a_dry_run_says_what_it_cannot_know(tmp_path: Path) -> None:
    done = dry_run(tmp_path, f"http://127.0.0.1:{free_port()}", "some/model", "some/tasks")
    assert done.returncode == 0, done.stderr
    assert "`model.model_path: some/model` is not here and not in the hub's cache" in done.stdout
    assert "what is to be fetched from the hub is not checked" in done.stdout
