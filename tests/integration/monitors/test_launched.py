"""A whole run with a monitor: it has two runs there, and one that is away holds nothing up."""

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
from pydantic import JsonValue

from tests.integration.monitors.wandb_files import history, run_of
from tests.support.model_free.experiment import experiment_plan
from tests.support.model_free.stack import model_free_services
from trinity.run.launch.run import LocalRun
from trinity.run.monitors.feed import MonitorFeed
from trinity.run.progress.lines import LineReporter
from trinity.run.progress.summary import RunSummary

pytest.importorskip("wandb")

STEPS = 3
OF_TRAINER = (
    "sample/task_count",
    *(
        f"sample/{what}/{figure}"
        for what in ("model_version", "model_version_drift")
        for figure in ("mean", "max", "min")
    ),
    *(f"time/{part}" for part in ("read_experience", "train_step", "sync_weight", "step")),
    "time/save_checkpoint",
    *(
        f"{what}_length/{figure}"
        for what in ("prompt", "response")
        for figure in ("mean", "max", "min", "clip_ratio")
    ),
    *(f"perf/{figure}" for figure in ("total_num_tokens", "time_per_step", "throughput")),
)
OF_EXPLORER = (
    "rollout/model_version",
    "rollout/finished_task_count",
    *(
        f"rollout/{what}/{figure}"
        for what in ("reward", "time/run_execution")
        for figure in ("mean", "max", "min")
    ),
    "experience_pipeline/experience_count",
    *(
        f"experience_pipeline/group_advantages/{what}/{figure}"
        for what in ("reward_mean", "reward_std")
        for figure in ("mean", "max", "min")
    ),
)
RUN_SECONDS = 240
KEY = "0123456789abcdef" * 2 + "01234567"
pytestmark = pytest.mark.timeout(300)


async def run(root: Path, said: list[str], **arguments: JsonValue) -> RunSummary:
    plan = experiment_plan(
        root,
        buffer={"total_steps": STEPS},
        trainer={"save_interval": 1},
        monitor={"monitor_type": "wandb", "monitor_args": arguments},
    )
    reporter = LineReporter(said.append)
    async with asyncio.timeout(RUN_SECONDS):
        return await LocalRun(
            plan=plan, reporter=reporter, services=model_free_services()
        ).run_to_end()


async def test_a_run_leaves_an_explorers_and_a_trainers_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    summary = await run(tmp_path, [], api_key=KEY)
    assert summary.state == "finished"
    job = tmp_path / "checkpoints" / "model-free" / "run"
    files = job.glob("monitor/wandb/offline-run-*/*.wandb")
    runs = {run_of(file).display_name: file for file in files}
    assert set(runs) == {"run_explorer", "run_trainer"}
    check_names(runs)
    trained = [row["train_step"] for row in history(runs["run_trainer"]) if "time/step" in row]
    explored = history(runs["run_explorer"])
    rewarded = [row["train_step"] for row in explored if "rollout/reward/mean" in row]
    assert trained == rewarded == [1, 2, 3]
    kept = [path for path in job.rglob("*") if path.is_file() and path.name != "postmaster.pid"]
    assert not [path for path in kept if KEY.encode() in path.read_bytes()]


def check_names(runs: Mapping[str, Path]) -> None:
    """The charts of Trinity-RFT that a learner which computes nothing has figures for."""
    for run, names in (("run_trainer", OF_TRAINER), ("run_explorer", OF_EXPLORER)):
        told = {name for row in history(runs[run]) for name in row}
        assert not [name for name in names if name not in told]


async def test_a_run_ends_though_its_monitor_never_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr("trinity.run.monitors.wandb.ANSWER_SECONDS", 2.0)
    impatient = partial(MonitorFeed, catch_up_seconds=2.0)
    monkeypatch.setattr("trinity.run.launch.follow.MonitorFeed", impatient)
    said: list[str] = []
    summary = await run(tmp_path, said, api_key=KEY, base_url="http://127.0.0.1:1")
    assert summary.state == "finished"
    assert len([line for line in said if "the monitor wandb is away" in line]) == 1
    assert not [line for line in said if KEY in line]
